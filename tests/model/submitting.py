"""The steps of a try between a decision and a job: claim, the last look at the owners, POST, look up.

After operators/training_try.py and client/submitting.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.rules import Move, World
from tests.model.state import Attempt, Driver, State, put_attempt, put_try, ref
from tests.model.tries import Step, away, decide_again, end_try, followed, look_at_owners, looked, name, superseded

MAX_POSTS = 2


def claim(s: State, t: int, w: World) -> Iterator[Move]:
    x = s.tries[t]
    assert x.target is not None
    generation, number = x.target
    if any(a.rank == x.target for a in s.attempts):
        verdict = look_at_owners(s, t, w)
        text = f"{name(t)}: somebody claimed g{generation}/a{number} first"
        if verdict in ("owner", "own"):
            again = decide_again(s, t, pc="read claim" if verdict == "owner" else "own")
            yield Move(f"{text}: decides again", again)
        else:
            yield superseded(s, t, f"{text}; {verdict}")
        return
    if s.is_silent:
        yield Move(f"{name(t)}: the cluster gives no answer before the claim: fails", end_try(s, t, "retry"))
        return
    if len(s.attempts) >= w.bounds.attempts:
        return
    made = Attempt(generation, number, x.k, s.session, early=x.read, cleared=int(x.cleared > 0), answers=x.answers)
    s2 = s._replace(attempts=(*s.attempts, made))
    if x.cleared and s.clear:
        s2 = s2._replace(clear=0, cleared_accepted=False)
    done = put_try(
        s2,
        t,
        pc="check before POST",
        attempt=len(s.attempts),
        claims=x.claims + 1,
        read=(),
        target=None,
        answers=False,
        posts=0,
    )
    violation = "liveness: a try claims more than two attempts" if x.claims >= 2 else ""
    yield Move(f"{name(t)}: claims g{generation}/a{number} as owner {x.k}", done, violation)
    yield from away(s, t, w, written=s2)


def check_before_post(s: State, t: int, w: World) -> Iterator[Move]:
    """`TrainingTry._check_before_post`: forbidden by on_kill, ended by a person, a newer owner."""
    x = s.tries[t]
    if x.forbidden:
        yield superseded(s, t, "before the POST: on_kill forbids it")
    elif s.task in ("failed", "success"):
        yield superseded(s, t, f"before the POST: the task is {s.task}")
    elif w.mistake == "owners not read again before the POST":
        yield Move(f"{name(t)}: goes to POST", put_try(s, t, pc="POST"))
    else:
        yield looked(s, t, w, "before the POST", "POST")
        yield from away(s, t, w)


def post(s: State, t: int, w: World) -> Iterator[Move]:
    x = s.tries[t]
    a = s.attempts[x.attempt]
    if s.is_silent:
        yield Move(f"{name(t)}: POST {ref(a)}: no answer: fails", end_try(s, t, "retry"))
    elif a.job:
        yield Move(f"{name(t)}: POST {ref(a)}: the id exists", put_try(s, t, pc="look up", posts=x.posts + 1))
    elif len(s.drivers) < w.bounds.drivers:
        driver = Driver(x.attempt, "pending", s.session)
        sent = put_attempt(s._replace(drivers=(*s.drivers, driver)), x.attempt, job="PENDING", driver=len(s.drivers))
        text = f"{name(t)}: POST {ref(a)}: accepted, driver {len(s.drivers) + 1} is PENDING"
        yield Move(text, followed(sent, t, x.attempt))
        if w.can(s, "reply"):
            lost = put_try(sent._replace(faults=s.faults - 1), t, pc="look up", posts=x.posts + 1)
            yield Move(f"{text}, but the REPLY IS LOST", lost, is_fault=True)


def look_up(s: State, t: int, _: World) -> Iterator[Move]:
    x = s.tries[t]
    a = s.attempts[x.attempt]
    if s.is_silent:
        yield Move(f"{name(t)}: asks for {ref(a)}'s id: no answer: fails", end_try(s, t, "retry"))
    elif a.job:
        yield Move(f"{name(t)}: finds {ref(a)}'s job {a.job}", followed(s, t, x.attempt))
    elif x.posts < MAX_POSTS:
        text = f"{name(t)}: asks for {ref(a)}'s id: 404: sends it again"
        yield Move(text, put_try(s, t, pc="check before POST"))
    else:
        yield Move(f"{name(t)}: could not submit in {MAX_POSTS} POSTs: fails", end_try(s, t, "retry"))


STEPS: dict[str, Step] = {
    "claim": claim,
    "check before POST": check_before_post,
    "POST": post,
    "look up": look_up,
}
