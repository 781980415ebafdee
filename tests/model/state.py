"""The modelled world as one hashable value: Airflow, its tries, the bucket's records, the cluster's jobs and drivers.

A process that freezes is a process whose next step comes late, and a crashed one is one whose next step never comes: so
tries, listener and drivers have no flag for either. All interleavings of their steps are explored.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

NOBODY = -1
SCRATCH = -1
UNRESOLVED = -2
COPY = 3
"""Ordinal of the copy that an attempt makes of a retired checkpoint; its own commits are 0, 1 and 2."""
PER_ATTEMPT = 4


class Try(NamedTuple):
    """One process of Airflow's side: worker and trigger of a try are the same process here."""

    pc: str
    """The step that comes next."""
    number: int
    max_tries: int
    clear_number: int
    identity: int
    """The DAG run's mark as this process found it in the state store, or its own new one."""
    cleared: int = 0
    """The truth, for the invariants only: the unanswered clear that this try started after, as in `State.clear`."""
    k: int = 0
    own_ks: frozenset[int] = frozenset()
    known: tuple[tuple[int, int], ...] = ()
    """(k, what it had acted on) of owners read before owning: `Ownership._known`."""
    attempt: int = NOBODY
    """The attempt it decides about, claims or follows."""
    is_following: bool = False
    """There is a job that on_kill would stop."""
    read: tuple[Any, ...] = ()
    """What the last single reads found."""
    target: tuple[int, int] | None = None
    answers: bool = False
    """Whether the attempt that it is about to claim answers a clear that it saw."""
    posts: int = 0
    claims: int = 0
    kill: str = ""
    """The step of on_kill that comes next; the main thread waits meanwhile."""
    is_timed_out: bool = False
    forbidden: bool = False
    looked: bool = True
    """The truth: whether it was the newest owner when it last looked before a stop."""
    weak: bool = False
    """Airflow replaced it after a stale event and kept the task instance's id: its marker is still accepted."""


ENDED = "ended"
GONE = Try(ENDED, 0, 0, 0, 0)


class Owner(NamedTuple):
    """`owners/<k>.json`; k is the position in the tuple plus 1."""

    identity: int
    number: int
    max_tries: int
    clear_number: int
    acted: int = NOBODY
    final: bool = False
    by: int = NOBODY
    """Which try made it; the listener is nobody."""


class Attempt(NamedTuple):
    """The records of one attempt, and the job of its id on the present cluster."""

    generation: int
    number: int
    k: int
    session: int
    cleared: int = 0
    """The truth: whether its claim answers a clear."""
    answers: bool = False
    """What the claim says of that."""
    stops: frozenset[int] = frozenset()
    alive: int = NOBODY
    """Which driver's run uid `alive.json` carries."""
    manifest: tuple[int, ...] | None = None
    commits: int = 0
    """Checkpoints that its records know: all it ever committed."""
    writer: int = NOBODY
    """Which driver wrote the manifest."""
    outcome: str = ""
    """"", "success", "stopped" (cancelled by a record of ours) or "terminated" (cancelled by a SIGTERM without one)."""
    is_late: bool = False
    """The truth: the outcome was written although a newer claim existed."""
    accepted: bool = False
    filled: str = ""
    """The outcome that collect wrote where the driver left none: "success" or the failure's kind."""
    job: str = ""
    """Ray's status on the present cluster; "" is a 404."""
    exit: int = 0
    driver: int = NOBODY
    restored: int = UNRESOLVED
    copied: int = NOBODY
    """The checkpoint that its copy holds."""
    early: tuple[Any, ...] = ()
    """Manifests as they were before the claim (seeded mistake only)."""

    @property
    def rank(self) -> tuple[int, int]:
        return (self.generation, self.number)

    @property
    def is_success(self) -> bool:
        """A success that no newer claim came before."""
        return self.outcome == "success" and not self.is_late


