"""Experiments told in seconds: when tries owned and claimed, what their drivers did, and what was noticed when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow_provider.core.attempt_time import Cause
from airflow_provider.core.goodput import TimeSpent
from airflow_provider.core.lineage import AttemptRecords, ExperimentFacts
from airflow_provider.core.records import (
    AliveRecord,
    CheckpointEntry,
    OwnerRecord,
    Phase,
    PhaseEntry,
    RecordSegment,
    RestoredRecord,
)
from tests.support.experiment import NOW, claim, owner
from tests.support.records import collected, outcome

URI = "s3://models/churn/e"
Phases = Sequence[tuple[str, float]]
HEALTHY = [("starting", 10), ("restoring", 12), ("waiting", 15), ("training", 20)]
"""Of an attempt that was claimed at 2 by a try that began at 0."""


def at(seconds: float) -> datetime:
    """That many seconds after the story's beginning."""
    return NOW + timedelta(seconds=seconds)


def a_try(k: int, second: float, **changes: Any) -> OwnerRecord:
    """A try that owns the experiment."""
    return owner(k, created_at=at(second), **changes)


def name(attempt: int, number: int) -> str:
    """A checkpoint's."""
    return f"attempts/{attempt:06d}/c{number}"


def segment(
    phases: Phases = (), commits: Mapping[str, float] | None = None, *, skew: float = 0.0, **changes: Any
) -> RecordSegment:
    """What a driver recorded, by a clock that is `skew` seconds ahead."""
    return RecordSegment(
        phases=tuple(PhaseEntry(phase=Phase(phase), at=at(second + skew)) for phase, second in phases),
        checkpoints=tuple(
            CheckpointEntry(checkpoint=one, reported_at=at(second + skew)) for one, second in (commits or {}).items()
        ),
        written_at=NOW,
        **changes,
    )


def alive(phase: str, since: float, *, written: float, **changes: Any) -> AliveRecord:
    """A driver's last sign of life."""
    return AliveRecord(run_uid="u", phase=Phase(phase), phase_since=at(since), written_at=at(written), **changes)


def attempt(  # a story's facts, each by name
    number: int,
    *,
    claimed: float,
    phases: Phases = (),
    commits: Mapping[str, float] | None = None,
    ended: tuple[str, float] | None = None,
    noticed: tuple[str, float] | None = None,
    restored: str | None = None,
    skew: float = 0.0,
    k: int | None = None,
    generation: int = 1,
    answers_clear: bool | None = False,
    **changes: Any,
) -> AttemptRecords:
    """One attempt: `ended` by its driver's own word, or `noticed` by Airflow where the driver left none."""
    made = claim(generation, number, k=k or number, created_at=at(claimed), answers_clear=answers_clear)
    fields: dict[str, Any] = {"claim": made, "segments": (segment(phases, commits, skew=skew),)}
    began = [second for phase, second in phases if phase == "waiting"]
    if began:
        fields["restored"] = RestoredRecord(checkpoint=restored, reason="r", created_at=at(began[0] + skew))
    if ended is not None:
        fields["outcome"] = outcome(ended[0]).model_copy(update={"finished_at": at(ended[1] + skew)})
    if noticed is not None:
        concluded = outcome(noticed[0]).model_copy(update={"finished_at": at(noticed[1])})
        fields["collected"] = collected(outcome=concluded).model_copy(update={"written_at": at(noticed[1])})
    return AttemptRecords(**{**fields, **changes})


def story(*parts: OwnerRecord | AttemptRecords) -> ExperimentFacts:
    """The experiment of these tries and attempts."""
    owners = tuple(one for one in parts if isinstance(one, OwnerRecord))
    return ExperimentFacts(URI, owners, tuple(one for one in parts if isinstance(one, AttemptRecords)))


def parts(spent: TimeSpent) -> dict[str, float]:
    """What is not zero, by name, and productive seconds as `productive`."""
    found = {"productive": spent.productive_s, **{cause.value: spent.lost_s[cause] for cause in Cause}}
    return {one: round(seconds, 6) for one, seconds in found.items() if seconds}
