"""Stops: of a try that restores over a live job, of on_kill, and of the listener.

After hooks/stop.py, operators/session.py (`kill`), triggers/ray_train.py (`on_kill`) and hooks/final_stop.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.decisions import is_kill_a_stop
from tests.model.rules import Move, World
from tests.model.state import (
    DEAD,
    ENDED,
    NOBODY,
    Listener,
    Owner,
    State,
    is_superseded,
    newest_attempt,
    put_attempt,
    put_driver,
    put_try,
    ref,
)
from tests.model.tries import MAX_OWNERS, Step, away, end_try, looked, name

FINISHING = ("finish", "outcome check", "write outcome", "carry check", "carry outcome")
"""From here on a driver ignores stops and SIGTERM: a finished training must not turn into a cancelled one."""
STARTING = ("pending", "first look", "write alive")
LIVE = ("PENDING", "RUNNING")


# --- what a stop does to the cluster -------------------------------------------------------------------------------------


def ray_stops(s: State, a: int) -> Iterator[tuple[str, State]]:
    """Ray ignores the stop of a PENDING job; a running driver may still leave its word between SIGTERM and SIGKILL."""
    job = s.attempts[a].job
    if job != "RUNNING":
        yield f"{ref(s.attempts[a])} is {job or 'unknown'}: without effect", s
        return
    d = s.attempts[a].driver
    dead = put_attempt(put_driver(s, d, pc=DEAD, read=(), doomed=()), a, job="STOPPED")
    yield f"{ref(s.attempts[a])} is RUNNING: driver {d + 1} is killed", dead
    if s.drivers[d].pc in STARTING or is_superseded(s, a) or s.attempts[a].outcome:
        return
    if s.drivers[d].pc in FINISHING:
        yield f"driver {d + 1} writes its success, then dies", put_attempt(dead, a, outcome="success")
    else:
        word = "stopped" if s.attempts[a].stops else "terminated"
        yield f"driver {d + 1} writes the outcome {word}, then dies", put_attempt(dead, a, outcome=word)


def wrong_stop(s: State, t: int, a: int, *, looked: bool) -> str:
    """G4: who isn't the newest owner when it looks stops nothing; who was replaced stops nobody's job."""
    x, newest = s.tries[t], len(s.owners)
    if s.attempts[a].job not in LIVE or s.is_silent:
        return ""
    if not looked and _acts_on(s, newest, a):
        return "G4 a process that is not the newest owner stops a job of a newer one"
    current = s.tries[s.current]
    is_running = s.task == "running" and current.pc != ENDED and current.k > 0
    is_theirs = is_running and current.attempt == a and _acts_on(s, current.k, a)
    if is_theirs and t != s.current and newest == x.k and s.attempts[a].job == "RUNNING":
        return "G4 a process that Airflow replaced stops the current try's job"
    return ""


def _acts_on(s: State, k: int, a: int) -> bool:
    return s.attempts[a].k == k or s.owners[k - 1].acted == a


# --- StopThenRestore -----------------------------------------------------------------------------------------------------


def stop_look(s: State, t: int, w: World) -> Iterator[Move]:
    if w.mistake == "stop without an owner check":
        is_newest = len(s.owners) == s.tries[t].k
        yield Move(f"{name(t)}: stops without looking", put_try(s, t, pc="stop: record", looked=is_newest))
        return
    yield looked(s, t, w, "before the stop", "stop: record", looked=True)
    yield from away(s, t, w)


def stop_record(s: State, t: int, w: World) -> Iterator[Move]:
    x = s.tries[t]
    a = s.attempts[x.attempt]
    written = put_attempt(s, x.attempt, stops=a.stops | {x.k})
    yield Move(f"{name(t)}: writes stop-{x.k} on {ref(a)}", put_try(written, t, pc="stop: POST"))
    yield from away(s, t, w, written=written)


def stop_post(s: State, t: int, _: World) -> Iterator[Move]:
    """Then it waits for the end, but no longer than a minute: the claim fences what is left."""
    x = s.tries[t]
    if s.is_silent:
        yield Move(f"{name(t)}: POSTs the stop: no answer: fails", end_try(s, t, "retry"))
        return
    violation = wrong_stop(s, t, x.attempt, looked=x.looked)
    for text, after in ray_stops(s, x.attempt):
        done = put_try(after, t, pc="claim", attempt=NOBODY, looked=True)
        yield Move(f"{name(t)}: POSTs the stop: {text}", done, violation)


STEPS: dict[str, Step] = {"stop: look": stop_look, "stop: record": stop_record, "stop: POST": stop_post}


# --- on_kill -------------------------------------------------------------------------------------------------------------


def killed(s: State, t: int, *, is_timed_out: bool = False) -> State:
    """Airflow calls on_kill: in the trigger of a deferred try, in the worker otherwise."""
    is_trigger = s.tries[t].pc == "wait" and not is_timed_out
    return put_try(s, t, kill="kill: owner" if is_trigger else "kill: state", is_timed_out=is_timed_out)


def kill(s: State, t: int, w: World) -> Iterator[Move]:
    x = s.tries[t]
    if x.kill == "kill: state":
        yield _kill_state(s, t)
    elif x.kill == "kill: owner":
        yield from _kill_owner(s, t, w)
    elif x.kill == "kill: record":
        a = s.attempts[x.attempt]
        written = put_attempt(s, x.attempt, stops=a.stops | {x.k})
        yield Move(f"{name(t)}: on_kill writes stop-{x.k} on {ref(a)}", put_try(written, t, kill="kill: POST"))
    else:
        violation = wrong_stop(s, t, x.attempt, looked=x.looked)
        if s.is_silent:
            yield Move(f"{name(t)}: on_kill POSTs the stop: no answer", _kill_over(s, t))
            return
        for text, after in ray_stops(s, x.attempt):
            yield Move(f"{name(t)}: on_kill POSTs the stop: {text}", _kill_over(after, t), violation)


def _kill_state(s: State, t: int) -> Move:
    """`decide_kill`, or `_kill_before_post` where there is no job yet. A replaced try may still find `restarting`."""
    x = s.tries[t]
    state = "running" if x.is_timed_out else s.task if t == s.current else "restarting"
    if not x.is_following:
        return Move(f"{name(t)}: on_kill finds no job and forbids the POST", put_try(s, t, kill="", forbidden=True))
    is_owner = len(s.owners) == x.k
    if is_kill_a_stop(state=state, is_owner=is_owner, is_timed_out=x.is_timed_out):
        text = f"{name(t)}: on_kill: the task is {state} and owner {x.k} is the newest: stops"
        return Move(text, put_try(s, t, kill="kill: owner", forbidden=True))
    return Move(f"{name(t)}: on_kill leaves the job (task {state}, newest owner: {is_owner})", _kill_over(s, t))


def _kill_owner(s: State, t: int, w: World) -> Iterator[Move]:
    """`record_stop` reads the newest owner."""
    x = s.tries[t]
    is_newest = len(s.owners) == x.k
    if is_newest or w.mistake == "stop without an owner check":
        go_on = put_try(s, t, kill="kill: record", looked=is_newest)
        yield Move(f"{name(t)}: on_kill reads the owners: {'mine' if is_newest else 'goes on anyway'}", go_on)
    else:
        yield Move(f"{name(t)}: on_kill: owner {len(s.owners)} is newer: no stop", _kill_over(s, t))
    if w.can(s, "outage"):
        spent = s._replace(faults=s.faults - 1)
        yield Move(f"{name(t)}: on_kill can't read the owners: no stop", _kill_over(spent, t), is_fault=True)


def _kill_over(s: State, t: int) -> State:
    """A killed trigger is gone; in a worker the main thread goes on until the SIGKILL."""
    if s.tries[t].pc == "wait":
        return end_try(s, t, "retry")
    return put_try(s, t, kill="", looked=True)


# --- the listener ---------------------------------------------------------------------------------------------------------


def listen(s: State, w: World) -> Iterator[Move]:
    """`stop_for_good`, in a thread of the API server."""
    x = s.listener
    if x.pc == "own":
        yield _listener_owns(s, w)
    elif x.pc == "read claim":
        a = newest_attempt(s)
        if a == NOBODY:
            yield Move("listener: no attempt was claimed yet", s._replace(listener=Listener()))
        elif s.attempts[a].outcome:
            yield Move(f"listener: {ref(s.attempts[a])} is over already", s._replace(listener=Listener()))
        else:
            found = s._replace(listener=x._replace(pc="look", attempt=a))
            yield Move(f"listener: the newest claim is {ref(s.attempts[a])}", found)
    elif x.pc == "look":
        if len(s.owners) == x.k:
            yield Move("listener: still the newest owner", s._replace(listener=x._replace(pc="record")))
        else:
            yield Move("listener: a newer owner: no stop", s._replace(listener=Listener()))
    elif x.pc == "record":
        a = s.attempts[x.attempt]
        written = put_attempt(s, x.attempt, stops=a.stops | {x.k})
        text = f"listener: writes stop-{x.k} on {ref(a)}"
        yield Move(text, written._replace(listener=x._replace(pc="POST")))
    elif x.pc == "POST":
        for text, after in [("no answer", s)] if s.is_silent else ray_stops(s, x.attempt):
            yield Move(f"listener: POSTs the stop: {text}", after._replace(listener=Listener()))


def _listener_owns(s: State, w: World) -> Move:
    number, max_tries, clear_number = s.listener.counters
    if not s.owners:
        return Move("listener: no owner yet, nothing to stop", s._replace(listener=Listener()))
    newest = s.owners[-1]
    mine = [o for o in s.owners if o.identity == newest.identity]
    if any(o.clear_number > clear_number or o.number > number for o in mine):
        return Move("listener: a newer try owns: no stop", s._replace(listener=Listener()))
    if w.mistake == "no final owner":
        went_on = s.listener._replace(pc="read claim", k=len(s.owners))
        return Move("listener: reads the newest owner", s._replace(listener=went_on))
    if len(s.owners) >= MAX_OWNERS:
        return Move("listener: at the bound of owners", s)
    final = Owner(newest.identity, number, max_tries, clear_number, final=True)
    went_on = s.listener._replace(pc="read claim", k=len(s.owners) + 1)
    text = f"listener: owner {len(s.owners) + 1} is final"
    return Move(text, s._replace(owners=(*s.owners, final), listener=went_on))
