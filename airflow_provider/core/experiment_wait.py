"""What a sensor concludes from one look at an experiment's records: wait, done, or failed, with a reason. Pure.

Numbers decide what is newer, never times.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import Self

from airflow_provider.core import layout
from airflow_provider.core.condition import Condition
from airflow_provider.core.experiment_sight import (
    ExperimentSight,
    Stage,
    TrainingStage,
    descent,
    latest_checkpoint,
    named_checkpoint,
    training_stage,
)
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.field_types import CheckpointName
from airflow_provider.core.fit_rules import GUESSED_PROGRESS
from airflow_provider.core.lineage import XCOM_LIMIT, LineageCheckpoint, within_limit
from airflow_provider.core.manifest import finite

END = "end"
CHECKPOINT = "checkpoint"
TELL_AFTER = 3
"""From so many checkpoints on, a metric that none of them reports is said in the log."""
_MAX_NAMES = 20


class Baseline(BaseModel):
    """What counts as old: the newest attempt and committed checkpoint at one moment, or a checkpoint that somebody named."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    generation: int = Field(default=0, ge=0, le=999_999)
    attempt: int = Field(default=0, ge=0, le=999_999)
    checkpoint: CheckpointName | None = None
    """Relative to the experiment."""
    is_over: bool = False
    """Whether the newest attempt had ended for good."""

    @classmethod
    def of_checkpoint(cls, name: str) -> Self:
        """Everything up to a checkpoint; `name` is relative to the experiment."""
        generation, attempt = layout.parse_attempt(name) or (layout.parse_generation(name) or 0, 0)
        return cls(generation=generation, attempt=attempt, checkpoint=name)


class WaitSpec(BaseModel):
    """What is waited for. Small and without secrets: it stands in the trigger's row."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    until: str
    """`end`, `checkpoint`, or a condition."""
    missing: Literal["wait", "fail"] = "wait"
    is_since_now: bool = False
    """What was there when the wait began is old, its end too."""
    baseline: Baseline | None = None
    """None: nothing is old, or (where one is needed) the first look will tell."""
    max_checkpoints_without_metric: int | None = Field(default=100, ge=1)

    @property
    def needs_baseline(self) -> bool:
        """Whether the first look decides what is old."""
        return self.baseline is None and (self.is_since_now or self.until == CHECKPOINT)


@dataclass(frozen=True)
class KeepWaiting:
    """Look again later. `warning` is worth saying once."""

    reason: str
    warning: str | None = None


@dataclass(frozen=True)
class WaitDone:
    """What was waited for is there."""

    reason: str
    checkpoint: LineageCheckpoint | None = None
    """The one that ended the wait; for an end, the latest."""


class WaitFailure(str, Enum):
    """Why a wait can't succeed any more."""

    MISSING = "missing"
    TRAINING_FAILED = "training_failed"
    NOT_MET = "not_met"
    NO_METRIC = "no_metric"


@dataclass(frozen=True)
class WaitFailed:
    """It will not come."""

    why: WaitFailure
    reason: str
    failure: Failure
    """The training's own failure, or one that says why waiting is over."""


WaitVerdict = KeepWaiting | WaitDone | WaitFailed


def baseline_of(sight: ExperimentSight) -> Baseline:
    """What is there now, as what a later look calls old."""
    newest, committed = sight.newest, sight.committed
    if newest is None:
        return Baseline()
    stage = training_stage(sight).stage
    return Baseline(
        generation=newest.claim.generation,
        attempt=newest.claim.attempt,
        checkpoint=committed[-1].name if committed else None,
        is_over=stage in {Stage.SUCCESS, Stage.FAILED},
    )


# --- the verdict -----------------------------------------------------------------------------------------------------


def judge_look(sight: ExperimentSight, spec: WaitSpec, condition: Condition | None = None) -> WaitVerdict:
    """The verdict on one look. `condition` is `spec.until`, parsed, where that is one."""
    stage = training_stage(sight)
    if stage.stage is Stage.ABSENT:
        return _absent(stage, spec)
    if spec.until == END:
        return _judge_end(sight, stage, spec)
    new = _newer(sight, spec.baseline)
    if condition is not None:
        return _judge_condition(sight, stage, new, spec, condition)
    if new:
        return WaitDone(f"checkpoint {new[-1].name} is committed{_numbers(new[-1])}", new[-1])
    than = f" newer than {spec.baseline.checkpoint}" if spec.baseline and spec.baseline.checkpoint else ""
    return _without(sight, stage, spec, what=f"no checkpoint{than}")


