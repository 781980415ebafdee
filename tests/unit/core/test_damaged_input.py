"""What is in the bucket but damaged is refused by name, before it can break a comparison, an encoder or a database."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from airflow_provider.core.errors import MAX_PART, RayTrainError, RecordUnreadable
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.json_input import MAX_NESTING, UnreadableJson, is_shallow, read_json
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.core.records import (
    AliveRecord,
    ClaimRecord,
    CollectedRecord,
    OutcomeRecord,
    OwnerRecord,
    QuarantineRecord,
    Record,
    RecordSegment,
    RestoredRecord,
    StopRecord,
)
from tests.support.records import NOW, alive, claim, collected, entry, outcome, owner

EXAMPLES: list[Record] = [
    owner(1),
    claim(1, 1, deadline=NOW),
    StopRecord(k=1, reason="r", created_at=NOW),
    RestoredRecord(checkpoint="c", reason="r", created_at=NOW),
    alive(),
    outcome(),
    collected(True),
    RecordSegment(checkpoints=(entry("c1"),), written_at=NOW),
    QuarantineRecord(checkpoint="c", reason="r", attempt=1, created_at=NOW),
]
TIMES = [
    (record, name)
    for record in EXAMPLES
    for name, value in json.loads(record.body()).items()
    if isinstance(value, str) and value.startswith(f"{NOW:%Y-%m-%dT}")
]


def changed(record: Record, **fields: Any) -> bytes:
    return json.dumps(json.loads(record.body()) | fields).encode()


def manifest(**changes: Any) -> bytes:
    item = {"version": 0, "checkpoint_dir_name": "c1", "metrics": {"loss": 1.0}} | changes
    return json.dumps({"checkpoint_results": [item], "latest_checkpoint_result": item}).encode()


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_every_kind_of_record_has_a_time_that_is_checked() -> None:
    """Otherwise a new record could bring its own, unchecked type."""
    kinds = {OwnerRecord, ClaimRecord, StopRecord, RestoredRecord, AliveRecord, OutcomeRecord, CollectedRecord}
    assert {type(record) for record, _ in TIMES} >= kinds | {RecordSegment, QuarantineRecord}


@pytest.mark.parametrize(("record", "name"), TIMES, ids=[f"{type(r).__name__}.{n}" for r, n in TIMES])
@pytest.mark.parametrize("time", ["2026-11-29T12:00:00", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_cannot_be_compared_makes_the_record_unreadable(record: Record, name: str, time: str) -> None:
    """A naive time raises TypeError where it meets an aware one; the ends of the calendar overflow."""
    with pytest.raises(RecordUnreadable, match=f"wrong fields: {name}"):
        type(record).parse(changed(record, **{name: time}), key="k")


def test_a_naive_time_deeper_inside_counts_too() -> None:
    data = json.loads(RecordSegment(checkpoints=(entry("c1"),), written_at=NOW).body())
    data["checkpoints"][0]["reported_at"] = "2026-11-29T12:00:00"
    with pytest.raises(RecordUnreadable, match=r"checkpoints\.0\.reported_at"):
        RecordSegment.parse(json.dumps(data).encode(), key="k")


def test_times_come_back_in_utc() -> None:
    here = timezone(timedelta(hours=2))
    found = ClaimRecord.parse(claim(1, 1, deadline=datetime(2026, 11, 29, 14, tzinfo=here)).body(), key="k").deadline
    assert found == datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
    assert found is not None
    assert found.tzinfo is timezone.utc


@pytest.mark.parametrize("name", ["a\ud800", "a\0b", "a" * 5000, "a/../../b"])
def test_a_name_that_no_folder_has_makes_manifest_and_record_unreadable(name: str) -> None:
    with pytest.raises(RecordUnreadable):
        parse_manifest(manifest(checkpoint_dir_name=name), key="m")
    with pytest.raises(RecordUnreadable, match="checkpoint"):
        RestoredRecord.parse(
            changed(RestoredRecord(checkpoint="c", reason="r", created_at=NOW), checkpoint=name), key="k"
        )


def test_metrics_with_lone_surrogates_are_read_and_can_be_stored() -> None:
    """A training may report any text; it must neither cost its checkpoints nor break XCom."""
    found = parse_manifest(manifest(metrics={"note\udcff": "a\ud800b\0", "deep": [{"x": "\udfff"}]}), key="m")
    assert found.entries[0].metrics == {"note\ufffd": "a\ufffdb\ufffd", "deep": [{"x": "\ufffd"}]}
    json.dumps(found.entries[0].metrics, ensure_ascii=False).encode()
    parse_manifest(found.body(ray_version="2.60.0"), key="m")
    restored = RestoredRecord(checkpoint="c", reason="r", created_at=NOW)
    again = RestoredRecord.parse(changed(restored, metrics={"a": "\ud800"}, reason="\ud800!"), key="k")
    assert (again.metrics, again.reason) == ({"a": "\ufffd"}, "\ufffd!")
    again.body()


def test_pairs_of_surrogates_stay_the_letters_they_are() -> None:
    assert read_json('["\\ud83d\\ude00", "\\\\ud800"]') == ["😀", "\\ud800"]


@pytest.mark.parametrize("body", [b'"\xed\xa0\x80"', '["é"]'.encode("utf-16"), b"\xff", b'"caf\xe9"'])
def test_other_encodings_are_refused(body: bytes) -> None:
    """Python's reader guesses them, and lets surrogates through."""
    with pytest.raises(UnreadableJson, match="UTF-8"):
        read_json(body)


