"""Stored records: what one release writes every other must read, or refuse by name. Never misread as "nothing"."""

from __future__ import annotations

import json
import math
import sys
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from airflow_provider.core.errors import RecordUnreadable
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import JobStatus, TrainingKind
from airflow_provider.core.job_spec import JobSpec, TrainingSpec
from airflow_provider.core.record_parts import SCHEMA_VERSION, AttemptRef, CheckpointFile
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
from airflow_provider.core.restore_policy import RestorePolicy
from tests.support.records import NOW, alive, claim, collected, entry, outcome, owner, ref

FAILURE = Failure(kind=FailureKind.LOST, reason="the head was replaced")
RECORDS: list[Record] = [
    owner(3, acted_on=ref(2, 1), submission_id="af-1", final=True, created_by="listener"),
    claim(
        2,
        4,
        session_name="s1",
        deadline=NOW,
        checkpoint_seen="attempts/000001/c1",
        restore_policy=RestorePolicy(mode="best", metric="acc", order="min", on_corrupt="fail"),
    ),
    StopRecord(k=2, reason="cleared", created_at=NOW),
    RestoredRecord(
        checkpoint="c1",
        from_attempt=1,
        reason="newest",
        metrics={"acc": 0.5},
        skipped=(SkippedCheckpoint(checkpoint="c2", why="gone"),),
        uncommitted=("c3",),
        created_at=NOW,
    ),
    alive(),
    outcome("failed", num_commits=3, restore_proven="yes", carried_from=ref(1, 1)),
    collected(False, outcome=outcome(), refused_because="nothing new", job_status="FAILED"),
    RecordSegment(
        checkpoints=(entry("c1", parent="c0", metrics={"loss": 0.1}),),
        restarts=(RestartEntry(failure=FAILURE, decision="retry", at=NOW, commits_before=2),),
        written_at=NOW,
    ),
    QuarantineRecord(checkpoint="c1", reason="torn", attempt=2, created_at=NOW, released_by="operator"),
]
CLASSES = [type(r) for r in RECORDS]


def by_class(value: Any) -> str:
    return value.record if isinstance(value, (Record, type)) else str(value)


@pytest.mark.parametrize("record", RECORDS, ids=by_class)
def test_what_is_written_is_read(record: Record) -> None:
    again = type(record).parse(record.body(), key="k")
    assert again == record
    assert again.body() == record.body()
    json.dumps(json.loads(record.body()), allow_nan=False)


@pytest.mark.parametrize("record", RECORDS, ids=by_class)
def test_fields_of_a_later_release_are_ignored(record: Record) -> None:
    data = json.loads(record.body()) | {"something_new": [1]}
    assert type(record).parse(json.dumps(data).encode(), key="k") == record


def test_a_claims_policy_may_have_a_later_releases_fields_although_a_dag_may_not() -> None:
    """An older worker must still read the claim that a newer one wrote, or it fails until it is upgraded."""
    body = json.loads(claim(1, 1, restore_policy=RestorePolicy(mode="best", metric="loss")).body())
    body["restore_policy"]["later"] = [1]
    read = ClaimRecord.parse(json.dumps(body).encode(), key="k")
    assert read.restore_policy == RestorePolicy(mode="best", metric="loss")
    with pytest.raises(ValidationError):
        RestorePolicy.model_validate({"mode": "best", "later": [1]})


@pytest.mark.parametrize("record", RECORDS, ids=by_class)
def test_a_newer_schema_is_a_typed_error_and_says_upgrade(record: Record) -> None:
    """Guessing at a rule we don't know could give two processes the right to commit."""
    data = json.loads(record.body()) | {"schema_version": SCHEMA_VERSION + 1}
    with pytest.raises(RecordUnreadable, match=f"schema_version {SCHEMA_VERSION + 1}.*upgrade") as caught:
        type(record).parse(json.dumps(data).encode(), key="owners/000001.json")
    assert caught.value.key == "owners/000001.json"


@pytest.mark.parametrize("version", [None, "1", 0, -1, 1.0, [1]])
def test_a_record_without_a_version_is_not_ours(version: Any) -> None:
    data = json.loads(owner(1).body()) | {"schema_version": version}
    with pytest.raises(RecordUnreadable, match="schema_version"):
        OwnerRecord.parse(json.dumps(data).encode(), key="k")


def test_a_record_of_another_kind_is_refused_with_the_missing_fields() -> None:
    with pytest.raises(RecordUnreadable, match=r"claim record k .*wrong fields: generation, attempt"):
        ClaimRecord.parse(owner(1).body(), key="k")


@pytest.mark.parametrize("record", RECORDS, ids=by_class)
def test_each_torn_prefix_is_unreadable(record: Record) -> None:
    body = record.body()
    for length in range(0, len(body), 7):
        with pytest.raises(RecordUnreadable):
            type(record).parse(body[:length], key="k")


