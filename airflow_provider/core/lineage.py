"""The lineage of an experiment: tries, attempts, checkpoints and what descends from what, projected from the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.manifest import Manifest
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import (
    AliveRecord,
    CheckpointEntry,
    ClaimRecord,
    CollectedRecord,
    OutcomeRecord,
    OutcomeState,
    OwnerRecord,
    RecordSegment,
    RestoredRecord,
)
from airflow_provider.core.restore import registration_order
from airflow_provider.core.strict_json import bounded_metrics, json_bytes, shortened

XCOM_LIMIT = 48_000
"""Bytes of JSON: some XCom backends cap at 48 kB."""
_REASON_LIMIT = 1_000
"""Characters of a reason kept in XCom: a job's message may have 20,000."""
CheckpointState = Literal["committed", "pruned", "quarantined", "uncommitted"]


@dataclass(frozen=True)
class AttemptRecords:
    """Everything read from one attempt's folder."""

    claim: ClaimRecord
    restored: RestoredRecord | None = None
    outcome: OutcomeRecord | None = None
    collected: CollectedRecord | None = None
    manifest: Manifest | None = None
    segments: tuple[RecordSegment, ...] = ()
    uncommitted: tuple[str, ...] = ()
    alive: AliveRecord | None = None
    """The driver's last sign of life, read where the driver left no outcome."""
    alive_age_s: float | None = None
    """Its age by the store's clock."""

    @property
    def final_outcome(self) -> OutcomeRecord | None:
        """The driver's word, or what collect filled in."""
        return self.outcome or (self.collected.outcome if self.collected else None)

    @cached_property
    def entries(self) -> Mapping[str, CheckpointEntry]:
        """Recorded checkpoints by name; a first-hand record wins over a late one."""
        found: dict[str, CheckpointEntry] = {}
        for entry in sorted((e for s in self.segments for e in s.checkpoints), key=lambda e: e.late):
            found.setdefault(entry.checkpoint, entry)
        return found

    @cached_property
    def own_commits(self) -> tuple[str, ...]:
        """Names of the checkpoints this attempt committed itself, oldest first (not those it carried over or copied).

        Its own folder tells them apart; on Train V1, which goes on in the folder of the attempt it restores, its records do.
        """
        n, entries = self.claim.attempt, self.entries
        listed = [e.name for e in registration_order(self.manifest)] if self.manifest else []
        is_listed = frozenset(listed)

        def place(entry: CheckpointEntry) -> int:
            # The time of a late one is that of its record: listed no more, it was committed before all that is.
            return 1 if not entry.late else 2 if entry.checkpoint in is_listed else 0

        recorded = sorted(entries.values(), key=lambda e: (place(e), e.reported_at))
        names = dict.fromkeys([*(e.checkpoint for e in recorded), *listed])
        own = [x for x in names if (layout.is_of(n, x) or x in entries) and layout.copied_from(x) is None]
        # Names are dated unless the author chose them; registration order wins where the manifest still lists them.
        is_own = frozenset(own)
        kept = iter([x for x in listed if x in is_own])
        return tuple(next(kept) if x in is_listed else x for x in own)


@dataclass(frozen=True)
class ExperimentFacts:
    """All records of an experiment, as read."""

    uri: str
    owners: tuple[OwnerRecord, ...]
    attempts: tuple[AttemptRecords, ...]
    """Sorted by rank."""
    quarantined: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By generation."""


class LineageModel(BaseModel):
    """Base of the projected values."""

    model_config = ConfigDict(frozen=True)


class LineageTry(LineageModel):
    """One owner: an Airflow try, or the listener that stopped for good."""

    k: int
    try_number: int
    run_id: str
    acted_on: str | None
    final: bool
    at: datetime


class LineageAttempt(LineageModel):
    """One claimed submission."""

    ref: str
    try_number: int
    submission_id: str
    intent: str
    restored_from: str | None
    warm_started_from: str | None = None
    """URI of another experiment's checkpoint, where this attempt began from it."""
    restore_reason: str | None
    state: str
    failure_kind: str | None
    failure_reason: str | None
    num_commits: int
    num_restarts: int
    fenced: bool | None
    claimed_at: datetime
    finished_at: datetime | None


# A dataclass, since there may be 10,000 and their fields are checked already, as those of the records they are made of.
@dataclass(frozen=True, slots=True, kw_only=True)
class LineageCheckpoint:
    """One checkpoint with its parent edge."""

    name: str
    """Relative to the experiment: `g000001/attempts/000001/checkpoint_...`."""
    attempt: str
    parent: str | None
    """A name like its own; the URI of another experiment's checkpoint at the first commit after a warm start."""
    state: CheckpointState
    metrics: dict[str, Any]
    metrics_cut: bool = False
    """Whether some metrics were left out or replaced by their size."""
    size_bytes: int | None
    reported_at: datetime | None
    late: bool


