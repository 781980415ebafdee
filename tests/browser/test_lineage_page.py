"""The lineage page as people use it: in Airflow's UI, by mouse and keyboard, while a real training fails and is retried."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from airflow_provider.core.identity import TaskInstanceKey
from tests.browser import recorded
from tests.browser.conftest import SCREENSHOTS
from tests.stack.airflow_client import AirflowClient
from tests.stack.process import wait_until
from tests.stack.services import Stack
from tests.support.training_run import TrainingRun, driver_processes, kill

if TYPE_CHECKING:
    from playwright.sync_api import FrameLocator, Page

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
LogIn = Callable[..., "Page"]
TAB = "ray-train-lineage"
COLOURS_OF_AIRFLOW = """() => {
  const probe = document.createElement("div");
  probe.style.cssText = "background: var(--chakra-colors-bg); color: var(--chakra-colors-fg)";
  document.body.append(probe);
  const style = getComputedStyle(probe);
  const found = [style.backgroundColor, style.color];
  probe.remove();
  return found;
}"""


def tab_address(key: TaskInstanceKey) -> str:
    """Airflow's address of the tab."""
    return f"/dags/{key.dag_id}/runs/{quote(key.run_id, safe='')}/tasks/{key.task_id}/plugin/{TAB}"


def lineage(page: Page) -> FrameLocator:
    """The page inside Airflow's frame."""
    return page.frame_locator("iframe[title='Lineage']")


def shoot(page: Page, name: str) -> None:
    """Keep a screenshot to look at."""
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def shoot_frame(page: Page, name: str) -> None:
    """The whole of the frame's page, however long it is."""
    frame = next(f for f in page.frames if "/ray-train/" in f.url)
    alone = page.context.new_page()
    alone.emulate_media(
        color_scheme="dark" if frame.evaluate("document.documentElement.classList.contains('dark')") else "light"
    )
    alone.goto(frame.url)
    alone.locator("#main").wait_for()
    alone.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
    alone.close()


def serious_issues(page: Page) -> list[str]:
    """What axe finds in the lineage page, serious or worse."""
    from axe_playwright_python.sync_playwright import Axe

    frame = next(f for f in page.frames if "/ray-train/" in f.url)
    found: Any = Axe().run(frame)
    return [
        f"{v['id']}: {v['help']}: {v['nodes'][0]['html'][:200]}"
        for v in found.response["violations"]
        if v["impact"] in ("serious", "critical")
    ]


@pytest.fixture(scope="module")
def tasks(stack: Stack, airflow: AirflowClient) -> dict[str, TaskInstanceKey]:
    """Task instances with recorded experiments: every state, ten thousand checkpoints, one, and one that is away."""
    run_id = airflow.run_dag("recorded")
    airflow.wait_for_dag_run("recorded", run_id)
    keys = {
        t: TaskInstanceKey("recorded", run_id, t) for t in ("every_state", "ten_thousand", "one", "away", "nothing")
    }
    recorded.record(stack, airflow, keys["every_state"], recorded.every_state())
    recorded.record(stack, airflow, keys["ten_thousand"], recorded.ten_thousand())
    recorded.record(stack, airflow, keys["one"], recorded.one())
    recorded.record(stack, airflow, keys["away"], recorded.one())
    return keys


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_state_in_airflows_own_look(log_in: LogIn, tasks: dict[str, TaskInstanceKey], theme: str) -> None:
    page = log_in(theme=theme)
    alerts: list[str] = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(tab_address(tasks["every_state"]))
    frame = lineage(page)
    frame.get_by_role("heading", name="Timeline").wait_for()
    for state in ("committed", "pruned", "quarantined", "uncommitted"):
        assert frame.locator("#part-checkpoints tbody .badge", has_text=re.compile(f"^{state}$")).count() >= 1, state
    assert frame.get_by_text("warm-started from").count() >= 1
    assert frame.get_by_text("node 3 died at step 1200").count() >= 2
    ours = frame.locator("body").evaluate("e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color]")
    assert ours == page.evaluate(COLOURS_OF_AIRFLOW)
    shoot(page, f"every-state-{theme}")
    frame.locator("#part-checkpoints").get_by_role("link", name="checkpoint_000").last.click()
    frame.get_by_role("heading", name="Checkpoint checkpoint_000").wait_for()
    shoot_frame(page, f"every-state-{theme}-whole")
    assert serious_issues(page) == []
    assert alerts == []
    assert [e for e in errors if "Content Security Policy" in e] == []


