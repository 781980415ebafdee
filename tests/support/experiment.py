"""Makes records of an experiment for tests, with everything that a test doesn't care about filled in."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow_provider.core import layout
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import (
    AliveRecord,
    ClaimRecord,
    CollectedRecord,
    OutcomeRecord,
    OutcomeState,
    OwnerRecord,
    Phase,
    RecordSegment,
    RestoredRecord,
    StopRecord,
)
from airflow_provider.storage.object_store import ObjectStore

NOW = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


def ref(generation: int, attempt: int) -> AttemptRef:
    return AttemptRef(generation=generation, attempt=attempt)


def owner(k: int, **changes: Any) -> OwnerRecord:
    known: dict[str, Any] = {
        "dag_id": "d",
        "run_id": "manual__2026-11-29T00:00:00+00:00",
        "task_id": "train",
        "dag_run_identity": "i1",
        "try_number": k,
        "max_tries": 3,
        "created_at": NOW,
    }
    return OwnerRecord(k=k, **{**known, **changes})


def claim(generation: int, attempt: int, *, k: int = 1, **changes: Any) -> ClaimRecord:
    known: dict[str, Any] = {
        "submission_id": f"raytrain-{generation}-{attempt}",
        "address": "http://ray:8265",
        "try_number": k,
        "intent": "start",
        "spec_digest": "s",
        "code_digest": "c",
        "created_at": NOW,
    }
    return ClaimRecord(k=k, generation=generation, attempt=attempt, **{**known, **changes})


def stop(k: int) -> StopRecord:
    return StopRecord(k=k, reason="cleared", created_at=NOW)


def outcome(state: OutcomeState = OutcomeState.SUCCESS) -> OutcomeRecord:
    return OutcomeRecord(state=state, finished_at=NOW)


def collected(k: int = 1, **changes: Any) -> CollectedRecord:
    return CollectedRecord(k=k, written_at=NOW, **changes)


def write_attempt(store: ObjectStore, generation: int, attempt: int, *, k: int = 1, has_ended: bool = False) -> None:
    """What a driver and a try leave of one attempt."""
    alive = AliveRecord(run_uid="u", phase=Phase.TRAINING, phase_since=NOW, written_at=NOW)
    restored = RestoredRecord(checkpoint=None, reason="first attempt", created_at=NOW)
    store.write(layout.claim(generation, attempt), claim(generation, attempt, k=k).body())
    store.write(layout.alive(generation, attempt), alive.body())
    store.write(layout.restored(generation, attempt), restored.body())
    store.write(layout.segment(generation, attempt, "000001"), RecordSegment(written_at=NOW).body())
    store.write(layout.manifest(generation, attempt), b"{}")
    if has_ended:
        store.write(layout.outcome(generation, attempt), outcome().body())
        store.write(layout.collected(generation, attempt), collected(k).body())
