"""What a waiter concludes from one poll after another: pure, with the time and the counts passed in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import Self

from airflow_provider.core.decision import FRESH_ALIVE_S, ClusterSilent, JobSeen, JobSight, JobUnknown
from airflow_provider.core.errors import MessageUnreadable
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.field_types import Id, Shown, shown_part
from airflow_provider.core.job import JobStatus
from airflow_provider.core.record_parts import AttemptRef

_LONGEST_S = 4e8
"""Some twelve years: beyond it, times overflow."""


ALIVE_CHECK_S = 60.0
"""How often a sign of life is read that is old or could not be read, while the cluster answers."""


ALIVE_PERIOD_S = 20.0
"""Within so long a driver that can write renews its sign of life; it tries each 15 s."""


class WaitLimits(BaseModel):
    """When a waiter stops believing. All times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    poll_interval_s: float = Field(default=10.0, gt=0, le=_LONGEST_S)
    unreachable_timeout_s: float = Field(default=1800.0, ge=0, le=_LONGEST_S)
    """Both this long and `unreachable_polls` without an answer, and no fresh sign of life: give up."""
    unreachable_polls: int = Field(default=10, ge=1)
    lost_after_s: float = Field(default=30.0, ge=0, le=_LONGEST_S)
    """Both this long and `lost_polls` of "no such job": the job is lost."""
    lost_polls: int = Field(default=3, ge=1)
    pending_timeout_s: float | None = Field(default=3600.0, ge=0, le=_LONGEST_S)
    """Longest time a job may be PENDING; None waits for ever."""
    silent_driver_timeout_s: float | None = Field(default=1800.0, gt=0, le=_LONGEST_S)
    """Longest age of the driver's sign of life while Ray calls the job RUNNING; None never gives such a job up."""
    alive_check_s: float = Field(default=ALIVE_CHECK_S, gt=0, le=_LONGEST_S)
    """How often the sign of life is read while the cluster answers, once it is old or when it could not be read."""
    deadline_grace_s: float = Field(default=30.0, ge=0, le=_LONGEST_S)
    """The driver ends itself at the deadline; after this much more the waiter stops the job."""


POLL_JITTER = 0.2
"""Pauses vary by this part of the interval, so that a triggerer's jobs, started together, don't poll together."""


def pause_s(limits: WaitLimits, chance: float) -> float:
    """How long to wait before the next poll; `chance` is a random number from 0 to 1."""
    return limits.poll_interval_s * (1 + POLL_JITTER * (2 * chance - 1))


def alive_pause_s(age_s: float, limits: WaitLimits) -> float:
    """How long a sign of life that is so old need not be read again: before that it can't be older than the next limit.

    So a silence is seen as early as by reading it at each poll, or one writing period later, by a fraction of the reads.
    """
    silent = limits.silent_driver_timeout_s
    pause = min(
        (limit - age_s for limit in (SILENCE_TO_TELL_S, silent) if limit is not None and limit > age_s),
        default=limits.alive_check_s,
    )
    if age_s >= SILENCE_TO_TELL_S:  # it is told, and who is told wants to know when it is over
        pause = min(pause, limits.alive_check_s)
    # A driver whose bucket was away writes at its next turn: its sign isn't judged before that. And a limit has two reads at least, so that
    # an outage is seen.
    pause = max(pause, ALIVE_PERIOD_S)
    return pause if silent is None else min(pause, silent / 2)


class WaitEnd(str, Enum):
    """Why a wait ended."""

    ENDED = "ended"
    LOST = "lost"
    UNREACHABLE = "unreachable"
    PENDING_TOO_LONG = "pending_too_long"
    SILENT_DRIVER = "silent_driver"
    TIMEOUT = "timeout"
    ERROR = "error"


STOPPING_ENDS = frozenset({WaitEnd.TIMEOUT, WaitEnd.PENDING_TOO_LONG, WaitEnd.SILENT_DRIVER})
"""Ends after which the job must be stopped: it may still hold nodes."""
KIND_OF_END = {
    WaitEnd.TIMEOUT: FailureKind.TIMEOUT,
    WaitEnd.PENDING_TOO_LONG: FailureKind.CAPACITY,
    WaitEnd.SILENT_DRIVER: FailureKind.HANG,
    WaitEnd.UNREACHABLE: FailureKind.NETWORK,
}
"""The failure of a try whose wait ended so, whatever its job says."""
SILENCE_TO_TELL_S = 300.0
"""Age of a sign of life from which on a person is told."""


