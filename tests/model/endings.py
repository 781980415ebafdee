"""The steps of a try from the wait to the result: poll, own check, conclude, accept, publish.

After triggers/waiter.py, operators/session.py and operators/collecting.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.decisions import conclude, is_wait_over
from tests.model.rules import Move, World
from tests.model.state import DEAD, State, newest_attempt, put_attempt, put_try, ref
from tests.model.tries import Step, away, decide_again, end_try, is_accepted, looked, name, sight_of, superseded


def wait(s: State, t: int, _: World) -> Iterator[Move]:
    """One poll; limits count as passed as soon as they may."""
    x = s.tries[t]
    a = s.attempts[x.attempt]
    status = sight_of(s, a)
    is_seen = status not in ("", "silent")
    is_live = any(d.attempt == x.attempt and d.pc != DEAD for d in s.drivers)
    over = is_wait_over(
        status,
        s.session,
        a.session,
        is_fresh=not is_seen and a.alive >= 0 and is_live,
        has_outcome=not is_seen and bool(a.outcome),
    )
    what = {"": "404", "silent": "no answer"}.get(status, status)
    if over == "unreachable":
        yield Move(f"{name(t)}: polls {ref(a)}: no answer for long: fails", end_try(s, t, "retry"))
    elif over:
        yield Move(f"{name(t)}: polls {ref(a)}: {what}: the wait is over ({over})", put_try(s, t, pc="finish: look"))


def finish_look(s: State, t: int, w: World) -> Iterator[Move]:
    yield looked(s, t, w, "before concluding", "finish: newest claim")
    yield from away(s, t, w)


def finish_newest(s: State, t: int, w: World) -> Iterator[Move]:
    x = s.tries[t]
    if newest_attempt(s) == x.attempt:
        yield Move(
            f"{name(t)}: {ref(s.attempts[x.attempt])} is the newest claim", put_try(s, t, pc="conclude: records")
        )
    else:
        yield Move(f"{name(t)}: a newer claim exists: decides again", decide_again(s, t))
    yield from away(s, t, w)


def conclude_records(s: State, t: int, w: World) -> Iterator[Move]:
    a = s.attempts[s.tries[t].attempt]
    found = put_try(s, t, pc="conclude: job", read=(a.outcome, a.filled, a.stops))
    yield Move(f"{name(t)}: reads how {ref(a)} ended ({a.outcome or a.filled or 'no word'})", found)
    yield from away(s, t, w)


def conclude_job(s: State, t: int, w: World) -> Iterator[Move]:
    """`conclude_attempt` with what was read, then `_finish`."""
    x = s.tries[t]
    a = s.attempts[x.attempt]
    outcome, filled, stops = x.read
    end = conclude(
        outcome,
        filled,
        status=sight_of(s, a),
        exit_code=a.exit,
        has_stops=bool(stops),
        has_older_stops=bool(stops) and max(stops) < x.k,
    )
    text = f"{name(t)}: concludes {ref(a)}: {end.what}{': ' + end.reason if end.reason else ''}"
    if end.what == "success":
        yield Move(text, put_try(s, t, pc="accept", read=(end.filled, filled)))
    elif end.what == "not over" or (end.what == "taken away" and w.mistake != "no second decision after a stop"):
        yield Move(f"{text}: decides again", decide_again(s, t))
    else:
        if end.filled and not a.filled and not a.accepted:
            s = put_attempt(s, x.attempt, filled=end.filled)
        is_retried = end.is_retryable and end.what == "failed"
        violation = ""
        if not is_retried and t == s.current and s.task == "running" and outcome != "checkpoint":
            violation = "G4 a healthy try fails for good because a stop of ours hit its job"
        yield Move(f"{text}: fails", end_try(s, t, "retry" if is_retried else "final"), violation)


def accept(s: State, t: int, w: World) -> Iterator[Move]:
    """Set `accepted`; a conclusion that another process wrote first stands."""
    x = s.tries[t]
    a = s.attempts[x.attempt]
    filled, seen = x.read
    is_conflict = a.accepted or a.filled != seen
    accepted = s if is_conflict else put_attempt(s, x.attempt, accepted=True, filled=filled)
    yield Move(f"{name(t)}: accepts {ref(a)}", put_try(accepted, t, pc="publish", read=()))
    yield from away(s, t, w, written=accepted)


def publish(s: State, t: int, _: World) -> Iterator[Move]:
    x = s.tries[t]
    a = s.attempts[x.attempt]
    if not is_accepted(s, t):
        yield superseded(s, t, "before publishing: marker refused (404)")
        return
    is_old = s.cleared_accepted and s.clear == 1 and x.cleared == 1
    violation = "G9 a clear of a finished training is answered with the old result" if is_old else ""
    s = s._replace(mark=x.identity)
    yield Move(f"{name(t)}: publishes the result of {ref(a)}", end_try(s, t, "success"), violation)


STEPS: dict[str, Step] = {
    "wait": wait,
    "finish: look": finish_look,
    "finish: newest claim": finish_newest,
    "conclude: records": conclude_records,
    "conclude: job": conclude_job,
    "accept": accept,
    "publish": publish,
}
