"""Whether a killed operator or trigger stops its job: an eviction must not, a person's wish must."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider.core.failure import FailureKind

_ENDED = frozenset({"failed", "success", "skipped", "upstream_failed", "removed"})
"""States after which no try follows by itself."""


@dataclass(frozen=True)
class KillVerdict:
    """Stop the job or leave it, and why."""

    is_stop: bool
    reason: str
    ends: FailureKind | None = None
    """With which failure the task ends by this; None where another try follows, or nobody knows."""


def decide_kill(
    *, task_state: str | None, is_owner: bool | None, is_timed_out: bool, is_enabled: bool, is_deadline: bool = False
) -> KillVerdict:
    """Judge an `on_kill`. `task_state` is Airflow's present word on the task, None where it couldn't be read in time.

    `is_deadline` says that a time-out ends the task, since it is the deadline of the whole wait.

    A worker that is evicted leaves the state `running`: the job goes on and the next try attaches. Unknown means leave:
    the next try, the listener and the driver's deadline still end what must end.
    """
    if not is_enabled:
        return KillVerdict(is_stop=False, reason="leaving the job: stop_on_kill is off")
    if is_owner is None:
        return KillVerdict(is_stop=False, reason="leaving the job: the experiment's owner couldn't be read in time")
    if not is_owner:
        return KillVerdict(is_stop=False, reason="leaving the job: a newer try owns the experiment")
    if is_timed_out:
        ends = FailureKind.TIMEOUT if is_deadline else None
        return KillVerdict(is_stop=True, reason="stopping the job: execution_timeout", ends=ends)
    if task_state is None:
        return KillVerdict(is_stop=False, reason="leaving the job: the task's state couldn't be read in time")
    if task_state == "running":
        return KillVerdict(is_stop=False, reason="leaving the job: the task is still running, this worker is evicted")
    return KillVerdict(is_stop=True, reason=f"stopping the job: the task is {task_state}", ends=_ends(task_state))


def decide_trigger_kill(*, task_state: str | None, is_readable: bool) -> KillVerdict:
    """Judge the `on_kill` of a deferred task's trigger. A state of None is a cleared task that waits for its next try.

    Airflow calls it also where nobody wished anything: a triggerer that froze, and whose triggers another one has taken over
    meanwhile, ends them as if by hand when it thaws. The task is deferred then, as it is after a clear once the next try has
    deferred, which owns the job by that time. Unknown means leave, as in a worker.
    """
    if not is_readable:
        unread = (
            "leaving the job: the task's state couldn't be read in time; a mark by hand is seen by the API server too"
        )
        return KillVerdict(is_stop=False, reason=f"{unread}, a clear by the next try")
    if task_state == "deferred":
        return KillVerdict(is_stop=False, reason="leaving the job: the task is still deferred, another triggerer waits")
    reason = f"the deferred task was marked or cleared: it is {task_state or 'cleared'}"
    return KillVerdict(is_stop=True, reason=reason, ends=_ends(task_state))


def _ends(task_state: str | None) -> FailureKind | None:
    return FailureKind.STOPPED if task_state in _ENDED else None