@pytest.mark.parametrize("number", [0, -1, 1_000_000])
@pytest.mark.parametrize("field", ["generation", "attempt"])
def test_numbers_beyond_six_digits_are_unreadable(field: str, number: int) -> None:
    """Such a key could not be parsed back, and the claim's rank would be lost."""
    data = json.loads(claim(1, 1).body()) | {field: number}
    with pytest.raises(RecordUnreadable, match=field):
        ClaimRecord.parse(json.dumps(data).encode(), key="k")


def test_nan_in_metrics_is_stored_as_strict_json() -> None:
    """C53; also in nested entries."""
    segment = RecordSegment(checkpoints=(entry("c1", metrics={"loss": math.nan, "hi": -math.inf}),), written_at=NOW)
    stored = json.loads(segment.body(), parse_constant=pytest.fail)
    assert stored["checkpoints"][0]["metrics"] == {"loss": "NaN", "hi": "-Infinity"}
    beat = AliveRecord.parse(alive().model_copy(update={"last_metrics": {"loss": math.inf}}).body(), key="k")
    assert beat.last_metrics == {"loss": "Infinity"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(CLASSES), st.binary(max_size=40))
@example(OwnerRecord, b"[" * 100_000)
@example(OwnerRecord, b"9" * 5_000)
@example(OwnerRecord, b"\xff")
@example(OwnerRecord, b"null")
def test_any_bytes_are_read_or_refused_with_our_error(cls: type[Record], body: bytes) -> None:
    with pytest.raises(RecordUnreadable):
        cls.parse(body, key="k")


@given(st.sampled_from(RECORDS), st.data())
def test_any_damage_to_a_field_is_read_or_refused_with_our_error(record: Record, data: st.DataObject) -> None:
    stored = json.loads(record.body())
    field = data.draw(st.sampled_from(sorted(stored)))
    stored[field] = data.draw(JSON)
    try:
        again = type(record).parse(json.dumps(stored).encode(), key="k")
    except RecordUnreadable:
        return
    if isinstance(again, ClaimRecord):
        assert again.ref.rank >= (1, 1)
    assert type(record).parse(again.body(), key="k").schema_version == SCHEMA_VERSION


def test_names_of_files_are_kept_once_but_not_for_ever() -> None:
    """Python 3.12 never frees an interned text, and an API server or a triggerer reads the files of all trainings."""
    name, again, other = (f"epoch={epoch}-step=1200.ckpt" for epoch in (3, 3, 3))
    assert name is not again
    assert CheckpointFile(key=name, size=1).key is CheckpointFile(key=again, size=1).key
    assert sys.intern(other) is other, "nothing had interned it"


def test_refs_rank_by_generation_then_attempt() -> None:
    assert ref(2, 1).rank > ref(1, 999).rank > ref(1, 2).rank
    assert str(ref(12, 3)) == "g12/a3"
    assert AttemptRef.model_validate_json(ref(1, 2).model_dump_json()) == ref(1, 2)


def test_old_records_without_later_fields_are_read() -> None:
    """What the first release wrote, by hand: each later field has a default."""
    old = {
        "schema_version": 1,
        "k": 1,
        "dag_id": "d",
        "run_id": "r",
        "task_id": "t",
        "dag_run_identity": "i",
        "try_number": 1,
        "max_tries": 2,
        "created_at": "2026-11-29T12:00:00Z",
    }
    record = OwnerRecord.parse(json.dumps(old).encode(), key="k")
    assert (record.final, record.acted_on, record.clear_number, record.map_index) == (False, None, 0, -1)
    assert record.created_at == datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
    done = {"schema_version": 1, "state": "success", "finished_at": "2026-11-29T12:00:00Z"}
    assert OutcomeRecord.parse(json.dumps(done).encode(), key="k").restore_proven == "unknown"
    assert CollectedRecord(k=1, written_at=NOW).accepted is None
    asked = json.loads(claim(1, 1).body())
    del asked["answers_clear"]
    assert ClaimRecord.parse(json.dumps(asked).encode(), key="k").answers_clear is None


def test_the_job_spec_survives_its_package() -> None:
    spec = JobSpec(
        experiment_uri="s3://b/e",
        ref=ref(1, 2),
        k=3,
        submission_id="af-1",
        deadline=NOW,
        training=TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f", train_loop_config={"lr": 0.1}),
    )
    assert JobSpec.model_validate_json(spec.body()) == spec


@pytest.mark.parametrize(("status", "is_terminal"), list(zip(JobStatus, [False, False, True, True, True], strict=True)))
def test_pending_and_running_jobs_are_not_over(status: JobStatus, is_terminal: bool) -> None:
    assert status.is_terminal is is_terminal
