// The page works without this file: links and forms lead to whole pages. It follows Airflow's theme and time zone, replaces
// the parts of the page that have changed, and opens links that the sandbox of Airflow's frame would hold back.
"use strict";

(() => {
  const LIVE_MS = 4000;
  const QUIET_MS = 20000;
  const CHOOSING_MS = 15000;
  // Airflow's own colours, whatever a deployment has made of them; the style sheet has its defaults.
  const TOKENS = {
    "--bg": "--chakra-colors-bg",
    "--bg-subtle": "--chakra-colors-bg-subtle",
    "--bg-muted": "--chakra-colors-bg-muted",
    "--fg": "--chakra-colors-fg",
    "--border": "--chakra-colors-border",
    "--brand": "--chakra-colors-brand-solid",
    "--brand-contrast": "--chakra-colors-brand-contrast",
    "--font": "--chakra-fonts-body",
    "--mono": "--chakra-fonts-mono",
  };
  const root = document.documentElement;

  function host() {
    try {
      return window.parent !== window && window.parent.document ? window.parent : null;
    } catch {
      return null; // another site's frame
    }
  }

  function stored(name) {
    try {
      return window.localStorage.getItem(name);
    } catch {
      return null;
    }
  }

  // --- theme and times ---------------------------------------------------------------------------------------------

  function isDark(parent) {
    if (parent) {
      return parent.document.documentElement.classList.contains("dark");
    }
    const kept = stored("theme");
    return kept === "dark" || (kept !== "light" && window.matchMedia("(prefers-color-scheme: dark)").matches);
  }

  function followTheme() {
    const parent = host();
    root.classList.toggle("dark", isDark(parent));
    if (parent) {
      const style = parent.getComputedStyle(parent.document.documentElement);
      for (const [ours, theirs] of Object.entries(TOKENS)) {
        const value = style.getPropertyValue(theirs).trim();
        if (value) {
          root.style.setProperty(ours, value);
        }
      }
    }
  }

  function timeFormat() {
    let zone = stored("timezone");
    try {
      zone = zone ? JSON.parse(zone) : null;
    } catch {
      // an older Airflow stores the bare name
    }
    const options = { dateStyle: "short", timeStyle: "medium" };
    try {
      return new Intl.DateTimeFormat("sv-SE", zone && zone !== "local" ? { ...options, timeZone: zone } : options);
    } catch {
      return new Intl.DateTimeFormat("sv-SE", options);
    }
  }

  function showTimes(within) {
    const format = timeFormat();
    for (const element of within.querySelectorAll("time[datetime]")) {
      const at = new Date(element.dateTime);
      if (!Number.isNaN(at.getTime())) {
        element.title = element.dateTime;
        element.textContent = format.format(at);
      }
    }
    for (const element of within.querySelectorAll("text[data-time]")) {
      const at = new Date(element.dataset.time);
      if (!Number.isNaN(at.getTime())) {
        const [date, clock] = format.format(at).split(" ");
        element.textContent =
          element.dataset.date === "yes" ? `${date.slice(5)} ${clock.slice(0, 5)}` : clock.slice(0, element.textContent.length);
      }
    }
  }

  // --- what the server sent, and what of it is new ----------------------------------------------------------------

  const served = new Map();
  let etag = null;
  let isLooking = false;
  let lastLook = Date.now();
  let lastInput = 0;

  function parts(within) {
    return [...within.querySelectorAll("[data-part]")];
  }

  function remember(within) {
    for (const part of parts(within)) {
      served.set(part.id, part.innerHTML);
    }
  }

  // Somebody chooses from a list at this moment, or has marked a text: that part waits for the next look.
  function isInUse(part) {
    const active = document.activeElement;
    const selection = document.getSelection();
    const isChoosing = active && part.contains(active) && active.matches("select") && Date.now() - lastInput < CHOOSING_MS;
    return isChoosing || (selection && !selection.isCollapsed && part.contains(selection.anchorNode));
  }

  function replacePart(old, fresh, isAsked) {
    const active = old.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...old.querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...old.querySelectorAll(".scroll, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
    const isChanged = (one) => !one.options[one.selectedIndex]?.defaultSelected;
    const chosen = isAsked ? [] : [...old.querySelectorAll("select[id]")].filter(isChanged).map((one) => [one.id, one.value]);
    served.set(fresh.id, fresh.innerHTML);
    const added = document.importNode(fresh, true);
    showTimes(added);
    old.replaceWith(added);
    [...added.querySelectorAll("details")].forEach((one, i) => (one.open = Boolean(open[i])));
    [...added.querySelectorAll(".scroll, pre")].forEach((one, i) => {
      [one.scrollLeft, one.scrollTop] = scrolled[i] || [0, 0];
    });
    for (const [id, value] of chosen) {
      const select = document.getElementById(id);
      if ([...select.options].some((option) => option.value === value)) {
        select.value = value; // chosen, and not sent yet
      }
    }
    if (active) {
      document.getElementById(active)?.focus({ preventScroll: true });
    }
  }

  function show(fresh, isAsked, isWhole) {
    const main = document.getElementById("main");
    const freshMain = fresh.getElementById("main");
    if (!freshMain) {
      return;
    }
    main.dataset.live = freshMain.dataset.live || "no";
    document.title = fresh.title;
    const ids = parts(freshMain).map((part) => part.id);
    const isSameShape = ids.every((id) => document.getElementById(id));
    if (!ids.length || !isSameShape || (isWhole && parts(main).length !== ids.length)) {
      served.clear();
      remember(freshMain);
      showTimes(freshMain);
      main.replaceChildren(...[...freshMain.childNodes].map((node) => document.importNode(node, true)));
      return;
    }
    for (const part of parts(freshMain)) {
      const old = document.getElementById(part.id);
      if (served.get(part.id) !== part.innerHTML && (isAsked || !isInUse(old))) {
        replacePart(old, part, isAsked);
      }
    }
  }

  function announce(text) {
    const announcer = document.getElementById("announcer");
    if (announcer && announcer.textContent !== text) {
      announcer.textContent = text;
    }
  }

  function showOffline(text) {
    let box = document.getElementById("offline");
    if (!text) {
      box?.remove();
      return;
    }
    if (!box) {
      box = document.createElement("p");
      box.id = "offline";
      box.className = "alert";
      box.setAttribute("role", "alert");
      document.body.prepend(box);
    }
    box.textContent = text;
  }

  async function look(url, isAsked) {
    if (isLooking && !isAsked) {
      return;
    }
    isLooking = true;
    lastLook = Date.now();
    const before = document.getElementById("status")?.textContent;
    try {
      const headers = etag && !isAsked ? { "If-None-Match": etag } : {};
      const answer = await fetch(url, { headers, cache: "no-store", credentials: "same-origin" });
      if (answer.status !== 304) {
        const text = await answer.text();
        if (url !== window.location.href.split("#")[0]) {
          return; // the reader has gone on meanwhile
        }
        etag = answer.ok ? answer.headers.get("etag") : null;
        show(new DOMParser().parseFromString(text, "text/html"), isAsked, answer.status !== 503);
      }
      showOffline("");
    } catch {
      showOffline("Airflow does not answer. The page tries again by itself.");
    } finally {
      isLooking = false;
    }
    const after = document.getElementById("status")?.textContent;
    if (after && before !== undefined && after !== before) {
      announce(after);
    }
  }

  function tick() {
    const main = document.getElementById("main");
    if (!document.hidden && main?.dataset.live !== undefined) {
      const pause = main.dataset.live === "yes" ? LIVE_MS : QUIET_MS;
      if (Date.now() - lastLook >= pause) {
        look(window.location.href.split("#")[0], false);
      }
    }
    window.setTimeout(tick, 1000);
  }

  // --- what a reader does --------------------------------------------------------------------------------------------

  async function go(address, isPushed) {
    const url = new URL(address, window.location.href);
    const wanted = url.searchParams.get("checkpoint");
    const chosen = new URL(window.location.href).searchParams.get("checkpoint");
    if (isPushed) {
      window.history.pushState(null, "", url);
    }
    await look(url.href.split("#")[0], true);
    if (wanted && wanted !== chosen) {
      const heading = document.getElementById("checkpoint");
      heading?.scrollIntoView({ block: "start" });
      heading?.focus({ preventScroll: true });
    } else if (!wanted && chosen) {
      document.querySelector(`#part-checkpoints [data-select="${CSS.escape(chosen)}"]`)?.focus();
    }
  }

  // Airflow shows the page in a frame that may open no windows and move no others; its own document may.
  function openOutside(link, isNewTab) {
    const parent = host();
    const helper = parent.document.createElement("a");
    helper.href = link.href;
    helper.rel = "noopener noreferrer";
    helper.target = isNewTab ? "_blank" : "_self";
    parent.document.body.append(helper);
    helper.click();
    helper.remove();
  }

  function onClick(event) {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      copyText(copy);
      return;
    }
    const dot = event.target.closest("circle[data-checkpoint]");
    if (dot) {
      const url = new URL(window.location.href);
      url.searchParams.set("checkpoint", dot.dataset.checkpoint);
      go(url, true);
      return;
    }
    const link = event.target.closest("a[href]");
    const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
    if (!link) {
      return;
    }
    if (link.target && host()) {
      event.preventDefault();
      openOutside(link, link.target === "_blank" || !isPlain);
    } else if (!link.target && isPlain && link.pathname === window.location.pathname && parts(document).length) {
      event.preventDefault();
      go(link.href, true);
    }
  }

  function onSubmit(event) {
    if (event.target.matches("form[data-swap]")) {
      event.preventDefault();
      const url = new URL(event.target.action);
      url.search = new URLSearchParams(new FormData(event.target)).toString();
      go(url, true);
    }
  }

  async function copyText(button) {
    const text = document.getElementById(button.dataset.copy)?.textContent ?? "";
    let isCopied = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      isCopied = copyBySelection(button.dataset.copy); // plain http has no clipboard
    }
    const name = button.textContent;
    button.textContent = isCopied ? "Copied" : "Press Ctrl+C";
    announce(isCopied ? "Copied" : "The text is selected: press Ctrl+C");
    window.setTimeout(() => (button.textContent = name), 2000);
  }

  function copyBySelection(id) {
    const selection = document.getSelection();
    selection.selectAllChildren(document.getElementById(id));
    const isCopied = document.execCommand("copy");
    if (isCopied) {
      selection.removeAllRanges();
    }
    return isCopied;
  }

  followTheme(); // before the first paint
  document.addEventListener("DOMContentLoaded", () => {
    remember(document);
    showTimes(document);
    for (const kind of ["pointerdown", "keydown"]) {
      document.addEventListener(kind, () => (lastInput = Date.now()), true);
    }
    document.addEventListener("click", onClick);
    document.addEventListener("submit", onSubmit);
    window.addEventListener("popstate", () => go(window.location.href, false));
    window.addEventListener("storage", followTheme);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", followTheme);
    const parent = host();
    if (parent) {
      const watcher = new MutationObserver(followTheme);
      watcher.observe(parent.document.documentElement, { attributes: true, attributeFilter: ["class"] });
    }
    document.addEventListener("visibilitychange", () => {
      lastLook = document.hidden ? lastLook : 0;
    });
    tick();
  });
})();
