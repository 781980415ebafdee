"""How far the training is, from the controller's events: a value, so that stalls are judged without a clock of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job_spec import Timings
from airflow_provider.core.records import Phase
from airflow_provider.runtime.events import CommitEvent, Event, FailureEvent, PhaseEvent


@dataclass(frozen=True)
class Progress:
    """State of one attempt as its driver knows it."""

    phase: Phase
    phase_since: datetime
    num_commits: int = 0
    """Commits of this attempt, over all its fits."""
    num_restarts: int = 0
    last_commit_at: datetime | None = None
    last_checkpoint: str | None = None
    last_metrics: Mapping[str, Any] = field(default_factory=dict)
    trained_since_commit_s: float = 0.0
    """Seconds in phase TRAINING since the last commit, up to `phase_since`."""

    def entered(self, phase: Phase, at: datetime) -> Progress:
        """The same progress in another phase."""
        if phase is self.phase:
            return self
        trained = self.trained_s(at)
        return replace(self, phase=phase, phase_since=at, trained_since_commit_s=trained)

    def moved(self, step: timedelta) -> Progress:
        """The same progress by a clock that was moved by `step`."""
        last = self.last_commit_at
        return replace(self, phase_since=self.phase_since + step, last_commit_at=last + step if last else None)

    def after(self, event: Event) -> Progress:
        """The progress after an event."""
        if isinstance(event, PhaseEvent):
            return self.entered(event.phase, event.at)
        if isinstance(event, FailureEvent):
            return self if event.is_final else replace(self, num_restarts=self.num_restarts + 1)
        if isinstance(event, CommitEvent):
            return replace(
                self,
                num_commits=self.num_commits + 1,
                last_commit_at=event.at,
                last_checkpoint=event.checkpoint,
                last_metrics=event.metrics,
                trained_since_commit_s=0.0,
            )
        return self

    def trained_s(self, now: datetime) -> float:
        """Seconds of training since the last commit of this fit."""
        if self.phase is not Phase.TRAINING:
            return self.trained_since_commit_s
        since = max(self.phase_since, self.last_commit_at or self.phase_since)
        return self.trained_since_commit_s + max(0.0, (now - since).total_seconds())

    def overdue(self, timings: Timings, *, now: datetime) -> Failure | None:
        """The failure that ends the attempt when it neither trains nor gets nodes for too long."""
        waited = (now - self.phase_since).total_seconds() if self.phase is Phase.WAITING else 0.0
        if timings.resource_timeout_s is not None and waited > timings.resource_timeout_s:
            reason = f"waited {waited:.0f} s for nodes (resource_timeout_s={timings.resource_timeout_s:.0f})"
            return Failure(kind=FailureKind.CAPACITY, reason=reason)
        trained = self.trained_s(now)
        if timings.stall_timeout_s is not None and trained > timings.stall_timeout_s:
            reason = (
                f"no commit in {trained:.0f} s of training (stall_timeout_s={timings.stall_timeout_s:.0f}), "
                f"{self.num_commits} commits before"
            )
            return Failure(kind=FailureKind.STALLED, reason=reason)
        return None
