"""What a try does with an experiment: a pure function of the facts, after the protocol's rules for one try.

`decide_submission` answers with exactly one of the decisions below; each carries a reason in a sentence with numbers.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import JobStatus, OnClear
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import (
    AliveRecord,
    ClaimRecord,
    CollectedRecord,
    OutcomeRecord,
    OutcomeState,
    OwnerRecord,
)

FRESH_ALIVE_S = 60.0
"""A younger sign of life means that the driver runs, whatever the dashboard says."""


@dataclass(frozen=True)
class JobSeen:
    """The cluster knows the job."""

    status: JobStatus


@dataclass(frozen=True)
class JobUnknown:
    """The cluster answered: no such job."""

    session_name: str | None


@dataclass(frozen=True)
class ClusterSilent:
    """The cluster gave no usable answer; says nothing about the job."""

    why: str


JobSight = JobSeen | JobUnknown | ClusterSilent


@dataclass(frozen=True)
class TryFacts:
    """The try that decides: Airflow's counters, and the owner numbers it has created so far."""

    dag_run_identity: str
    try_number: int
    max_tries: int
    clear_number: int
    own_ks: AbstractSet[int]


@dataclass(frozen=True)
class AttemptFacts:
    """The newest claimed attempt and all that is known about it."""

    claim: ClaimRecord
    acting_owner: OwnerRecord
    """The last owner that acted on it: claimed, attached, reposted, collected or found it finished."""
    job: JobSight
    stops: AbstractSet[int] = frozenset()
    has_final_stop: bool = False
    """An owner newer than the claim's marked the experiment as stopped for good."""
    alive: AliveRecord | None = None
    alive_age_s: float | None = None
    has_manifest: bool = False
    outcome: OutcomeRecord | None = None
    collected: CollectedRecord | None = None

    @property
    def final_outcome(self) -> OutcomeRecord | None:
        """The driver's own word, or what collect filled in."""
        return self.outcome or (self.collected.outcome if self.collected else None)

    @property
    def is_stop_wanted(self) -> bool:
        """Somebody of ours already asked this attempt to end."""
        return bool(self.stops) or self.has_final_stop


@dataclass(frozen=True)
class Start:
    """Claim the first attempt of a generation and train from the beginning (or from the warm-start parent)."""

    ref: AttemptRef
    reason: str
    answers_clear: bool = False


@dataclass(frozen=True)
class Restore:
    """Claim the next attempt of the generation; it continues from the newest verified checkpoint."""

    ref: AttemptRef
    reason: str
    answers_clear: bool = False


@dataclass(frozen=True)
class Attach:
    """Join the running job; nothing restarts."""

    ref: AttemptRef
    submission_id: str
    reason: str


@dataclass(frozen=True)
class Repost:
    """The claim exists, its job never arrived: send it again under the same id."""

    ref: AttemptRef
    submission_id: str
    reason: str


@dataclass(frozen=True)
class StopThenRestore:
    """Stop the live job, then claim `next_ref`."""

    ref: AttemptRef
    submission_id: str
    next_ref: AttemptRef
    reason: str
    answers_clear: bool = False


@dataclass(frozen=True)
class Collect:
    """The attempt is over with a success nobody has accepted yet: check it and publish it."""

    ref: AttemptRef
    submission_id: str
    reason: str


@dataclass(frozen=True)
class Finished:
    """The attempt was accepted before: publish its result again, train nothing."""

    ref: AttemptRef
    submission_id: str
    reason: str


@dataclass(frozen=True)
class Refuse:
    """Do nothing and fail with this failure."""

    failure: Failure


Decision = Start | Restore | Attach | Repost | StopThenRestore | Collect | Finished | Refuse


@dataclass(frozen=True)
class Clear:
    """Whether this try follows a clear, and how that was noticed."""

    is_clear: bool
    why: str = ""


