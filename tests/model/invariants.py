"""What must hold where nothing more will happen by itself; the steps check the rest as they are taken."""

from __future__ import annotations

from tests.model.drivers import has_newer_claim, is_elsewhere, is_stop_wanted, is_told_off
from tests.model.findings import SECOND_RUN
from tests.model.rules import World
from tests.model.state import DEAD, ENDED, State
from tests.model.stops import FINISHING, STARTING
from tests.model.tries import MAX_OWNERS


def broken(s: State, w: World) -> str:
    """G1 and G4 in a quiet state: whatever lives now lives on."""
    if not is_quiet(s, w):
        return ""
    live = [d for d in range(len(s.drivers)) if lives_on(s, d, w)]
    if any(s.drivers[d].pc == "write manifest" and s.attempts[s.drivers[d].attempt].manifest is not None for d in live):
        return SECOND_RUN  # the freeze that remains
    if len(_at_most(s, live, w)) > 1:
        return "G1 two live drivers, and nothing ends either"
    if live and s.task in ("success", "failed"):
        return "G4 an orphan: the task is over for good, a driver lives on and nothing ends it"
    return ""


def _at_most(s: State, live: list[int], w: World) -> list[int]:
    """Of several runs of one attempt that have not looked yet, the first look lets one pass."""
    if w.mistake == "no run uid":
        return live
    kept = []
    for d in live:
        is_twin = any(s.drivers[o].attempt == s.drivers[d].attempt for o in live if o != d)
        has_looked = s.drivers[d].pc not in STARTING
        if has_looked or not is_twin or all(s.drivers[o].attempt != s.drivers[d].attempt for o in kept):
            kept.append(d)
    return kept


def is_quiet(s: State, w: World) -> bool:
    """Airflow's side has nothing left to do. A replaced process may be dead by now, so nobody may rely on it."""
    if s.is_silent or s.listener.pc:
        return False
    x = s.tries[s.current]
    if s.task in ("success", "failed"):
        return not (w.bounds.times_out and x.kill)
    return s.task == "running" and x.pc == "wait" and not x.kill and s.owners[-1].by == s.current


def lives_on(s: State, d: int, w: World) -> bool:
    """No rule will end this driver before its training ends."""
    x = s.drivers[d]
    if x.pc == DEAD or x.pc in FINISHING or x.pc in ("cancel", "write cancel"):
        return False
    if has_newer_claim(s, d, w) or is_elsewhere(s, d, w) or is_told_off(s, d, w):
        return False
    is_blind = w.mistake == "stops are not obeyed at the start" and x.pc in ("pending", "first look")
    return is_blind or not is_stop_wanted(s, d)


def is_end(s: State, w: World) -> bool:
    """An end of the task, or a bound of this exploration."""
    x = s.tries[s.current]
    if s.task in ("success", "failed"):
        return True
    if s.task == "retry" or x.pc == ENDED:
        return len(s.tries) >= w.bounds.tries
    is_full = len(s.attempts) >= w.bounds.attempts
    return (
        (x.pc == "own" and len(s.owners) >= MAX_OWNERS)
        or (x.pc == "claim" and is_full)
        or (x.pc == "POST" and len(s.drivers) >= w.bounds.drivers)
    )