def test_a_checkpoint_by_keyboard_and_its_snippet_in_the_clipboard(
    log_in: LogIn, tasks: dict[str, TaskInstanceKey]
) -> None:
    page = log_in()
    page.goto(tab_address(tasks["every_state"]))
    frame = lineage(page)
    link = frame.locator("#part-checkpoints tbody tr").first.get_by_role("link").first
    link.focus()
    page.keyboard.press("Enter")
    heading = frame.locator("h2#checkpoint")
    heading.wait_for()
    assert heading.evaluate("e => e === document.activeElement"), "a screen reader goes on where the reader is"
    copy = frame.locator("#copy-restore")
    copy.focus()
    page.keyboard.press("Enter")
    frame.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert 'restore={"mode": "explicit", "checkpoint": "attempts/000002/' in copied
    shoot(page, "checkpoint")
    frame.get_by_role("link", name="Close").click()
    heading.wait_for(state="detached")
    assert frame.locator("[data-select]:focus").count() == 1, "focus is back on the checkpoint"


def test_ten_thousand_checkpoints(log_in: LogIn, tasks: dict[str, TaskInstanceKey]) -> None:
    page = log_in(theme="dark")
    page.goto(tab_address(tasks["ten_thousand"]))
    frame = lineage(page)
    frame.get_by_text("1 to 100 of 10000").wait_for()
    assert frame.locator("circle").count() <= 900
    assert frame.locator("*").count() < 6000
    shoot(page, "ten-thousand")
    frame.get_by_role("link", name="Next").click()
    frame.get_by_text("101 to 200 of 10000").wait_for()
    frame.get_by_label("Order").select_option("lowest")
    frame.get_by_role("button", name="Apply").click()
    frame.get_by_text("1 to 100 of 10000").wait_for()
    assert frame.get_by_label("Order").input_value() == "lowest"
    frame.locator("circle").nth(400).click(force=True)
    frame.locator("h2#checkpoint").wait_for()
    shoot_frame(page, "ten-thousand-whole")
    assert serious_issues(page) == []


def test_one_checkpoint_nothing_and_a_bucket_that_is_away(
    log_in: LogIn, stack: Stack, tasks: dict[str, TaskInstanceKey]
) -> None:
    page = log_in()
    page.goto(tab_address(tasks["one"]))
    lineage(page).get_by_text("1 to 1 of 1").wait_for()
    shoot(page, "one")
    assert serious_issues(page) == []
    page.goto(tab_address(tasks["nothing"]))
    lineage(page).get_by_text("has recorded no Ray Train experiment").wait_for()
    shoot(page, "nothing")
    gate = stack.gates["s3"]
    gate.cut()
    try:
        page.goto(tab_address(tasks["away"]))
        lineage(page).get_by_role("alert").wait_for()
        shoot(page, "bucket-away")
        assert serious_issues(page) == []
    finally:
        gate.release_all()
    lineage(page).get_by_text("1 to 1 of 1").wait_for(timeout=60_000)


