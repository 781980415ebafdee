"""The steps of a driver: first look, sign of life, carry over, restore, train, outcome.

After runtime/driver.py, standing.py, fit_loop.py, fencing.py and ending.py; the restore point is resolved by
runtime/restoring.py itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_provider.core.job import EXIT_CANCELLED, EXIT_FAILED, EXIT_SUPERSEDED
from tests.model.findings import SECOND_RUN
from tests.model.restore import Files, Left, resolve_point
from tests.model.rules import Move, World
from tests.model.state import (
    COPY,
    DEAD,
    NOBODY,
    PER_ATTEMPT,
    SCRATCH,
    Attempt,
    State,
    checkpoint_name,
    final_stop,
    is_superseded,
    progress,
    put_attempt,
    put_driver,
    ref,
)
from tests.model.stops import FINISHING, STARTING

Step = Callable[[State, int, World], Iterator[Move]]


def name(d: int) -> str:
    return f"driver {d + 1}"


def ends(s: State, d: int, status: str, code: int = 0) -> State:
    """The process ends; its cluster says so if it is still the one that Airflow asks."""
    x = s.drivers[d]
    s = put_driver(s, d, pc=DEAD, read=(), doomed=())
    if x.session == s.session and s.attempts[x.attempt].driver == d:
        s = put_attempt(s, x.attempt, job=status, exit=code)
    return s


def exits(s: State, d: int, why: str) -> Move:
    return Move(f"{name(d)}: {why}: exits as superseded", ends(s, d, "FAILED", EXIT_SUPERSEDED))


def has_newer_claim(s: State, d: int, w: World) -> bool:
    a = s.attempts[s.drivers[d].attempt]
    if w.mistake == "no fence between generations":
        return any(o.generation == a.generation and o.rank > a.rank for o in s.attempts)
    return is_superseded(s, s.drivers[d].attempt)


def is_stop_wanted(s: State, d: int) -> bool:
    x = s.drivers[d]
    return bool(s.attempts[x.attempt].stops - x.ignored) or final_stop(s, x.attempt)


def is_elsewhere(s: State, d: int, w: World) -> bool:
    return s.attempts[s.drivers[d].attempt].alive not in (NOBODY, d) and w.mistake != "no run uid"


def is_told_off(s: State, d: int, w: World) -> bool:
    """Whether it will find another run's manifest before it writes its first."""
    x = s.drivers[d]
    is_before = x.fit == 1 and x.pc in (
        *STARTING,
        "carry over",
        "carry check",
        "read manifests",
        "resolve",
        "look again",
    )
    is_looking = w.mistake not in ("no run uid", "no second look")
    return is_before and is_looking and s.attempts[x.attempt].manifest is not None


def polls(s: State, d: int, w: World) -> Iterator[Move]:
    """`ClaimWatch`: whatever the training does, a look may come between. Nothing found is no step."""
    x = s.drivers[d]
    if x.pc in STARTING or x.pc in FINISHING or x.pc in ("cancel", "write cancel"):
        return
    if has_newer_claim(s, d, w):
        yield exits(s, d, "poll finds a newer claim")
    elif is_elsewhere(s, d, w):
        yield exits(s, d, "poll finds another run of its attempt")
    elif is_stop_wanted(s, d):
        yield Move(f"{name(d)}: poll finds a stop", put_driver(s, d, pc="cancel", read=(), doomed=()))
    if is_elsewhere(s, d, w):
        yield Move(f"{name(d)}: writes alive again", put_attempt(s, x.attempt, alive=d))


# --- start ---------------------------------------------------------------------------------------------------------------


def pending(s: State, d: int, _: World) -> Iterator[Move]:
    x = s.drivers[d]
    started = put_driver(s, d, pc="first look")
    if s.attempts[x.attempt].driver == d and x.session == s.session:
        started = put_attempt(started, x.attempt, job="RUNNING")
    yield Move(f"Ray starts {name(d)} of {ref(s.attempts[x.attempt])}", started)