def _absent(stage: TrainingStage, spec: WaitSpec) -> WaitVerdict:
    if spec.missing == "fail":
        failure = Failure(kind=FailureKind.CONFIG, reason=f"{stage.reason} (missing='fail')")
        return WaitFailed(WaitFailure.MISSING, stage.reason, failure)
    return KeepWaiting(stage.reason)


def _judge_end(sight: ExperimentSight, stage: TrainingStage, spec: WaitSpec) -> WaitVerdict:
    if stage.stage is Stage.RUNNING:
        return KeepWaiting(_course(sight, stage))
    if _is_old_end(sight, spec):
        return KeepWaiting(f"{stage.reason}, before this wait began (since='now')")
    if stage.failure is not None:
        return _training_failed(stage)
    latest = latest_checkpoint(sight)
    return WaitDone(f"{stage.reason}{_numbers(latest)}", latest)


def _judge_condition(
    sight: ExperimentSight,
    stage: TrainingStage,
    new: tuple[LineageCheckpoint, ...],
    spec: WaitSpec,
    condition: Condition,
) -> WaitVerdict:
    line = descent(sight)
    history = [c.metrics for c in line]
    held = dict(zip((c.name for c in line), condition.holds_at(history), strict=True))
    for checkpoint in reversed(new):
        # One off the line has no history of its own: a plateau can't be seen at it.
        if held.get(checkpoint.name, condition.holds_at([checkpoint.metrics])[0]):
            return WaitDone(f"{condition} holds at {checkpoint.name}{_numbers(checkpoint)}", checkpoint)
    known = sight.checkpoints
    if not known:
        return _without(sight, stage, spec, what="no checkpoint is committed")
    unseen = [m for m in condition.metrics if not any(m in c.metrics for c in known)]
    if not unseen:
        return _without(sight, stage, spec, what=f"{condition.explain(history)}")
    return _without_metric(sight, stage, spec, metrics=unseen)


def _without(sight: ExperimentSight, stage: TrainingStage, spec: WaitSpec, *, what: str) -> WaitVerdict:
    """Neither checkpoint nor condition is there: wait while more can come."""
    if stage.stage is Stage.RUNNING:
        return KeepWaiting(f"{_course(sight, stage)}; {what}")
    if _is_old_end(sight, spec):
        return KeepWaiting(f"{stage.reason}, before this wait began (since='now'); {what}")
    if stage.failure is not None:
        return _training_failed(stage)
    reason = f"{stage.reason}, and {what}"
    return WaitFailed(WaitFailure.NOT_MET, reason, Failure(kind=FailureKind.USER, reason=reason))


def _without_metric(sight: ExperimentSight, stage: TrainingStage, spec: WaitSpec, *, metrics: list[str]) -> WaitVerdict:
    known = sight.checkpoints
    names = sorted({name for c in known for name in c.metrics})
    is_cut = any(c.metrics_cut for c in known)
    listed = ", ".join(names[:_MAX_NAMES]) + (" ..." if len(names) > _MAX_NAMES else "") or "no metric at all"
    cut = " (long metrics were left out of the records)" if is_cut else ""
    what = f"none of {len(known)} checkpoints reports {', '.join(metrics)}; they report {listed}{cut}"
    most = spec.max_checkpoints_without_metric
    verdict = _without(sight, stage, spec, what=what)
    if isinstance(verdict, WaitFailed) and verdict.why is WaitFailure.NOT_MET:
        return WaitFailed(WaitFailure.NO_METRIC, verdict.reason, verdict.failure)
    if not isinstance(verdict, KeepWaiting):
        return verdict
    if most is not None and len(known) >= most:
        reason = f"{what} (max_checkpoints_without_metric={most})"
        return WaitFailed(WaitFailure.NO_METRIC, reason, Failure(kind=FailureKind.USER, reason=reason))
    return KeepWaiting(verdict.reason, warning=what if len(known) >= TELL_AFTER else None)