class TriggerMessage(BaseModel):
    """What a trigger hands to the process that goes on: read from its row, so it may be of another release, or damaged."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def parse(cls, event: object) -> Self:
        """Read an event. Raises MessageUnreadable."""
        try:
            return cls.model_validate(event)
        except ValidationError as error:
            raise unreadable_message("The triggerer's event", error) from None


class WaitEvent(TriggerMessage):
    """What the trigger hands to `execute_complete`: why the wait ended, and everything needed to go on."""

    end: WaitEnd
    reason: Shown
    kind: FailureKind = FailureKind.INFRASTRUCTURE
    """Of an error in the trigger."""
    generation: int = Field(ge=1, le=999_999)
    attempt: int = Field(ge=1, le=999_999)
    k: int = Field(ge=1, le=999_999)
    submission_id: Id

    @property
    def ref(self) -> AttemptRef:
        """The attempt that was waited for."""
        return AttemptRef(generation=self.generation, attempt=self.attempt)


def unreadable_message(what: str, error: ValidationError) -> MessageUnreadable:
    """The error for something that Airflow kept for us; names fields, never their values."""
    fields = ", ".join(".".join(map(shown_part, e["loc"])) or "its type" for e in error.errors(include_input=False)[:5])
    return MessageUnreadable(
        f"{what} can't be read",
        known=f"wrong fields: {fields}; the job and its records are untouched",
        change="nothing if the next try finds the job by its records; else clear the task",
    )


@dataclass(frozen=True)
class WaitState:
    """Counts of one wait. A streak starts anew with every other answer."""

    since: datetime
    """When the present streak of equal answers began."""
    sight: str = ""
    polls: int = 0
    """Answers in the present streak."""


@dataclass(frozen=True)
class GoOn:
    """Poll again. `reason` is set when something changed, so logs show changes only."""

    state: WaitState
    reason: str | None = None


@dataclass(frozen=True)
class WaitOver:
    """Stop waiting."""

    end: WaitEnd
    reason: str


def judge_poll(  # noqa: PLR0913 - each is one fact of a poll
    state: WaitState,
    sight: JobSight,
    *,
    now: datetime,
    limits: WaitLimits,
    session_name: str | None,
    deadline: datetime | None = None,
    alive_age_s: float | None = None,
    is_outcome_there: bool = False,
    wall: datetime | None = None,
) -> GoOn | WaitOver:
    """Judge one answer. `is_outcome_there` is read from the bucket only when the cluster is silent, `alive_age_s` rarely.

    `now` measures how long answers last and must not jump; `wall` is the clock that a deadline is on, `now` without it.
    """
    wall = wall or now
    name = _name(sight, session_name, alive_age_s)
    is_change = name != state.sight
    state = WaitState(now, name, 1) if is_change else replace(state, polls=state.polls + 1)
    waited = (now - state.since).total_seconds()
    if isinstance(sight, JobSeen) and sight.status.is_terminal:
        return WaitOver(WaitEnd.ENDED, f"the job is {sight.status.value}")
    if is_outcome_there:
        return WaitOver(WaitEnd.ENDED, "the driver left its outcome in the bucket")
    if deadline is not None and wall > deadline + timedelta(seconds=limits.deadline_grace_s):
        return WaitOver(
            WaitEnd.TIMEOUT, f"the deadline {deadline.isoformat()} passed {(wall - deadline).total_seconds():.0f} s ago"
        )
    if isinstance(sight, JobUnknown):
        if state.polls >= limits.lost_polls and waited >= limits.lost_after_s:
            return WaitOver(WaitEnd.LOST, f"{name} in {state.polls} polls over {waited:.0f} s")
    elif isinstance(sight, ClusterSilent):
        is_long = waited >= limits.unreachable_timeout_s and state.polls >= limits.unreachable_polls
        is_alive = alive_age_s is not None and alive_age_s < FRESH_ALIVE_S
        if is_long and not is_alive:
            sign = "no sign of life" if alive_age_s is None else f"last sign of life {alive_age_s:.0f} s ago"
            return WaitOver(WaitEnd.UNREACHABLE, f"no answer in {state.polls} polls over {waited:.0f} s and {sign}")
    else:
        over = _too_long(sight.status, waited, alive_age_s=alive_age_s, limits=limits)
        if over is not None:
            return over
    return GoOn(state, name if is_change else None)


def _too_long(status: JobStatus, waited: float, *, alive_age_s: float | None, limits: WaitLimits) -> WaitOver | None:
    """A job that Ray knows and that gets nowhere: no place for its driver, or a driver that is frozen."""
    pending, silent = limits.pending_timeout_s, limits.silent_driver_timeout_s
    if status is JobStatus.PENDING and pending is not None and waited >= pending:
        reason = f"PENDING for {waited:.0f} s: the cluster has no place for the driver"
        return WaitOver(WaitEnd.PENDING_TOO_LONG, reason)
    is_silent = silent is not None and alive_age_s is not None and alive_age_s >= silent
    if status is JobStatus.RUNNING and is_silent:
        reason = f"RUNNING, but the driver's last sign of life is {alive_age_s:.0f} s old (limit {silent:.0f} s)"
        return WaitOver(WaitEnd.SILENT_DRIVER, reason)
    return None


def _name(sight: JobSight, session_name: str | None, alive_age_s: float | None) -> str:
    if isinstance(sight, JobSeen):
        is_silent = alive_age_s is not None and alive_age_s >= SILENCE_TO_TELL_S
        silence = f", but its driver gave no sign of life for {SILENCE_TO_TELL_S:.0f} s" if is_silent else ""
        return f"the job is {sight.status.value}{silence}"
    if isinstance(sight, ClusterSilent):
        return "the cluster gives no answer"
    if sight.session_name != session_name:
        return f"the cluster was replaced (session {sight.session_name}) and does not know the job"
    return "the cluster does not know the job"
