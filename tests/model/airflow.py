"""What Airflow and people do: automatic retries, lost heartbeats, stale events, clears, marks, DAG runs made again."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.rules import Move, World
from tests.model.state import ENDED, GONE, NOBODY, Listener, State, Try, newest_attempt, put_try, sub
from tests.model.stops import killed
from tests.model.tries import name

DONE = ("success", "failed")
BEFORE_WAIT = ("announce", "own", "set marker")


def moves(s: State, w: World) -> Iterator[Move]:
    if len(s.tries) < w.bounds.tries:
        yield from _next_tries(s, w)
        yield from _clears(s, w)
        if s.recreations:
            text = f"Airflow: the DAG run is deleted and created again, try {len(s.tries) + 1} starts"
            yield Move(text, _recreated(s), is_fault=True)
    if s.marks and s.task in ("running", "retry"):
        yield from _marks(s, w)


def begin(s: State, *, number: int, max_tries: int, clear_number: int, is_same_id: bool = False) -> State:
    """A new try starts and the one before is archived; its process may go on until it is killed, or for ever."""
    tries = s.tries if is_same_id else tuple(x._replace(weak=False) for x in s.tries)
    if tries[s.current].pc == ENDED:
        tries = sub(tries, s.current, GONE)
    identity = s.mark or len(tries) + 1
    new = Try("announce", number, max_tries, clear_number, identity, cleared=s.clear)
    return s._replace(tries=(*tries, new), current=len(tries), task="running")


def _again(s: State, *, is_same_id: bool = False) -> State:
    x = s.tries[s.current]
    return begin(s, number=x.number + 1, max_tries=x.max_tries, clear_number=x.clear_number, is_same_id=is_same_id)


def _next_tries(s: State, w: World) -> Iterator[Move]:
    x = s.tries[s.current]
    following = f"try {len(s.tries) + 1} starts"
    if s.task == "retry":
        yield Move(f"Airflow: automatic retry, {following}", _again(s))
    if s.task != "running" or x.pc == ENDED:
        return
    if w.can(s, "heartbeat"):
        spent = s._replace(faults=s.faults - 1)
        text = f"Airflow: no heartbeat of {name(s.current)} (dead or frozen), {following}"
        yield Move(text, _again(spent), is_fault=True)
    if s.stales and x.pc not in BEFORE_WAIT and x.is_following:
        spent = put_try(s._replace(stales=s.stales - 1), s.current, weak=True)
        text = f"Airflow: a stale event replaces {name(s.current)} under the same id, {following}"
        yield Move(text, _again(spent, is_same_id=True), is_fault=True)


def _clears(s: State, w: World) -> Iterator[Move]:
    if not s.clears:
        return
    x = s.tries[s.current]
    a = newest_attempt(s)
    is_accepted = a != NOBODY and s.attempts[a].accepted
    truth = 1 if w.bounds.sees_clear else 2
    spent = s._replace(clears=s.clears - 1, clear=truth, cleared_accepted=is_accepted)
    how = "max_tries raised" if w.bounds.sees_clear else "only clear_number raised"
    is_alive = s.task == "running" and x.pc != ENDED and not x.kill
    for is_killed in (False, True) if is_alive and w.bounds.kills else (False,):
        before = killed(spent, s.current) if is_killed else spent
        after = begin(
            before,
            number=x.number + 1,
            max_tries=x.max_tries + int(w.bounds.sees_clear),
            clear_number=x.clear_number + 1,
        )
        kill = f", on_kill comes to {name(s.current)}" if is_killed else ""
        yield Move(f"Airflow: cleared ({how}){kill}, try {len(s.tries) + 1} starts", after, is_fault=True)


def _recreated(s: State) -> State:
    a = newest_attempt(s)
    is_accepted = a != NOBODY and s.attempts[a].accepted
    empty = s._replace(recreations=s.recreations - 1, mark=0, is_kept=False, clear=1, cleared_accepted=is_accepted)
    return begin(empty, number=1, max_tries=0, clear_number=0)


def _marks(s: State, w: World) -> Iterator[Move]:
    x = s.tries[s.current]
    is_alive = s.task == "running" and x.pc != ENDED and not x.kill
    spent = s._replace(marks=s.marks - 1, task="failed")
    if w.bounds.times_out:
        if is_alive and x.pc == "wait":
            text = f"Airflow: execution_timeout, no retries left: on_kill comes to {name(s.current)}"
            yield Move(text, killed(spent, s.current, is_timed_out=True), is_fault=True)
        return
    if x.pc == "announce" and not w.bounds.marks_early:
        return
    if x.pc == "announce" and (not s.is_kept or w.mistake == "the listener reads XComs only"):
        text = f"Airflow: marked failed before {name(s.current)} pushed its record: the listener knows of nothing"
        yield Move(text, spent, is_fault=True)
        return
    spent = spent._replace(listener=Listener("own", (x.number, x.max_tries, x.clear_number)))
    for is_killed in (False, True) if is_alive and w.bounds.kills else (False,):
        after = killed(spent, s.current) if is_killed else spent
        kill = f", on_kill comes to {name(s.current)}" if is_killed else ""
        yield Move(f"Airflow: marked failed by a person{kill}; the listener starts", after, is_fault=True)
