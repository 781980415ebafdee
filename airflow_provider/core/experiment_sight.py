"""What one look at an experiment's records shows: the newest generation, where its training stands, its checkpoints. Pure.

Only the newest generation counts: a cleared training that trains again is a new one, and what the generations before it reached
is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.lineage import AttemptRecords, ExperimentFacts, Lineage, LineageCheckpoint
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import OutcomeRecord, OutcomeState, OwnerRecord, StopRecord
from airflow_provider.core.waiting import SILENCE_TO_TELL_S


@dataclass(frozen=True)
class ExperimentSight:
    """One look: the newest generation's records, and the newest owner."""

    uri: str
    newest_owner: OwnerRecord | None = None
    facts: ExperimentFacts | None = None
    """None: no attempt was ever claimed here."""
    lineage: Lineage | None = None
    """Of the newest generation."""
    alive_age_s: float | None = None
    """Age of the newest driver's sign of life, by the store's clock; None where there is none, or the attempt is over."""
    stops: tuple[StopRecord, ...] = ()
    """Of the newest attempt."""

    @property
    def newest(self) -> AttemptRecords | None:
        """The newest attempt."""
        return self.facts.attempts[-1] if self.facts is not None else None

    @property
    def checkpoints(self) -> tuple[LineageCheckpoint, ...]:
        """Every checkpoint of the newest generation that was ever committed, in the order of attempts and registration."""
        found = self.lineage.checkpoints if self.lineage is not None else ()
        return tuple(c for c in found if c.state != "uncommitted")

    @property
    def committed(self) -> tuple[LineageCheckpoint, ...]:
        """Those that the newest manifest lists and nobody has set aside: what a next task can use."""
        return tuple(c for c in self.checkpoints if c.state == "committed")


class Stage(str, Enum):
    """Where the newest generation's training stands."""

    ABSENT = "absent"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"


@dataclass(frozen=True)
class TrainingStage:
    """The stage with its reason, and the failure that ended it for good."""

    stage: Stage
    reason: str
    failure: Failure | None = None


def training_stage(sight: ExperimentSight) -> TrainingStage:
    """How the newest attempt stands, and whether another one can follow.

    A failure is final when its kind is, when the try that met it was Airflow's last, or when a person stopped it for good: until
    then the training's own retry restores, and a sensor waits for that. A retry policy other than ours may decide otherwise.
    """
    newest, owner = sight.newest, sight.newest_owner
    if newest is None:
        if owner is None:
            return TrainingStage(Stage.ABSENT, f"there is no experiment at {sight.uri}")
        before = f"{owner.task_id} before its first attempt"
        if owner.final:
            return _stopped_for_good(before)
        return _given_up(before, sight) or TrainingStage(
            Stage.RUNNING, f"try {owner.try_number} of {owner.task_id} has begun; no attempt yet"
        )
    ref, outcome = newest.claim.ref, newest.final_outcome
    is_newer = owner is not None and owner.k > newest.claim.k and owner.acted_on != ref
    is_stopped = is_newer and owner is not None and owner.final
    if outcome is not None and outcome.state is OutcomeState.SUCCESS:
        return _after_success(newest, sight, is_stopped=is_stopped)
    if is_stopped:
        return _stopped_for_good(str(ref))
    if is_newer or outcome is None or outcome.state is OutcomeState.CANCELLED:
        given_up = _given_up(str(ref), sight)
        if given_up is not None:
            return given_up
    if is_newer and owner is not None:
        return TrainingStage(Stage.RUNNING, f"try {owner.try_number} has begun after {ref}")
    if outcome is None:
        is_silent = sight.alive_age_s is not None and sight.alive_age_s >= SILENCE_TO_TELL_S
        silence = f", but its driver gave no sign of life for {SILENCE_TO_TELL_S:.0f} s" if is_silent else ""
        return TrainingStage(Stage.RUNNING, f"{ref} trains{silence}")
    return _after_failure(ref, outcome, owner)


def _stopped_for_good(what: str) -> TrainingStage:
    reason = f"a person stopped {what} for good (task marked by hand)"
    return TrainingStage(Stage.FAILED, reason, Failure(kind=FailureKind.STOPPED, reason=reason))


