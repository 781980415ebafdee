"""The steps of a try up to a job it can wait for: own, marker, facts one read at a time, decide, claim, POST.

After operators/training_try.py and operators/ownership.py. A step is one call to the bucket, Airflow or the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.model.decisions import Answer, Counters, Facts, decide
from tests.model.rules import Move, World
from tests.model.state import (
    DEAD,
    ENDED,
    GONE,
    NOBODY,
    Attempt,
    Owner,
    State,
    Try,
    final_stop,
    newest_attempt,
    put_owner,
    put_try,
    ref,
    sub,
)

MAX_OWNERS = 6
Step = Callable[[State, int, World], Iterator[Move]]


class Found(NamedTuple):
    """What `read records` found in the attempt's folder."""

    has_stops: bool
    is_alive: bool
    is_fresh: bool
    has_manifest: bool
    outcome: str
    filled: str
    is_accepted: bool


def name(t: int) -> str:
    return f"try {t + 1}"


def is_accepted(s: State, t: int) -> bool:
    """Whether Airflow's state store takes this process's marker: it refuses with 404 once it archived the try."""
    return t == s.current or s.tries[t].weak


def end_try(s: State, t: int, how: str) -> State:
    """The process ends: success, retry, final or superseded."""
    x = s.tries[t]
    if t != s.current:
        return s._replace(tries=sub(s.tries, t, GONE))
    s = s._replace(tries=sub(s.tries, t, Try(ENDED, x.number, x.max_tries, x.clear_number, x.identity)))
    if s.task != "running":
        return s
    return s._replace(task={"success": "success", "retry": "retry"}.get(how, "failed"))


def superseded(s: State, t: int, text: str) -> Move:
    """The process exits without a trace. The try that Airflow believes in must not: its task would fail for good."""
    is_wrong = t == s.current and s.task == "running"
    violation = "liveness: Airflow's current try gives up as superseded" if is_wrong else ""
    return Move(f"{name(t)}: {text}: exits, touches nothing", end_try(s, t, "superseded"), violation)


def away(s: State, t: int, w: World, *, written: State | None = None) -> Iterator[Move]:
    """The bucket fails this step: the process must not act on what it does not know. A lost reply may have been written."""
    if not w.can(s, "outage"):
        return
    what = f"{name(t)}: the bucket is away at '{s.tries[t].pc}'"
    spent = s._replace(faults=s.faults - 1)
    if w.mistake == "outage is permission" and s.tries[t].pc in ("stop: look", "check before POST"):
        following = {"stop: look": "stop: record", "check before POST": "POST"}[s.tries[t].pc]
        yield Move(f"{what}: goes on as if nothing was there", put_try(spent, t, pc=following), is_fault=True)
        return
    yield Move(f"{what}: fails, retryable", end_try(spent, t, "retry"), is_fault=True)
    if written is not None:
        unheard = end_try(written._replace(faults=s.faults - 1), t, "retry")
        yield Move(f"{what} after it was written: fails, retryable", unheard, is_fault=True)


def look_at_owners(s: State, t: int, w: World) -> str:
    """`Ownership.is_owner`: owner, own (again), or why this process is replaced."""
    x = s.tries[t]
    if len(s.owners) == x.k:
        return "owner"
    if w.mistake == "any final owner ends a try" and s.owners[-1].final:
        return f"owner {len(s.owners)} is final"
    final = next((k for k, o in enumerate(s.owners, 1) if k > x.k and _is_final_for(o, x)), 0)
    if final:
        return f"owner {final} is final"
    if not is_accepted(s, t):
        return "a newer owner, and the marker is refused"
    return newer_try_since(s, x, w) or "own"