def detect_clear(me: TryFacts, acting: OwnerRecord, *, on_clear: OnClear) -> Clear:
    """Compare with the last owner *that acted on the newest attempt*, never simply the last owner."""
    if acting.k in me.own_ks:
        return Clear(is_clear=False)
    if acting.dag_run_identity != me.dag_run_identity:
        return Clear(is_clear=True, why="the DAG run was created again")
    if acting.max_tries != me.max_tries:
        return Clear(is_clear=True, why=f"max_tries went from {acting.max_tries} to {me.max_tries}")
    if me.try_number <= acting.try_number:  # a lower one is a replaced process, see `replaced_by`
        return Clear(is_clear=True, why=f"try_number {me.try_number} is not above {acting.try_number}")
    if acting.clear_number != me.clear_number and on_clear == "fresh":
        why = f"clear_number went from {acting.clear_number} to {me.clear_number}"
        return Clear(is_clear=True, why=why)
    return Clear(is_clear=False)


def replaced_by(me: TryFacts, acting: OwnerRecord) -> Failure | None:
    """Why this process can't be the one that Airflow believes in, or None: a later try of the same run acted already.

    Within one DAG run no clear lowers `try_number`: Airflow only counts it up. What may look so is a task instance that a
    person deleted and Airflow made anew; a clear of it raises `clear_number` or `max_tries`, and then it is one.
    """
    if acting.k in me.own_ks or acting.dag_run_identity != me.dag_run_identity or acting.max_tries != me.max_tries:
        return None
    if me.try_number >= acting.try_number or me.clear_number > acting.clear_number:
        return None
    numbers = f"owner {acting.k} is try {acting.try_number}, this is try {me.try_number}"
    reason = f"a newer try acted on the experiment ({numbers}, both with max_tries {me.max_tries})"
    return Failure(kind=FailureKind.SUPERSEDED, reason=reason)


def decide_submission(
    me: TryFacts,
    newest: AttemptFacts | None,
    *,
    on_clear: OnClear = "auto",
    spec_digest: str = "",
    code_digest: str = "",
    now: datetime | None = None,
) -> Decision:
    """What this try does next. `newest` is the highest-ranked claim of the experiment, or None."""
    if newest is None:
        return Start(AttemptRef(generation=1, attempt=1), "no attempt yet: starting g1/a1")
    ref, job_id = newest.claim.ref, newest.claim.submission_id
    replaced = replaced_by(me, newest.acting_owner)
    if replaced is not None:
        return Refuse(replaced.model_copy(update={"reason": f"{ref}: {replaced.reason}"}))
    outcome, collected = newest.final_outcome, newest.collected
    is_success = outcome is not None and outcome.state is OutcomeState.SUCCESS
    accepted = collected.accepted if collected else None
    if is_success and accepted is None:
        return Collect(ref, job_id, f"{ref} finished with success and nobody published it yet")
    if is_success and accepted and collected is not None and collected.published is False:
        # The task failed before its result was out, so whoever cleared it never saw a finished training.
        return Finished(
            ref, job_id, f"{ref} finished and was accepted, but never published: publishing, training nothing"
        )
    clear = detect_clear(me, newest.acting_owner, on_clear=on_clear)
    if is_success and not clear.is_clear:
        if accepted:
            return Finished(ref, job_id, f"{ref} finished and was accepted before: publishing again, training nothing")
        why = (collected.refused_because if collected else None) or "its result was refused"
        return Refuse(Failure(kind=FailureKind.USER, reason=f"{ref} trained but was refused: {why}"))
    if clear.is_clear:
        return _after_clear(newest, why=clear.why, on_clear=on_clear, was_accepted=bool(is_success and accepted))
    if isinstance(newest.job, JobSeen):
        return _by_job_status(newest, newest.job.status)
    if isinstance(newest.job, JobUnknown):
        is_expired = now is not None and newest.claim.deadline is not None and now >= newest.claim.deadline
        is_same_request = (newest.claim.spec_digest, newest.claim.code_digest) == (spec_digest, code_digest)
        return _job_unknown(newest, newest.job, is_repostable=is_same_request and not is_expired)
    return _cluster_silent(newest, newest.job)


def _next(ref: AttemptRef) -> AttemptRef:
    return AttemptRef(generation=ref.generation, attempt=ref.attempt + 1)