def _training_failed(stage: TrainingStage) -> WaitFailed:
    failure = stage.failure or Failure(kind=FailureKind.INFRASTRUCTURE, reason=stage.reason)
    return WaitFailed(WaitFailure.TRAINING_FAILED, stage.reason, failure)


def _is_old_end(sight: ExperimentSight, spec: WaitSpec) -> bool:
    old, newest = spec.baseline, sight.newest
    if not spec.is_since_now or old is None or newest is None or not old.is_over:
        return False
    return newest.claim.ref.rank <= (old.generation, old.attempt)


# --- checkpoints -----------------------------------------------------------------------------------------------------


def _newer(sight: ExperimentSight, old: Baseline | None) -> tuple[LineageCheckpoint, ...]:
    """Committed checkpoints that are not old, in order."""
    if old is None or sight.newest is None or sight.newest.claim.generation > old.generation:
        return sight.committed
    if sight.newest.claim.generation < old.generation:
        return ()
    order = [c.name for c in sight.checkpoints]
    copies = _copies(sight)
    if old.checkpoint in order:
        later = set(order[order.index(old.checkpoint) + 1 :])
    elif old.checkpoint is None:
        later = set(order)
    else:
        # Its record is gone: what later attempts committed is newer, and names of one attempt carry their time.
        later = {n for n in order if (layout.parse_attempt(n) or (0, 0))[1] > old.attempt or n > old.checkpoint}
    return tuple(c for c in sight.committed if c.name in later and c.name not in copies)


def _copies(sight: ExperimentSight) -> frozenset[str]:
    """Checkpoints that an attempt copied into its own folder to restore them: nothing was trained for these."""
    attempts = sight.lineage.attempts if sight.lineage is not None else ()
    restored = {a.ref: a.restored_from for a in attempts}
    return frozenset(c.name for c in sight.checkpoints if restored.get(c.attempt) == c.name)


def _course(sight: ExperimentSight, stage: TrainingStage) -> str:
    latest = latest_checkpoint(sight)
    return f"{stage.reason}; {len(sight.checkpoints)} checkpoints{_numbers(latest)}"


def _numbers(checkpoint: LineageCheckpoint | None) -> str:
    """A few metrics for a sentence."""
    if checkpoint is None:
        return ""
    shown = [f"{k}={v:g}" for k, raw in checkpoint.metrics.items() if (v := finite(raw)) is not None]
    return f" ({', '.join(shown[:6])})" if shown else ""


# --- the result ------------------------------------------------------------------------------------------------------


def wait_result(sight: ExperimentSight, done: WaitDone, spec: WaitSpec) -> dict[str, Any]:
    """What the sensor returns: strict JSON within the XCom limit, with the names that the operator's result has too."""
    newest, stage = sight.newest, training_stage(sight)
    outcome = newest.final_outcome if newest is not None else None
    chosen = done.checkpoint
    claim = newest.claim if newest is not None else None
    result: dict[str, Any] = {
        "state": stage.stage.value,
        "experiment": sight.uri,
        "generation": claim.generation if claim else None,
        "attempt": claim.attempt if claim else None,
        "submission_id": claim.submission_id if claim else None,
        "checkpoint": _described(sight, chosen),
        "latest_checkpoint": _described(sight, latest_checkpoint(sight)),
        "best_checkpoint": _described(sight, named_checkpoint(sight, outcome.best_checkpoint if outcome else None)),
        "progress": _progress(chosen),
        "attempts": len(sight.facts.attempts) if sight.facts else 0,
        "until": spec.until,
        "reason": done.reason,
    }
    return within_limit(result, XCOM_LIMIT)


def _described(sight: ExperimentSight, checkpoint: LineageCheckpoint | None) -> dict[str, Any] | None:
    if checkpoint is None:
        return None
    return {
        "uri": f"{sight.uri}/{checkpoint.name}",
        "name": checkpoint.name,
        "metrics": checkpoint.metrics,
        "truncated": checkpoint.metrics_cut,
    }


def _progress(checkpoint: LineageCheckpoint | None) -> dict[str, float]:
    """The metrics that count up, under their own names."""
    metrics = checkpoint.metrics if checkpoint is not None else {}
    return {name: metrics[name] for name in GUESSED_PROGRESS if finite(metrics.get(name)) is not None}