def first_look(s: State, d: int, w: World) -> Iterator[Move]:
    x = s.drivers[d]
    a = s.attempts[x.attempt]
    is_obeying = w.mistake != "stops are not obeyed at the start"
    if has_newer_claim(s, d, w):
        yield exits(s, d, "first look finds a newer claim")
    elif a.manifest is not None and w.mistake != "no run uid":
        yield exits(s, d, "first look finds a manifest of its own attempt")
    elif is_elsewhere(s, d, w):
        yield exits(s, d, "first look finds another run of its attempt")
    elif is_stop_wanted(s, d) and is_obeying:
        yield Move(f"{name(d)}: first look finds a stop", put_driver(s, d, pc="cancel"))
    else:
        ignored = frozenset() if is_obeying else a.stops
        looked = put_driver(s, d, pc="write alive", ignored=ignored)
        if w.bounds.splits_first_look:
            yield Move(f"{name(d)}: first look finds nothing", looked)
        else:
            yield from write_alive(looked, d, w)


def write_alive(s: State, d: int, w: World) -> Iterator[Move]:
    x = s.drivers[d]
    following = "read manifests" if w.mistake == "no carry-over" else "carry over"
    written = put_driver(put_attempt(s, x.attempt, alive=d), d, pc=following)
    yield Move(f"{name(d)}: writes alive of {ref(s.attempts[x.attempt])}", written)


def carry_over(s: State, d: int, w: World) -> Iterator[Move]:
    """An earlier success of the generation becomes this attempt's, an accepted one unless a clear asked for more."""
    a = s.attempts[s.drivers[d].attempt]
    earlier = [o for o in s.attempts if o.generation == a.generation and o.number < a.number]
    carried = next((o for o in earlier if o.outcome == "success" and not _is_trained_on(s, o, a, w)), None)
    if carried is not None:
        text = f"{name(d)}: an earlier attempt had finished already"
        is_lost = carried.accepted and any(o.answers for o in _since(s, carried, a))
        violation = "G9 a clear's training is given up for the result before it" if is_lost else ""
        yield Move(text, put_driver(s, d, pc="carry check"), violation)
    else:
        yield Move(f"{name(d)}: no earlier success", put_driver(s, d, pc="read manifests"))


def _since(s: State, earlier: Attempt, a: Attempt) -> list[Attempt]:
    return [o for o in s.attempts if o.generation == a.generation and earlier.number < o.number <= a.number]


def _is_trained_on(s: State, earlier: Attempt, a: Attempt, w: World) -> bool:
    if not earlier.accepted:
        return False
    if w.mistake == "an accepted success is always trained on":
        return True
    if w.mistake == "only the own claim's clear counts":
        return a.answers
    return any(o.answers for o in _since(s, earlier, a))


# --- restore -------------------------------------------------------------------------------------------------------------


def read_manifests(s: State, d: int, w: World) -> Iterator[Move]:
    x = s.drivers[d]
    a = s.attempts[x.attempt]
    found = tuple((o.manifest, o.commits) for o in s.attempts)
    if w.mistake == "manifest before the claim" and x.fit == 1:
        found = (*a.early, *((None, 0) for _ in s.attempts[len(a.early) :]))
    has_own = x.fit > 1 and w.mistake != "a refit forgets its own commits"
    mine = tuple(
        Left(o.rank, i, manifest, tuple(i * PER_ATTEMPT + n for n in range(commits)))
        for i, (o, (manifest, commits)) in enumerate(zip(s.attempts, found, strict=True))
        if o.generation == a.generation and o.number < a.number + has_own
    )
    yield Move(f"{name(d)}: reads the manifests", put_driver(s, d, pc="resolve", read=mine))