def _given_up(what: str, sight: ExperimentSight) -> TrainingStage | None:
    """The owner's try ended the task for good, by its own word or by a stop: the driver then knows of the stop only.

    A driver that gives signs of life trains on, as behind a dashboard that refuses us: what it commits still comes.
    """
    owner = sight.newest_owner
    if owner is None or (sight.alive_age_s is not None and sight.alive_age_s < SILENCE_TO_TELL_S):
        return None
    failure = owner.gave_up
    for stop in sight.stops:
        if stop.k == owner.k and stop.ends is not None and not stop.ends.is_retryable:
            failure = failure or Failure(kind=stop.ends, reason=stop.reason)
    if failure is None:
        return None
    return TrainingStage(Stage.FAILED, f"the task gave up {what} ({failure.kind.value}: {failure.reason})", failure)


def _after_success(newest: AttemptRecords, sight: ExperimentSight, *, is_stopped: bool) -> TrainingStage:
    ref, collected = newest.claim.ref, newest.collected
    if collected is None or collected.accepted is None:
        if is_stopped:  # no task will accept it any more
            return _stopped_for_good(str(ref))
        unaccepted = TrainingStage(Stage.RUNNING, f"{ref} finished; its task has not accepted the result yet")
        return _given_up(str(ref), sight) or unaccepted
    if collected.accepted:
        return TrainingStage(Stage.SUCCESS, f"{ref} ended with success")
    why = collected.refused_because or "its result was refused"
    return TrainingStage(Stage.FAILED, f"{ref}: {why}", Failure(kind=FailureKind.USER, reason=why))


def _after_failure(ref: AttemptRef, outcome: OutcomeRecord, owner: OwnerRecord | None) -> TrainingStage:
    failure = outcome.failure or Failure(
        kind=FailureKind.INFRASTRUCTURE, reason=f"{outcome.state.value}, no reason given"
    )
    what = f"{ref} ended {outcome.state.value} ({failure.kind.value}: {failure.reason})"
    if outcome.state is OutcomeState.SUPERSEDED or failure.kind is FailureKind.SUPERSEDED:
        return TrainingStage(Stage.RUNNING, f"{what}; a newer one follows")
    has_tries = owner is None or owner.try_number <= owner.max_tries
    # A cancelled driver obeyed a stop: of a clear, which another try follows, or of a time-out, which Airflow retries.
    is_retried = failure.is_retryable or outcome.state is OutcomeState.CANCELLED
    if is_retried and has_tries:
        tries = f"try {owner.try_number} of {owner.max_tries + 1}" if owner else "an unknown try"
        return TrainingStage(Stage.RUNNING, f"{what} in {tries}; the next one restores")
    why = "no try is left" if is_retried else "not retried"
    return TrainingStage(Stage.FAILED, f"{what}; {why}", failure)


def descent(sight: ExperimentSight) -> tuple[LineageCheckpoint, ...]:
    """The latest usable checkpoint with its ancestors, oldest first: what was trained and rolled back is not on it."""
    by_name = {c.name: c for c in sight.checkpoints}

    def ancestors() -> Iterator[LineageCheckpoint]:
        committed, latest = sight.committed, latest_checkpoint(sight)
        start = latest if latest in committed else committed[-1] if committed else None
        name = start.name if start is not None else None
        while name is not None and (checkpoint := by_name.pop(name, None)) is not None:
            yield checkpoint
            name = checkpoint.parent

    return tuple(ancestors())[::-1]


def latest_checkpoint(sight: ExperimentSight) -> LineageCheckpoint | None:
    """What the outcome or the newest manifest calls the latest."""
    if sight.facts is None:
        return None
    outcome = sight.facts.attempts[-1].final_outcome
    manifests = [a.manifest for a in sight.facts.attempts if a.manifest is not None]
    latest = manifests[-1].latest if manifests else None
    name = outcome.latest_checkpoint if outcome is not None else None
    return named_checkpoint(sight, name or (latest.name if latest is not None else None))


def named_checkpoint(sight: ExperimentSight, name: str | None) -> LineageCheckpoint | None:
    """The checkpoint of a name relative to the newest generation's folder."""
    if name is None or sight.newest is None:
        return None
    full = f"{layout.generation(sight.newest.claim.generation)}/{name}"
    return next((c for c in sight.checkpoints if c.name == full), None)
