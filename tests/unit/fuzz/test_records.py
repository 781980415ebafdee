"""Our own records, as they lie in the bucket."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.lineage import (
    XCOM_LIMIT,
    AttemptRecords,
    ExperimentFacts,
    lineage_xcom,
    project,
    result_xcom,
)
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.records import (
    AliveRecord,
    ClaimRecord,
    CollectedRecord,
    OutcomeRecord,
    OwnerRecord,
    QuarantineRecord,
    Record,
    RecordSegment,
    RestartEntry,
    RestoredRecord,
    SkippedCheckpoint,
    StopRecord,
)
from airflow_provider.core.restore import AttemptCheckpoints, candidates
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.storage.experiment_records import ExperimentRecords
from tests.support.damage import damaged_json, examples, is_utf8, only_typed_errors
from tests.support.memory_store import MemoryStore
from tests.support.records import NOW, alive, claim, collected, entry, outcome, owner, ref

FAILURE = Failure(kind=FailureKind.LOST, reason="the head was replaced", detail="d")
WHOLE: list[Record] = [
    owner(1, acted_on=ref(1, 1), submission_id="s"),
    claim(1, 1, session_name="s1", deadline=NOW, restore_policy=RestorePolicy(mode="best", metric="loss")),
    StopRecord(k=1, reason="cleared", created_at=NOW),
    alive(),
    RestoredRecord(
        checkpoint="c1",
        from_attempt=1,
        reason="newest",
        metrics={"acc": 0.5, "deep": [{"a": [1]}]},
        skipped=(SkippedCheckpoint(checkpoint="c2", why="gone"),),
        uncommitted=("attempts/000001/c3",),
        created_at=NOW,
    ),
    outcome(
        "failed", failure=FAILURE, num_commits=3, latest_checkpoint="c1", best_checkpoint="c1", carried_from=ref(1, 1)
    ),
    collected(False, outcome=outcome(), refused_because="nothing new", job_status="FAILED"),
    RecordSegment(
        checkpoints=(entry("attempts/000001/c1", metrics={"loss": 0.5}, parent="attempts/000001/c0"),),
        restarts=(RestartEntry(failure=FAILURE, decision="retry", at=NOW),),
        written_at=NOW,
    ),
    QuarantineRecord(checkpoint="c1", reason="poison", attempt=1, created_at=NOW),
]
KEYS: dict[type[Record], str] = {
    OwnerRecord: layout.owner(1),
    ClaimRecord: layout.claim(1, 1),
    StopRecord: layout.stop(1, 1, 1),
    AliveRecord: layout.alive(1, 1),
    RestoredRecord: layout.restored(1, 1),
    OutcomeRecord: layout.outcome(1, 1),
    CollectedRecord: layout.collected(1, 1),
    RecordSegment: layout.segment(1, 1, "000001"),
    QuarantineRecord: layout.quarantine(1, "c1"),
}


def as_json(record: Record) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(record.body())
    return data


@pytest.mark.parametrize("whole", WHOLE, ids=[type(r).__name__ for r in WHOLE])
def test_a_record_is_read_and_can_be_written_again_or_is_refused(whole: Record) -> None:
    kind = type(whole)

    @given(damaged_json([as_json(whole)]))
    @examples(60)
    def damaged(body: bytes) -> None:
        with only_typed_errors():
            found = kind.parse(body, key="k")
            kind.parse(found.body(), key="k")
            assert is_utf8(json.loads(found.body()))
            for value in found:
                if hasattr(value[1], "tzinfo"):
                    assert value[1] - NOW is not None

    damaged()


@pytest.mark.parametrize("whole", WHOLE, ids=[type(r).__name__ for r in WHOLE])
def test_a_damaged_record_in_the_bucket_is_never_nothing_there(whole: Record) -> None:
    kind = type(whole)

    @given(damaged_json([as_json(whole)]))
    @examples(30)
    def damaged(body: bytes) -> None:
        store = MemoryStore()
        store.write(KEYS[kind], body)
        with only_typed_errors():
            assert read(ExperimentRecords(store), kind)

    damaged()


def read(records: ExperimentRecords, kind: type[Record]) -> object:
    first = ref(1, 1)
    readers: dict[type[Record], Any] = {
        OwnerRecord: records.newest_owner,
        ClaimRecord: records.newest_claim,
        StopRecord: lambda: records.stops(first),
        AliveRecord: lambda: records.alive(first),
        RestoredRecord: lambda: records.restored(first),
        OutcomeRecord: lambda: records.outcome(first),
        CollectedRecord: lambda: records.collected(first),
        RecordSegment: lambda: records.segments(first),
        QuarantineRecord: lambda: records.quarantined(1),
    }
    return readers[kind]()


def readable(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Records that the reader lets through, whatever is wrong with them."""
    whole = [as_json(r) for r in WHOLE if type(r) is kind]

    def parsed(body: bytes) -> Any:
        with only_typed_errors():
            return kind.parse(body, key="k")
        return None

    return damaged_json(whole).map(parsed)


@given(
    *[readable(k) for k in (OwnerRecord, ClaimRecord, RestoredRecord, OutcomeRecord, CollectedRecord, RecordSegment)]
)
@examples(150)
def test_what_is_let_through_fits_into_xcom(
    owned: Any, claimed: Any, restored: Any, ended: Any, concluded: Any, segment: Any
) -> None:
    entries = segment.checkpoints if segment else ()
    listed = Manifest(entries=tuple(ManifestEntry(e.checkpoint, e.metrics) for e in entries))
    attempt = AttemptRecords(
        claim=claimed or claim(1, 1),
        restored=restored,
        outcome=ended,
        collected=concluded,
        manifest=listed,
        segments=(segment,) if segment else (),
        uncommitted=restored.uncommitted if restored else (),
    )
    candidates([AttemptCheckpoints(ref=ref(1, 1), manifest=listed, recorded=entries)], policy=RestorePolicy())
    lineage = project(ExperimentFacts("s3://b/e", (owned or owner(1),), (attempt,), {1: frozenset({"c1"})}))
    for value in (lineage_xcom(lineage), result_xcom(lineage, [attempt], new_checkpoints=1)):
        assert len(json.dumps(value, allow_nan=False)) <= XCOM_LIMIT
        assert is_utf8(value)
        assert all(abs(n) < 2**63 for n in integers(value))


def integers(value: Any) -> list[int]:
    """All integers in a value: Airflow's messages hold 64 bits."""
    if isinstance(value, dict):
        return [n for v in value.values() for n in integers(v)]
    if isinstance(value, list):
        return [n for v in value for n in integers(v)]
    return [value] if type(value) is int else []