def resolve(s: State, d: int, w: World) -> Iterator[Move]:
    """List and verify; a retired checkpoint is copied first. Then `restored.json`."""
    x = s.drivers[d]
    a = s.attempts[x.attempt]
    known = {c for left in x.read for c in (*(left.manifest or ()), *left.recorded)}
    files = Files(frozenset(known & s.exist), frozenset(known & s.corrupt & s.exist), s.quarantine & known)
    point = resolve_point(a.rank, x.attempt, x.read, files)
    if point is None:
        text = f"{name(d)}: no committed checkpoint can be restored: refuses"
        refused = s if is_superseded(s, x.attempt) else put_attempt(s, x.attempt, outcome="checkpoint")
        violation = "" if s.corrupt or is_superseded(s, x.attempt) else "G2 a restore is refused without need"
        yield Move(text, ends(refused, d, "FAILED", EXIT_FAILED), violation)
        return
    chosen, manifest, skipped = point.chosen, point.manifest, point.skipped
    is_copied = chosen == x.attempt * PER_ATTEMPT + COPY and point.copied != SCRATCH
    if is_copied and w.mistake == "retired checkpoint used in place":
        chosen = point.copied
        manifest = tuple(point.copied if c % PER_ATTEMPT == COPY else c for c in manifest)
    elif chosen == x.attempt * PER_ATTEMPT + COPY:
        # A refit may restore its own copy in place, or copy it again: it holds the same checkpoint.
        copied = a.copied if point.copied in (SCRATCH, chosen) else point.copied
        s = put_attempt(s, x.attempt, copied=copied)._replace(exist=s.exist | {chosen})
    s = s._replace(quarantine=s.quarantine | skipped)
    text = f"{name(d)}: restores {'nothing, from the start' if chosen == SCRATCH else checkpoint_name(s, chosen)}"
    done = put_driver(put_attempt(s, x.attempt, restored=chosen), d, pc="look again", read=manifest)
    yield Move(text, done, wrong_restore(s, d, chosen, w))


