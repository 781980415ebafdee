"""Whether a killed operator or trigger stops its job: an eviction must not, a person's wish must."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider.core.failure import FailureKind
from airflow_provider.core.record_parts import AttemptRef

_ENDED = frozenset({"failed", "success", "skipped", "upstream_failed", "removed"})
"""States after which no try follows by itself."""


@dataclass(frozen=True)
class KillVerdict:
    """Stop the job or leave it, and why."""

    is_stop: bool
    reason: str
    ends: FailureKind | None = None
    """With which failure the task ends by this; None where another try follows, or nobody knows."""


@dataclass(frozen=True)
class KillFacts:
    """Which job is meant, whose it was, and whose it is."""

    ref: AttemptRef
    k: int
    """Owner number of the try that is killed, 0 before it has one."""
    newest: int | None
    """Number of the newest owner seen, None where it couldn't be read in time."""

    @property
    def shown(self) -> str:
        """For the end of a sentence."""
        return f"({self.ref}, owner {self.k})"


def decide_kill(
    facts: KillFacts, *, task_state: str | None, is_timed_out: bool, is_enabled: bool, is_deadline: bool = False
) -> KillVerdict:
    """Judge an `on_kill`. `task_state` is Airflow's present word on the task, None where it couldn't be read in time.

    `is_deadline` says that a time-out ends the task, since it is the deadline of the whole wait.

    A worker that is evicted leaves the state `running`: the job goes on and the next try attaches. Unknown means leave:
    the next try, the listener and the driver's deadline still end what must end.
    """
    if not is_enabled:
        return _leave("stop_on_kill is off", facts)
    if facts.newest is None:
        return _leave("the experiment's owner couldn't be read in time", facts)
    if facts.k == 0:
        return _leave("this try owns nothing yet", facts)
    if facts.newest != facts.k:
        return _leave(f"a newer try owns the experiment, owner {facts.newest} came after", facts)
    if is_timed_out:
        ends = FailureKind.TIMEOUT if is_deadline else None
        return _stop("execution_timeout", facts, ends=ends)
    if task_state is None:
        return _leave("the task's state couldn't be read in time", facts)
    if task_state == "running":
        return _leave("the task is still running, this worker is evicted", facts)
    return _stop(f"the task is {task_state}", facts, ends=_ends(task_state))


def decide_trigger_kill(*, ref: AttemptRef, k: int, task_state: str | None, is_readable: bool) -> KillVerdict:
    """Judge the `on_kill` of a deferred task's trigger. A state of None is a cleared task that waits for its next try.

    Airflow calls it also where nobody wished anything: a triggerer that froze, and whose triggers another one has taken over
    meanwhile, ends them as if by hand when it thaws. The task is deferred then, as it is after a clear once the next try has
    deferred, which owns the job by that time. Unknown means leave, as in a worker. Who the newest owner is
    is asked with the stop itself.
    """
    facts = KillFacts(ref, k, newest=None)
    if not is_readable:
        unread = "the task's state couldn't be read in time; a mark by hand is seen by the API server too"
        return _leave(f"{unread}, a clear by the next try", facts)
    if task_state == "deferred":
        return _leave("the task is still deferred, another triggerer waits", facts)
    reason = f"the deferred task was marked or cleared: it is {task_state or 'cleared'} {facts.shown}"
    return KillVerdict(is_stop=True, reason=reason, ends=_ends(task_state))


def _leave(why: str, facts: KillFacts) -> KillVerdict:
    return KillVerdict(is_stop=False, reason=f"leaving the job: {why} {facts.shown}")


def _stop(why: str, facts: KillFacts, *, ends: FailureKind | None) -> KillVerdict:
    return KillVerdict(is_stop=True, reason=f"stopping the job: {why} {facts.shown}", ends=ends)


def _ends(task_state: str | None) -> FailureKind | None:
    return FailureKind.STOPPED if task_state in _ENDED else None