def _after_clear(newest: AttemptFacts, *, why: str, on_clear: OnClear, was_accepted: bool) -> Decision:
    ref = newest.claim.ref
    is_fresh = on_clear == "fresh" or (on_clear == "auto" and was_accepted)
    target = AttemptRef(generation=ref.generation + 1, attempt=1) if is_fresh else _next(ref)
    how = "fresh generation" if is_fresh else "restore"
    reason = f"the task was cleared ({why}); on_clear={on_clear}: {how} {target}"
    if isinstance(newest.job, ClusterSilent):
        return Refuse(
            Failure(
                kind=FailureKind.NETWORK,
                reason=f"{reason}, but the cluster can't be reached to stop {ref}: {newest.job.why}",
            )
        )
    if isinstance(newest.job, JobSeen) and not newest.job.status.is_terminal:
        reason = f"{reason}; {ref} is {newest.job.status.value} and is stopped first"
        return StopThenRestore(ref, newest.claim.submission_id, target, reason, answers_clear=True)
    return Start(target, reason, answers_clear=True) if is_fresh else Restore(target, reason, answers_clear=True)


def _by_job_status(newest: AttemptFacts, status: JobStatus) -> Decision:
    ref, job_id = newest.claim.ref, newest.claim.submission_id
    if not status.is_terminal:
        if newest.is_stop_wanted:
            reason = f"{ref} is {status.value} with a stop of ours on it ({len(newest.stops)} stop records)"
            return StopThenRestore(ref, job_id, _next(ref), f"{reason}: stopping, then restoring as {_next(ref)}")
        return Attach(ref, job_id, f"{ref} is {status.value}: attaching to job {job_id}, nothing restarts")
    if status is JobStatus.SUCCEEDED and newest.final_outcome is None:
        return Collect(ref, job_id, f"job {job_id} SUCCEEDED but its driver left no outcome: collecting it")
    if status is JobStatus.STOPPED and not newest.is_stop_wanted:
        return Refuse(stopped_outside(job_id))
    outcome = newest.final_outcome
    how = f" ({outcome.failure.kind.value}: {outcome.failure.reason})" if outcome and outcome.failure else ""
    return Restore(_next(ref), f"{ref} ended {status.value}{how}: restoring as {_next(ref)}")


def stopped_outside(job_id: str) -> Failure:
    """A stop that nobody of ours asked for: a person's wish, so no automatic retry."""
    reason = f"job {job_id} was stopped outside Airflow: no stop record of ours lies on the attempt"
    return Failure(kind=FailureKind.STOPPED, reason=reason)


def _job_unknown(newest: AttemptFacts, job: JobUnknown, *, is_repostable: bool) -> Decision:
    claim = newest.claim
    has_traces = (
        newest.alive is not None or newest.has_manifest or newest.final_outcome is not None or newest.is_stop_wanted
    )
    is_same_session = job.session_name is not None and job.session_name == claim.session_name
    if is_same_session and not has_traces and is_repostable:
        return Repost(
            claim.ref, claim.submission_id, f"{claim.ref} is claimed but its job never arrived: sending again"
        )
    why = "the cluster was replaced" if not is_same_session else "the cluster no longer knows its job"
    outcome = newest.final_outcome
    if outcome is not None:
        how = f"ended {outcome.state.value}" + (f" ({outcome.failure.kind.value})" if outcome.failure else "")
        return Restore(_next(claim.ref), f"{claim.ref} {how}: restoring as {_next(claim.ref)}")
    return Restore(_next(claim.ref), f"{claim.ref} is lost ({why}): restoring as {_next(claim.ref)}")


def _cluster_silent(newest: AttemptFacts, job: ClusterSilent) -> Decision:
    ref, age = newest.claim.ref, newest.alive_age_s
    if age is not None and age < FRESH_ALIVE_S and not newest.is_stop_wanted and newest.final_outcome is None:
        reason = f"the cluster can't be reached ({job.why}) but {ref} gave a sign of life {age:.0f} s ago: attaching"
        return Attach(ref, newest.claim.submission_id, reason)
    seen = f"its last sign of life is {age:.0f} s old" if age is not None else "it never gave a sign of life"
    reason = f"the cluster can't be reached ({job.why}) and {ref} can't be judged: {seen}"
    return Refuse(Failure(kind=FailureKind.NETWORK, reason=reason))