def newer_try_since(s: State, x: Try, w: World) -> str:
    """Whether an owner since the own one is a newer try's; the newest may be an older one's that thawed."""
    if x.k == 0 or w.mistake == "owns again over a newer try":
        return ""
    since = range(x.k + 1, len(s.owners) + 1)
    if w.mistake == "only the newest owner is looked at":
        since = since[-1:]
    newer = (k for k in since if s.owners[k - 1].identity == x.identity and s.owners[k - 1].number > x.number)
    return next((f"owner {k} is a newer try" for k in newer), "")


def looked(s: State, t: int, w: World, at: str, following: str, **changes: Any) -> Move:
    """Go on with `following` as the newest owner, own again, or exit."""
    verdict = look_at_owners(s, t, w)
    if verdict == "owner":
        return Move(f"{name(t)}: {at}: still the newest owner", put_try(s, t, pc=following, **changes))
    if verdict != "own":
        return superseded(s, t, f"{at}: {verdict}")
    s = s._replace(mark=s.tries[t].identity)
    return Move(f"{name(t)}: {at}: a newer owner that is no newer try: owns again", decide_again(s, t, pc="own"))


def decide_again(s: State, t: int, pc: str = "read claim") -> State:
    return put_try(s, t, pc=pc, attempt=NOBODY, is_following=False, read=(), target=None, answers=False, posts=0)


# --- own ---------------------------------------------------------------------------------------------------------------


def announce(s: State, t: int, _: World) -> Iterator[Move]:
    """`Publication.experiment`: from here on the listener knows what this try is about to start."""
    s = s._replace(is_kept=s.is_kept or is_accepted(s, t))
    yield Move(f"{name(t)}: pushes the record for the listener", put_try(s, t, pc="own"))


def own(s: State, t: int, w: World) -> Iterator[Move]:
    """Read and create-if-absent as one step: success proves that the owner read was still the newest."""
    x, k = s.tries[t], len(s.owners) + 1
    if k > MAX_OWNERS:
        return
    since = s.owners[x.k :] if x.k else s.owners[-1:]
    if any(_is_final_for(o, x) for o in since):
        yield superseded(s, t, "an owner is final")
        return
    newer = newer_try_since(s, x, w)
    if newer:
        yield superseded(s, t, newer)
        return
    owner = Owner(x.identity, x.number, x.max_tries, x.clear_number, by=t)
    known = (*x.known, (k - 1, s.owners[-1].acted)) if s.owners else ()
    done = put_try(
        s._replace(owners=(*s.owners, owner)),
        t,
        pc="read claim" if w.mistake == "no marker" else "set marker",
        k=k,
        own_ks=x.own_ks | {k},
        known=known,
    )
    is_older = x.k > 0 and any(o.identity == x.identity and o.number > x.number for o in s.owners[x.k :])
    violation = "G4 a process that Airflow replaced owns over a newer try" if is_older and is_accepted(s, t) else ""
    yield Move(f"{name(t)}: owns as owner {k}", done, violation)
    yield from away(s, t, w, written=done)


def _is_final_for(owner: Owner, x: Try) -> bool:
    aimed, mine = (owner.identity, owner.max_tries, owner.clear_number), (x.identity, x.max_tries, x.clear_number)
    return owner.final and aimed == mine and owner.number >= x.number


def set_marker(s: State, t: int, w: World) -> Iterator[Move]:
    if is_accepted(s, t):
        yield Move(f"{name(t)}: marker accepted", put_try(s._replace(mark=s.tries[t].identity), t, pc="read claim"))
    else:
        yield superseded(s, t, "marker refused (404)")


# --- facts, one read at a time -------------------------------------------------------------------------------------------


def read_claim(s: State, t: int, w: World) -> Iterator[Move]:
    a = newest_attempt(s)
    if a == NOBODY:
        yield from _act(s, t, w, decide(_me(s, t, w), None, w.bounds.on_clear))
        return
    early: tuple[Any, ...] = (
        tuple((x.manifest, x.commits) for x in s.attempts) if w.mistake == "manifest before the claim" else ()
    )
    following = "read records" if w.mistake == "records read before the job" else "read job"
    found = put_try(s, t, pc=following, attempt=a, read=(early,))
    yield Move(f"{name(t)}: reads the newest claim {ref(s.attempts[a])}", found)
    yield from away(s, t, w)