class Lineage(LineageModel):
    """The whole lineage of an experiment."""

    schema_version: int = 1
    experiment: str
    tries: tuple[LineageTry, ...]
    attempts: tuple[LineageAttempt, ...]
    checkpoints: tuple[LineageCheckpoint, ...]


def project(facts: ExperimentFacts) -> Lineage:
    """The lineage as one value. Linear in the number of checkpoints."""
    checkpoints: list[LineageCheckpoint] = []
    newest_names = _newest_names(facts.attempts)
    claimed = {a.claim.k: a.claim.ref for a in facts.attempts}
    for attempt in facts.attempts:
        generation = attempt.claim.generation
        checkpoints.extend(
            _checkpoints(
                attempt,
                kept=newest_names.get(generation, frozenset()),
                quarantined=facts.quarantined.get(generation, frozenset()),
            )
        )
    return Lineage(
        experiment=facts.uri,
        tries=tuple(_try(owner, claimed.get(owner.k)) for owner in facts.owners),
        attempts=tuple(
            _attempt(attempt, later=facts.attempts[number] if number < len(facts.attempts) else None)
            for number, attempt in enumerate(facts.attempts, 1)
        ),
        checkpoints=tuple(checkpoints),
    )


def _newest_names(attempts: Sequence[AttemptRecords]) -> dict[int, frozenset[str]]:
    newest: dict[int, frozenset[str]] = {}
    for attempt in attempts:
        if attempt.manifest is not None:
            newest[attempt.claim.generation] = frozenset(attempt.manifest.names) | _held_back(attempt)
    return newest


def _held_back(attempt: AttemptRecords) -> frozenset[str]:
    """What a loop that began again would have replaced: its driver ended at that report, and retention deleted nothing."""
    outcome = attempt.final_outcome
    if outcome is None or outcome.fallen_metric is None or not outcome.fenced or outcome.latest_checkpoint is None:
        return frozenset()
    return frozenset({outcome.latest_checkpoint})


def _try(owner: OwnerRecord, claimed: AttemptRef | None) -> LineageTry:
    acted_on = owner.acted_on or claimed
    return LineageTry(
        k=owner.k,
        try_number=owner.try_number,
        run_id=owner.run_id,
        acted_on=str(acted_on) if acted_on else None,
        final=owner.final,
        at=owner.created_at,
    )


def _attempt(attempt: AttemptRecords, *, later: AttemptRecords | None) -> LineageAttempt:
    claim, outcome = attempt.claim, attempt.final_outcome
    failure = outcome.failure if outcome else _without_outcome(later)
    restored = attempt.restored
    return LineageAttempt(
        ref=str(claim.ref),
        try_number=claim.try_number,
        submission_id=claim.submission_id,
        intent=claim.intent,
        restored_from=_full(claim.generation, restored.checkpoint) if restored and restored.checkpoint else None,
        warm_started_from=restored.warm_started_from if restored else None,
        restore_reason=restored.reason if restored else None,
        state=outcome.state.value if outcome else "lost" if later else "unknown",
        failure_kind=failure.kind.value if failure else None,
        failure_reason=failure.reason if failure else None,
        num_commits=len(attempt.own_commits),
        num_restarts=sum(entry.is_restart for s in attempt.segments for entry in s.restarts),
        fenced=outcome.fenced if outcome else None,
        claimed_at=claim.created_at,
        finished_at=outcome.finished_at if outcome else None,
    )


def _without_outcome(later: AttemptRecords | None) -> Failure | None:
    """Nobody wrote how an attempt ended: its driver and the try that followed it died together. The next one's claim ended it."""
    if later is None:
        return None
    why = f"the driver left no outcome; {later.claim.ref} followed: {later.claim.intent}"
    return Failure(kind=FailureKind.LOST, reason=why)


def _full(generation: int, name: str) -> str:
    return f"{layout.generation(generation)}/{name}"


def _checkpoints(
    attempt: AttemptRecords, *, kept: frozenset[str], quarantined: frozenset[str]
) -> list[LineageCheckpoint]:
    generation, entries, ref = attempt.claim.generation, attempt.entries, str(attempt.claim.ref)
    listed = {e.name: e.metrics for e in attempt.manifest.entries} if attempt.manifest else {}
    parent = attempt.restored.checkpoint if attempt.restored else None
    warm = attempt.restored.warm_started_from if attempt.restored else None
    found: list[LineageCheckpoint] = []
    full: dict[str, str] = {}
    copied = parent if parent and layout.copied_from(parent) and layout.is_of(attempt.claim.attempt, parent) else None
    for name in [*([copied] if copied else []), *attempt.own_commits]:
        entry = entries.get(name)
        declared = layout.copied_from(name) or (entry.parent if entry and entry.parent else parent)
        outside = (entry.warm_started_from if entry else None) or warm
        metrics, is_cut = bounded_metrics(entry.metrics if entry else listed.get(name, {}))
        state: CheckpointState = "quarantined" if name in quarantined else "committed" if name in kept else "pruned"
        found.append(
            LineageCheckpoint(
                name=full.setdefault(name, _full(generation, name)),
                attempt=ref,
                # As a rule the one before: its name is not written out again.
                parent=full.get(declared) or _full(generation, declared) if declared else outside,
                state=state,
                metrics=metrics,
                metrics_cut=is_cut,
                size_bytes=min(sum(f.size for f in entry.files), 2**63 - 1) if entry and entry.files else None,
                reported_at=entry.reported_at if entry else None,
                late=entry.late if entry else True,
            )
        )
        parent = name
    return [*found, *(_uncommitted(attempt, name) for name in attempt.uncommitted)]


