"""When a fit is not worth going on, when a driver fits again within its job, and whether a restore was real.

Ray repeats any worker failure `max_failures` times, a deterministic one too, and gives controller errors no retry at
all; these rules correct both. Numbers come in, a verdict with its reason goes out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.manifest import finite
from airflow_provider.core.spec import FailureConfig

_ENDS_AT_ONCE = frozenset({FailureKind.CONFIG, FailureKind.PERMISSION, FailureKind.SUPERSEDED})
_COUNTS_AGAINST_PROGRESS = frozenset(
    {FailureKind.USER, FailureKind.OUT_OF_MEMORY, FailureKind.HANG, FailureKind.STALLED, FailureKind.CHECKPOINT}
)
"""Everything else is the cluster's or the store's doing: it says nothing about the training."""
_REFIT = frozenset(
    {FailureKind.INFRASTRUCTURE, FailureKind.NETWORK, FailureKind.THROTTLING, FailureKind.PREEMPTION, FailureKind.HANG}
)
_MAX_REFITS_WITHOUT_COMMIT = 3
_MIN_REPEATS = 2
_MAX_SUSPECTED = 3
_FRAME = re.compile(r'File "[^"]+", line \d+')
GUESSED_PROGRESS = ("epoch", "step", "global_step", "iteration", "training_iteration")


@dataclass(frozen=True)
class SeenFailure:
    """A worker-group failure inside one fit and how many commits the fit had made before it."""

    failure: Failure
    commits_before: int


@dataclass(frozen=True)
class FitVerdict:
    """Whether the fit should end now, as what, and why."""

    ends: bool
    reason: str
    failure: Failure | None = None


def decide_fit_failure(seen: Sequence[SeenFailure], *, config: FailureConfig) -> FitVerdict:
    """Judge the last of the failures seen in one fit. Infrastructure and preemption never end it here."""
    if not seen:
        return FitVerdict(ends=False, reason="no failure")
    last = seen[-1]
    if last.failure.kind in _ENDS_AT_ONCE:
        return _end(last.failure, f"{last.failure.kind.value} errors don't go away by trying again")
    if last.failure.kind not in _COUNTS_AGAINST_PROGRESS:
        return FitVerdict(ends=False, reason=f"{last.failure.kind.value} says nothing about the training")
    without_commit = [
        s for s in seen if s.commits_before == last.commits_before and s.failure.kind in _COUNTS_AGAINST_PROGRESS
    ]
    if last.failure.kind is FailureKind.USER:
        same = [s for s in without_commit if _signature(s.failure) == _signature(last.failure)]
        if len(same) >= _MIN_REPEATS:
            why = f"the same error {len(same)} times without a commit in between"
            return _end(last.failure, why, repeats=len(same))
    if len(without_commit) >= config.no_progress_failures:
        reason = f"{len(without_commit)} failures without a commit (no_progress_failures={config.no_progress_failures})"
        return _end(last.failure, reason)
    return FitVerdict(
        ends=False,
        reason=f"{len(without_commit)}/{config.no_progress_failures} failures without a commit; Ray recovers",
    )


def _end(failure: Failure, why: str, *, repeats: int = 1) -> FitVerdict:
    ended = failure.model_copy(update={"reason": f"{why}: {failure.reason}", "repeats": repeats})
    return FitVerdict(ends=True, reason=ended.reason, failure=ended)


def _signature(failure: Failure) -> tuple[str | None, str]:
    """Type and place of an error: messages hold step numbers and losses that differ each time."""
    frames = _FRAME.findall(failure.detail)
    return (failure.exception_type, frames[-1] if frames else failure.reason)


@dataclass(frozen=True)
class RefitVerdict:
    """Whether the driver fits again within its job, and why."""

    refits: bool
    reason: str


def decide_refit(
    failure: Failure, *, fits_done: int, fits_without_commit: int, was_ended_by_rule: bool, config: FailureConfig
) -> RefitVerdict:
    """Judge how a fit ended. `fits_without_commit` counts the fits in a row, this one included, that committed nothing."""
    if was_ended_by_rule or failure.kind not in _REFIT:
        return RefitVerdict(refits=False, reason=f"a {failure.kind.value} failure is not repeated within the job")
    if fits_done > config.max_refits:
        return RefitVerdict(refits=False, reason=f"{fits_done} fits done, max_refits={config.max_refits}")
    if fits_without_commit >= _MAX_REFITS_WITHOUT_COMMIT:
        return RefitVerdict(refits=False, reason=f"{fits_without_commit} fits in a row without a commit")
    return RefitVerdict(refits=True, reason=f"{failure.kind.value} failure; refit {fits_done}/{config.max_refits}")


@dataclass(frozen=True)
class Suspicion:
    """A checkpoint that is set aside for an error, until it is known whether the checkpoint or the code is to blame."""

    checkpoint: str
    failure: Failure


@dataclass(frozen=True)
class PoisonVerdict:
    """What becomes of a checkpoint that a training keeps failing from, and why."""

    action: Literal["leave", "suspect", "convict", "release"]
    reason: str


def decide_poison(
    failure: Failure,
    *,
    checkpoint: str | None,
    suspicion: Suspicion | None,
    has_progressed: bool,
    num_suspected: int,
    on_corrupt: Literal["rollback", "fail"],
) -> PoisonVerdict:
    """Is it the checkpoint or the code? A repeated error is tried once from the checkpoint before.

    `checkpoint` is the newest committed one when the fit ended; `has_progressed` says whether anything was committed since
    `suspicion` arose, `num_suspected` how many this job has had. The same error without the suspect is the code's. Any
    other failure after new commits convicts the suspect: training went past it only without it.
    """
    is_repeated = failure.kind is FailureKind.USER and failure.repeats >= _MIN_REPEATS
    if suspicion is not None:
        is_same = _signature(failure) == _signature(suspicion.failure)
        if is_repeated and (is_same or not has_progressed):
            why = f"it fails without {suspicion.checkpoint} too: the code's error, not the checkpoint's"
            return PoisonVerdict("release", why)
        if has_progressed:
            return PoisonVerdict("convict", f"training went on without {suspicion.checkpoint}")
        return PoisonVerdict("leave", f"nothing is known yet about {suspicion.checkpoint}")
    if not is_repeated:
        return PoisonVerdict("leave", "no error that repeats itself from one checkpoint")
    if checkpoint is None:
        return PoisonVerdict("leave", "there is no checkpoint to blame")
    if on_corrupt == "fail":
        return PoisonVerdict("leave", f"{checkpoint} may be poisonous, but on_corrupt='fail' forbids to go back")
    if num_suspected >= _MAX_SUSPECTED:
        return PoisonVerdict("leave", f"{num_suspected} checkpoints of this job were suspected already")
    return PoisonVerdict(
        "suspect", f"{failure.repeats} times the same error from {checkpoint}: trying the one before it"
    )


@dataclass(frozen=True)
class RestoreProof:
    """Whether training really went on from the restored checkpoint."""

    proven: Literal["yes", "no", "unknown"]
    reason: str
    is_declared: bool
    """False: the metric was guessed, so a "no" is a warning and not a failure."""
    metric: str | None = None
    """The one that was compared."""

    @property
    def outcome(self) -> Literal["yes", "no", "unknown"]:
        """What the outcome says: a guess accuses nobody, a `step` may well begin anew in each epoch."""
        return "unknown" if self.proven == "no" and not self.is_declared else self.proven

    @property
    def fallen_metric(self) -> str | None:
        """The declared metric that fell."""
        return self.metric if self.outcome == "no" else None


def prove_restore(restored: Mapping[str, Any], reported: Mapping[str, Any], *, declared: str | None) -> RestoreProof:
    """Compare the first report after a restore with the restored checkpoint's metrics.

    A declared metric that is in neither is no metric of this training, perhaps misspelt: then the guess holds, as without one.
    """
    if declared and declared not in restored and declared not in reported:
        guess = prove_restore(restored, reported, declared=None)
        return RestoreProof(
            guess.proven,
            f"progress_metric {declared!r} is not reported; {guess.reason}",
            is_declared=False,
            metric=guess.metric,
        )
    names = (declared,) if declared else GUESSED_PROGRESS
    for name in names:
        before, after = finite(restored.get(name)), finite(reported.get(name))
        if before is None or after is None:
            continue
        if after < before:
            reason = f"{name} fell from {before:g} in the restored checkpoint to {after:g}: the loop began again"
            return RestoreProof("no", reason, declared is not None, name)
        return RestoreProof("yes", f"{name} went on from {before:g} to {after:g}", declared is not None, name)
    what = f"{declared} is not a number in both" if declared else "no progress metric in both"
    return RestoreProof("unknown", f"{what} the restored checkpoint and the first report", declared is not None)