class Driver(NamedTuple):
    """One driver process on the cluster."""

    attempt: int
    pc: str
    session: int = 0
    """Of the cluster that it runs on: after an address moved, the old one's drivers live on unseen."""
    read: tuple[Any, ...] = ()
    commits: int = 0
    doomed: tuple[int, ...] = ()
    """Checkpoints that retention is about to delete."""
    fit: int = 1
    ignored: frozenset[int] = frozenset()
    """Stop records that lay there at the start (seeded mistake only)."""


DEAD = "dead"


class Listener(NamedTuple):
    """The listener's thread in the API server."""

    pc: str = ""
    counters: tuple[int, int, int] = (0, 0, 0)
    k: int = 0
    attempt: int = NOBODY


class State(NamedTuple):
    """All of it."""

    tries: tuple[Try, ...]
    owners: tuple[Owner, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    drivers: tuple[Driver, ...] = ()
    current: int = 0
    """The try that Airflow believes in."""
    task: str = "running"
    """running, retry, success or failed."""
    mark: int = 0
    """The DAG run's identity in the task's state store; 0: none."""
    is_kept: bool = False
    """The listener's record lies in the task's state store, which outlives tries; in XCom it lies from each try's push on."""
    session: int = 1
    is_silent: bool = False
    """The dashboard gives no answer."""
    exist: frozenset[int] = frozenset()
    corrupt: frozenset[int] = frozenset()
    quarantine: frozenset[int] = frozenset()
    good: frozenset[int] = frozenset()
    """The truth: checkpoints committed while no newer claim existed."""
    listener: Listener = Listener()
    clear: int = 0
    """The truth: a clear that no claim has answered yet (1: max_tries raised or a new run, 2: only clear_number)."""
    cleared_accepted: bool = False
    """The truth: the newest attempt was accepted when that clear came."""
    faults: int = 0
    stales: int = 0
    clears: int = 0
    marks: int = 0
    recreations: int = 0


def sub(items: tuple[T, ...], i: int, item: T) -> tuple[T, ...]:
    """The tuple with one item replaced."""
    return (*items[:i], item, *items[i + 1 :])


def put_try(s: State, t: int, **changes: Any) -> State:
    return s._replace(tries=sub(s.tries, t, s.tries[t]._replace(**changes)))


def put_attempt(s: State, a: int, **changes: Any) -> State:
    return s._replace(attempts=sub(s.attempts, a, s.attempts[a]._replace(**changes)))


def put_driver(s: State, d: int, **changes: Any) -> State:
    return s._replace(drivers=sub(s.drivers, d, s.drivers[d]._replace(**changes)))


def put_owner(s: State, k: int, **changes: Any) -> State:
    return s._replace(owners=sub(s.owners, k - 1, s.owners[k - 1]._replace(**changes)))


def newest_attempt(s: State) -> int:
    """Index of the highest-ranked claim, or NOBODY."""
    best = NOBODY
    for i, a in enumerate(s.attempts):
        if best == NOBODY or a.rank > s.attempts[best].rank:
            best = i
    return best


def is_superseded(s: State, a: int) -> bool:
    """Whether a newer claim exists."""
    rank = s.attempts[a].rank
    return any(other.rank > rank for other in s.attempts)


def final_stop(s: State, a: int) -> bool:
    """Whether an owner after the claimer is final."""
    return any(o.final for o in s.owners[s.attempts[a].k :])


def ref(attempt: Attempt) -> str:
    return f"g{attempt.generation}/a{attempt.number}"


def checkpoint_name(s: State, c: int) -> str:
    a, ordinal = divmod(c, PER_ATTEMPT)
    what = "copy" if ordinal == COPY else f"c{ordinal + 1}"
    return f"{ref(s.attempts[a])}/{what}"


def progress(s: State, c: int) -> tuple[int, int, int]:
    """How far a training was when it committed `c`; a copy is as far as its original."""
    a, ordinal = divmod(c, PER_ATTEMPT)
    if ordinal == COPY:
        return progress(s, s.attempts[a].copied)
    return (*s.attempts[a].rank, ordinal)


def start(**budget: int) -> State:
    """The task's first try begins."""
    return State(tries=(Try("announce", 1, 0, 0, identity=1),), **budget)