def _uncommitted(attempt: AttemptRecords, name: str) -> LineageCheckpoint:
    return LineageCheckpoint(
        name=_full(attempt.claim.generation, name),
        attempt=str(attempt.claim.ref),
        parent=None,
        state="uncommitted",
        metrics={},
        size_bytes=None,
        reported_at=None,
        late=True,
    )


def lineage_xcom(lineage: Lineage, *, limit: int = XCOM_LIMIT) -> dict[str, Any]:
    """The lineage for XCom: strict JSON within `limit` bytes, oldest checkpoints and then attempts left out first."""
    data = lineage.model_dump(mode="json")
    data |= {"num_checkpoints": len(lineage.checkpoints), "truncated": False, "full_record": lineage.experiment}
    for checkpoint in data["checkpoints"]:
        checkpoint["metrics"], is_cut = bounded_metrics(checkpoint["metrics"], max_bytes=2_000)
        checkpoint["metrics_cut"] |= is_cut
    for attempt in data["attempts"]:
        for field_name in ("failure_reason", "restore_reason", "intent"):
            attempt[field_name] = _short(attempt[field_name])
    for name in ("checkpoints", "tries", "attempts"):
        excess = json_bytes(data) - limit
        while excess > 0 and len(data[name]) > 1:
            data["truncated"] = True
            average = max(1, json_bytes(data[name]) // len(data[name]))
            drop = min(len(data[name]) - 1, max(1, excess // average))
            del data[name][:drop]
            excess = json_bytes(data) - limit
    return within_limit(data, limit)


def within_limit(data: dict[str, Any], limit: int) -> dict[str, Any]:
    """What is still too long gets shorter texts: names and ids from damaged records can have any length."""
    for longest in (1_000, 300, 100, 30):
        if json_bytes(data) <= limit:
            return data
        data = _with_short_texts(data, longest) | {"truncated": True}
    return data


def _with_short_texts(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return shortened(value, limit=longest)
    if isinstance(value, dict):
        return {key: _with_short_texts(item, longest) for key, item in value.items()}
    return [_with_short_texts(item, longest) for item in value] if isinstance(value, list) else value


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= _REASON_LIMIT else f"{text[:_REASON_LIMIT]}..."


def result_xcom(
    lineage: Lineage,
    attempts: Sequence[AttemptRecords],
    *,
    new_checkpoints: int,
    goodput: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The task's `return_value`: a small dict about the newest attempt, strict JSON, at most 48 kB.

    `goodput` is that of the whole training, as `core.goodput.goodput_xcom` gives it.
    """
    last = attempts[-1]
    outcome = last.final_outcome
    by_name = {c.name: c for c in lineage.checkpoints}
    generation = last.claim.generation

    def describe(name: str | None) -> dict[str, Any] | None:
        if name is None:
            return None
        full = _full(generation, name)
        checkpoint = by_name.get(full)
        metrics = checkpoint.metrics if checkpoint else {}
        is_cut = checkpoint.metrics_cut if checkpoint else False
        return {"uri": f"{lineage.experiment}/{full}", "name": full, "metrics": metrics, "truncated": is_cut}

    result = {
        "state": outcome.state.value if outcome else OutcomeState.FAILED.value,
        "experiment": lineage.experiment,
        "generation": generation,
        "submission_id": last.claim.submission_id,
        "latest_checkpoint": describe(outcome.latest_checkpoint if outcome else None),
        "best_checkpoint": describe(outcome.best_checkpoint if outcome else None),
        "attempts": sum(1 for a in attempts if a.claim.generation == generation),
        "tries": len(lineage.tries),
        "new_checkpoints": new_checkpoints,
        "restored_from": lineage.attempts[-1].restored_from,
        "warm_started_from": warm.parent.uri if (warm := last.claim.warm_start) and warm.parent else None,
        "restore_proven": outcome.restore_proven if outcome else "unknown",
        "fenced": outcome.fenced if outcome else None,
        "goodput": dict(goodput) if goodput is not None else None,
    }
    return bounded_result(result)


def bounded_result(result: dict[str, Any]) -> dict[str, Any]:
    """A task's `return_value` within 48 kB of strict JSON, with shorter texts where it would be longer."""
    return within_limit(result, XCOM_LIMIT)