def test_a_user_without_rights_sees_nothing(log_in: LogIn, stack: Stack, tasks: dict[str, TaskInstanceKey]) -> None:
    page = log_in(stack.airflow.visitor)
    key = tasks["every_state"]
    query = f"dag_id={key.dag_id}&run_id={quote(key.run_id, safe='')}&task_id={key.task_id}"
    answer = page.goto(f"/ray-train/lineage?{query}")
    assert answer is not None
    assert answer.status == 403
    shoot(page, "no-rights")
    assert "checkpoint" not in page.content()
    page.goto("/ray-train/experiments")
    assert key.task_id not in page.content()
    assert "models/browser" not in page.content()


def test_the_lists_lead_to_the_pages(log_in: LogIn, tasks: dict[str, TaskInstanceKey]) -> None:
    page = log_in()
    key = tasks["one"]
    page.goto(f"/dags/{key.dag_id}/runs/{quote(key.run_id, safe='')}/plugin/ray-train-lineage-of-run")
    lineage(page).get_by_role("link", name="ten_thousand").wait_for()
    shoot(page, "dag-run")
    lineage(page).get_by_role("link", name="every_state").click()
    lineage(page).get_by_role("heading", name="Timeline").wait_for()
    page.goto("/plugin/ray-train")
    listed = page.frame_locator("iframe[title='Ray Train lineage']")
    listed.get_by_role("link", name="every_state").wait_for()
    shoot(page, "browse")
    # A link to Airflow's own page moves Airflow's window, although the frame may not.
    listed.get_by_role("link", name="recorded", exact=True).first.click()
    page.wait_for_url("**/dags/recorded")


@pytest.mark.timeout(900)
def test_the_page_follows_a_training_through_failure_retry_and_clear(
    log_in: LogIn, stack: Stack, airflow: AirflowClient
) -> None:
    run = TrainingRun(
        stack, airflow, "train_deferred", airflow.run_dag("train_deferred", conf={"epochs": 6, "epoch_seconds": 2})
    )
    key = TaskInstanceKey(*run.key)
    page = log_in()
    airflow.wait_for_task(*run.key, states={"running", "deferred"}, timeout_s=120)
    page.goto(tab_address(key))
    frame = lineage(page)
    frame.locator("#part-checkpoints tbody tr").nth(1).wait_for(timeout=180_000)
    shoot(page, "live-training")
    frame.locator("#part-checkpoints tbody").get_by_role("link").last.click()
    frame.locator("h2#checkpoint").wait_for()
    frame.locator("#close-detail").focus()
    assert kill(driver_processes(stack.ray)), "the fault did not fire"
    frame.locator("#part-attempts tbody th", has_text="g1/a2").wait_for(timeout=180_000)
    frame.locator("#part-attempts").get_by_text("restored from").wait_for(timeout=120_000)
    shoot(page, "live-retry")
    focused = frame.locator("body").evaluate("() => document.activeElement.id")
    assert focused == "close-detail", "what changes around a reader leaves the focus where it was"
    frame.locator("#part-summary header .badge", has_text=re.compile("^success$")).wait_for(timeout=240_000)
    assert frame.locator("#part-timeline li.attempt").count() == 2
    assert frame.locator("#part-timeline li.try").count() == 2
    shoot(page, "live-done")
    shoot_frame(page, "live-done-whole")
    assert serious_issues(page) == []
    clear_by_mouse(page)
    frame.locator("#part-attempts tbody th", has_text="g2/a1").wait_for(timeout=240_000)
    shoot(page, "live-cleared")
    wait_until(lambda: run.task()["state"] == "success", timeout_s=240, what="the cleared training", every_s=1.0)
    frame.locator("#part-summary header .badge", has_text=re.compile("^success$")).wait_for(timeout=60_000)
    shoot(page, "live-end")


def clear_by_mouse(page: Page) -> None:
    """Airflow's own button, which is called by its key, and its dialog."""
    page.get_by_role("button", name=re.compile("to clear|clear task instance", re.IGNORECASE)).first.click()
    dialog = page.get_by_role("dialog")
    shoot(page, "live-clear-dialog")
    dialog.get_by_role("button", name=re.compile("confirm", re.IGNORECASE)).last.click()