def wrong_restore(s: State, d: int, chosen: int, w: World) -> str:
    """What a resolved restore point says about G2, G3 and G9."""
    x = s.drivers[d]
    if is_superseded(s, x.attempt):
        return ""
    a = s.attempts[x.attempt]
    alive = [c for c in s.good if c in s.exist and c not in s.corrupt and c not in s.quarantine]
    mine = [c for c in alive if s.attempts[c // PER_ATTEMPT].generation == a.generation]
    if a.writer not in (NOBODY, d):
        return ""  # a twin's: whether this one goes on is judged where it writes
    best = max((progress(s, c) for c in mine), default=None)
    if best is not None and (chosen == SCRATCH or progress(s, chosen) < best):
        return "G2 a committed, valid checkpoint is ignored"
    if chosen in s.corrupt:
        return "G3 a broken checkpoint is restored"
    first = min((o for o in s.attempts if o.generation == a.generation), key=lambda o: o.number)
    for o in s.attempts:
        is_asked = any(p.cleared for p in _since(s, o, a)) if o.generation == a.generation else first.cleared
        if o.rank < a.rank and o.is_success and not is_asked:
            return "G9 a finished training is trained again without a clear"
    return ""


def look_again(s: State, d: int, w: World) -> Iterator[Move]:
    """Before the first manifest: another run may have begun since the first look. Only `twins` has it as a step of its own."""
    if is_told_off(s, d, w):
        yield exits(s, d, "finds a manifest of its own attempt before it writes one")
    elif w.bounds.splits_first_look:
        a = s.attempts[s.drivers[d].attempt]
        is_over = s.drivers[d].fit == 1 and a.manifest is not None
        violation = (
            "G1 two runs under one attempt: the second goes on over the manifest of the first" if is_over else ""
        )
        yield Move(f"{name(d)}: finds no other run's manifest", put_driver(s, d, pc="write manifest"), violation)
    else:
        yield from write_manifest(s, d, w)


def write_manifest(s: State, d: int, w: World) -> Iterator[Move]:
    x = s.drivers[d]
    a = s.attempts[x.attempt]
    is_second = a.writer not in (NOBODY, d)
    violation = ""
    if is_second:
        violation = "G1 two runs under one attempt: the second overwrites the manifest of the first"
        violation = SECOND_RUN if w.bounds.splits_first_look else violation
    done = put_driver(put_attempt(s, x.attempt, manifest=x.read, writer=d), d, pc="train", read=())
    yield Move(f"{name(d)}: writes the manifest of {ref(a)}", done, violation)


# --- train ---------------------------------------------------------------------------------------------------------------


def train(s: State, d: int, w: World) -> Iterator[Move]:
    """create_dir asks the fence; the loop ends after the last commit; the cluster's failures are fitted again."""
    x = s.drivers[d]
    if x.commits >= w.bounds.commits:
        yield Move(f"{name(d)}: the loop is over", put_driver(s, d, pc="outcome check"))
    elif has_newer_claim(s, d, w):
        yield exits(s, d, "create_dir is refused")
    else:
        yield Move(f"{name(d)}: create_dir passes, uploads", put_driver(s, d, pc="commit"))
    if w.can(s, "refit"):
        again = put_driver(s._replace(faults=s.faults - 1), d, pc="read manifests", fit=2)
        yield Move(f"{name(d)}: a worker node dies: fits again", again, is_fault=True)


def commit(s: State, d: int, w: World) -> Iterator[Move]:
    """Ray writes its manifest before any callback, then deletes by retention."""
    x = s.drivers[d]
    a = s.attempts[x.attempt]
    new = x.attempt * PER_ATTEMPT + x.commits
    listed = (*(a.manifest or ()), new)
    kept, doomed = listed[-w.bounds.keep :], listed[: -w.bounds.keep]
    is_late = is_superseded(s, x.attempt)
    violation = ""
    if a.writer != d:
        violation = SECOND_RUN if w.bounds.splits_first_look else "G1 two runs commit under one attempt"
    s2 = put_attempt(s, x.attempt, manifest=kept, commits=max(a.commits, x.commits + 1))
    s2 = s2._replace(exist=s.exist | {new}, good=s.good if is_late else s.good | {new})
    done = put_driver(s2, d, pc="delete check" if doomed else "train", commits=x.commits + 1, doomed=doomed)
    late = " (too late: superseded)" if is_late else ""
    yield Move(f"{name(d)}: commits {checkpoint_name(s, new)}{late}", done, violation)


def delete_check(s: State, d: int, w: World) -> Iterator[Move]:
    if has_newer_claim(s, d, w):
        yield exits(s, d, "delete_dir is refused")
    else:
        yield Move(f"{name(d)}: delete_dir passes the check", put_driver(s, d, pc="delete"))


def delete(s: State, d: int, _: World) -> Iterator[Move]:
    x = s.drivers[d]
    gone = frozenset(x.doomed)
    text = f"{name(d)}: deletes {', '.join(checkpoint_name(s, c) for c in x.doomed)}"
    done = put_driver(s._replace(exist=s.exist - gone), d, pc="train", doomed=())
    yield Move(text, done, wrong_delete(s, x.attempt, gone & s.exist))


def wrong_delete(s: State, a: int, gone: frozenset[int]) -> str:
    """G12: nothing that a newer attempt restored or lists."""
    for o in s.attempts:
        if o.rank > s.attempts[a].rank and o.restored >= 0:
            needed = o.manifest if o.manifest is not None else (o.restored,)
            if gone & set(needed):
                return "G12 an older attempt deletes what a newer one restored or lists"
    return ""


# --- the end -------------------------------------------------------------------------------------------------------------


def check_then(following: str, what: str) -> Step:
    """No outcome is written once a newer claim exists."""

    def step(s: State, d: int, w: World) -> Iterator[Move]:
        if has_newer_claim(s, d, w):
            yield exits(s, d, f"no {what}: a newer claim exists")
        else:
            yield Move(f"{name(d)}: no newer claim before the {what}", put_driver(s, d, pc=following))

    return step


def write_outcome(s: State, d: int, _: World) -> Iterator[Move]:
    x = s.drivers[d]
    is_late = is_superseded(s, x.attempt)
    done = ends(put_attempt(s, x.attempt, outcome="success", is_late=is_late), d, "SUCCEEDED")
    yield Move(f"{name(d)}: writes the outcome success of {ref(s.attempts[x.attempt])}", done)


def write_cancel(s: State, d: int, _: World) -> Iterator[Move]:
    x = s.drivers[d]
    done = ends(put_attempt(s, x.attempt, outcome="stopped"), d, "FAILED", EXIT_CANCELLED)
    yield Move(f"{name(d)}: writes the outcome stopped of {ref(s.attempts[x.attempt])}", done)


STEPS: dict[str, Step] = {
    "pending": pending,
    "first look": first_look,
    "write alive": write_alive,
    "carry over": carry_over,
    "carry check": check_then("write outcome", "carried outcome"),
    "read manifests": read_manifests,
    "resolve": resolve,
    "look again": look_again,
    "write manifest": write_manifest,
    "train": train,
    "commit": commit,
    "delete check": delete_check,
    "delete": delete,
    "outcome check": check_then("write outcome", "outcome"),
    "write outcome": write_outcome,
    "cancel": check_then("write cancel", "cancelled outcome"),
    "write cancel": write_cancel,
}