def test_a_byte_order_mark_is_no_damage() -> None:
    assert read_json(b"\xef\xbb\xbf[1]") == [1]


@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 900, 100_000])
def test_deep_nesting_is_an_error_of_ours(levels: int) -> None:
    """Some depths are read and break the writer, deeper ones break the reader."""
    deep = b"[" * levels + b"]" * levels
    for body in (deep, manifest().replace(b"1.0", deep)):
        with pytest.raises(RecordUnreadable, match="nested deeper"):
            parse_manifest(body, key="m")
    with pytest.raises(RecordUnreadable, match="nested deeper"):
        AliveRecord.parse(alive().body().replace(b'"last_metrics": {', b'"last_metrics": {"deep": ' + deep), key="k")


def test_what_is_read_can_be_written() -> None:
    record = RestoredRecord(checkpoint="c", reason="r", created_at=NOW)
    body = changed(record, metrics={"deep": nested(MAX_NESTING - 2)})
    RestoredRecord.parse(RestoredRecord.parse(body, key="k").body(), key="k")


def test_a_value_that_holds_itself_is_not_shallow() -> None:
    knot: list[Any] = []
    knot.extend([knot] * 10)
    assert not is_shallow(knot)
    assert is_shallow([knot], limit=1) is False
    assert is_shallow([[[]]] * 3)


def test_texts_for_people_are_cut_and_ids_are_not() -> None:
    """Half an id would be another one."""
    found = StopRecord.parse(changed(StopRecord(k=1, reason="r", created_at=NOW), reason="x" * 10**6), key="k")
    assert len(found.reason) < 4_000
    assert "1,000,000 characters" in found.reason
    with pytest.raises(RecordUnreadable, match="submission_id"):
        ClaimRecord.parse(changed(claim(1, 1), submission_id="x" * 10**6), key="k")


@pytest.mark.parametrize("number", [2**63, -(2**70), 10**400])
def test_numbers_that_no_message_of_airflow_holds_are_refused(number: int) -> None:
    with pytest.raises(RecordUnreadable, match="num_commits"):
        OutcomeRecord.parse(changed(outcome(), num_commits=number), key="k")


def test_a_manifest_with_absurd_report_indices_can_be_written_again() -> None:
    body = (
        b'{"checkpoint_results": [{"checkpoint_dir_name": "c"}], "checkpoint_report_indices": [' + b"9" * 4300 + b"]}"
    )
    assert parse_manifest(parse_manifest(body, key="m").body(ray_version="2"), key="m").names == ("c",)


def test_a_message_is_bounded_and_can_be_encoded() -> None:
    error = RayTrainError("\ud800" + "w" * 10**6, known="k" * 10**6, change="c" * 10**6)
    assert len(str(error).encode()) < 4 * MAX_PART
    assert len(Failure(kind=FailureKind.LOST, reason="r" * 10**6).reason) < MAX_PART


def test_a_version_of_another_type_is_not_repeated() -> None:
    with pytest.raises(RecordUnreadable) as caught:
        OwnerRecord.parse(changed(owner(1), schema_version=["s3cr3t"]), key="k")
    assert "s3cr3t" not in str(caught.value)


def test_an_unknown_key_or_value_inside_a_record_is_not_repeated() -> None:
    with pytest.raises(RecordUnreadable, match=r"restore_policy\.mode") as caught:
        ClaimRecord.parse(changed(claim(1, 1), restore_policy={"s3cr3t-t0ken": 1, "mode": "s3cr3t"}), key="k")
    assert "s3cr3t" not in str(caught.value)


def test_our_own_writers_refuse_what_the_readers_would() -> None:
    with pytest.raises(ValidationError, match="offset"):
        StopRecord(k=1, reason="r", created_at=datetime(2026, 11, 29))  # noqa: DTZ001 - the point