def sight_of(s: State, a: Attempt) -> str:
    return "silent" if s.is_silent else a.job


def read_job(s: State, t: int, w: World) -> Iterator[Move]:
    """GET the job's status, before the records: a stop record is written before the stop, an outcome before the end."""
    x = s.tries[t]
    a = s.attempts[x.attempt]
    sight = (sight_of(s, a), s.session)
    text = f"{name(t)}: asks for {ref(a)}'s job: {sight[0] or '404'}"
    if len(x.read) > 2 and w.mistake != "records read before the job":
        done = put_try(s, t, pc="read owners", read=(x.read[0], sight, x.read[2]))
        yield Move(text.replace("asks", "asks again"), done)
    elif w.mistake == "records read before the job":
        yield from _decide(put_try(s, t, read=(x.read[0], sight, *x.read[1:])), t, w, text)
    else:
        yield Move(text, put_try(s, t, pc="read records", read=(*x.read, sight)))


def read_records(s: State, t: int, w: World) -> Iterator[Move]:
    x = s.tries[t]
    a = s.attempts[x.attempt]
    is_alive = a.alive != NOBODY and not (a.outcome or a.filled)
    is_fresh = is_alive and any(d.attempt == x.attempt and d.pc != DEAD for d in s.drivers)
    found = Found(bool(a.stops), is_alive, is_fresh, a.manifest is not None, a.outcome, a.filled, a.accepted)
    seen = ", ".join(w for w in (a.outcome, "accepted" if a.accepted else "", "stopped" if a.stops else "") if w)
    is_odd = len(x.read) > 1 and x.read[1][0] == "" and (found.is_alive or found.has_manifest)
    done = put_try(s, t, pc="read job" if is_odd else "read owners", read=(*x.read, found))
    yield Move(f"{name(t)}: reads {ref(a)}'s records ({seen or 'no end'})", done)
    yield from away(s, t, w)


def read_owners(s: State, t: int, w: World) -> Iterator[Move]:
    """`ExperimentRecords.owners_since`: owners read before owning are not read again. Then the pure decision."""
    x = s.tries[t]
    claim_k = s.attempts[x.attempt].k
    known = dict(x.known)
    acting = 0
    for k in range(len(s.owners), claim_k - 1, -1):
        acted = s.owners[k - 1].acted if k in x.own_ks or k not in known else known[k]
        if acting == 0 and (k == claim_k or acted == x.attempt):
            acting = k
    if w.mistake == "compares with the last owner":
        acting = max((k for k in range(1, x.k) if k not in x.own_ks), default=x.k)
    found = (*x.read, (acting, final_stop(s, x.attempt)))
    text = f"{name(t)}: reads the owners (owner {acting} acted last)"
    if w.mistake == "records read before the job":
        yield Move(text, put_try(s, t, pc="read job", read=found))
    else:
        yield from _decide(put_try(s, t, read=found), t, w, text)
    yield from away(s, t, w)


def _decide(s: State, t: int, w: World, text: str) -> Iterator[Move]:
    x = s.tries[t]
    a = s.attempts[x.attempt]
    _, (sight, session), found, (acting_k, has_final) = x.read
    acting = s.owners[acting_k - 1]
    # Equal numbers are a clear: so this is the rule as it was.
    is_old_rule = w.mistake == "a lower try number is a clear"
    acting_number = min(acting.number, x.number) if is_old_rule else acting.number
    facts = Facts(
        generation=a.generation,
        number=a.number,
        session=a.session,
        acting=Counters(_identity(acting.identity, w), acting_number, acting.max_tries, acting.clear_number),
        is_own=acting_k in x.own_ks,
        has_stops=found.has_stops,
        has_final=has_final,
        is_alive=found.is_alive,
        is_fresh=found.is_fresh,
        has_manifest=found.has_manifest,
        outcome=found.outcome,
        filled=found.filled,
        is_collected=bool(found.filled) or found.is_accepted,
        is_accepted=found.is_accepted,
        sight=sight,
        session_now=session,
    )
    for move in _act(s, t, w, decide(_me(s, t, w), facts, w.bounds.on_clear)):
        yield move._replace(text=f"{text}; {move.text.partition(': ')[2]}")


def _identity(identity: int, w: World) -> int:
    return 0 if w.mistake == "no DAG-run identity" else identity


def _me(s: State, t: int, w: World) -> Counters:
    x = s.tries[t]
    return Counters(_identity(x.identity, w), x.number, x.max_tries, x.clear_number)


def _act(s: State, t: int, w: World, answer: Answer) -> Iterator[Move]:
    """`TrainingTry._act`."""
    x = s.tries[t]
    early = x.read[0] if w.mistake == "manifest before the claim" and x.read else ()
    text = f"{name(t)}: decides {answer.kind}: {answer.reason}"
    if answer.kind == "Superseded":
        yield superseded(s, t, f"decides: {answer.reason}")
    elif answer.kind == "Refuse":
        yield Move(text, end_try(s, t, "retry" if answer.is_retryable else "final"), _wrong_refusal(s, t, answer))
    elif answer.kind in ("Start", "Restore"):
        done = put_try(s, t, pc="claim", target=answer.target, answers=answer.answers_clear, read=early, attempt=NOBODY)
        is_known = len(x.read) > 1 and x.read[2].is_accepted and s.attempts[x.attempt].is_success
        is_again = is_known and t == s.current and not x.cleared and not s.clear
        yield Move(text, done, "G9 decides to train an accepted success again without a clear" if is_again else "")
    elif answer.kind == "StopThenRestore":
        stopping = put_try(s, t, pc="stop: look", target=answer.target, answers=answer.answers_clear, read=early)
        yield Move(text, stopping)
    else:
        following = {"Attach": "note attach", "Repost": "note repost"}.get(answer.kind, "note over")
        crosses = x.cleared == 1 and s.clear == 1 and not s.attempts[x.attempt].cleared and answer.kind == "Attach"
        violation = "G9 attaches to a job across a clear that it could see" if crosses else ""
        yield Move(text, put_try(s, t, pc=following, read=()), violation)


def _wrong_refusal(s: State, t: int, answer: Answer) -> str:
    """Nobody stops jobs outside Airflow in this model, so a refusal for good has taken one of ours for such a stop."""
    is_wrong = t == s.current and s.task == "running" and not answer.is_retryable
    return "G4 a healthy try fails for good because a stop of ours hit its job" if is_wrong else ""


def note(following: str) -> Step:
    """`Ownership.acted_on`: write the attempt into the own owner record."""

    def step(s: State, t: int, w: World) -> Iterator[Move]:
        x = s.tries[t]
        noted = put_owner(s, x.k, acted=x.attempt)
        done = followed(noted, t, x.attempt) if following == "wait" else put_try(noted, t, pc=following)
        yield Move(f"{name(t)}: notes {ref(s.attempts[x.attempt])} in owner {x.k}", done)
        yield from away(s, t, w, written=noted)

    return step


def followed(s: State, t: int, a: int) -> State:
    """It waits, deferred: what resumes is a new process that knows its owner number only."""
    x = s.tries[t]
    return put_try(
        s, t, pc="wait", attempt=a, is_following=True, read=(), target=None, posts=0, known=(), own_ks=frozenset({x.k})
    )


STEPS: dict[str, Step] = {
    "announce": announce,
    "own": own,
    "set marker": set_marker,
    "read claim": read_claim,
    "read records": read_records,
    "read owners": read_owners,
    "read job": read_job,
    "note attach": note("wait"),
    "note repost": note("check before POST"),
    "note over": note("finish: look"),
}
