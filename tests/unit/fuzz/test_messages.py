"""What Airflow keeps for us and hands back: the trigger's event and row, XComs, the state store's marker."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given

from airflow_provider.core.errors import MessageUnreadable
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.waiting import WaitEvent, WaitLimits
from airflow_provider.hooks.final_stop import JobRecord, stop_for_good
from airflow_provider.operators.marker import dag_run_identity
from airflow_provider.triggers.ray_train import RayTrainTrigger
from tests.support.damage import SECRET, damaged_value, examples, only_typed_errors

EVENTS = [
    {"end": "ended", "reason": "over", "generation": 1, "attempt": 2, "k": 3, "submission_id": "s"},
    {"end": "error", "kind": "network", "reason": "x", "generation": 1, "attempt": 2, "k": 3, "submission_id": "s"},
]
ROW = {
    "conn_id": "c", "aws_conn_id": None, "experiment_uri": "relative: no store", "generation": 1, "attempt": 1, "k": 1,
    "submission_id": "s", "session_name": None, "deadline": "2026-11-29T12:00:00+00:00", "limits": WaitLimits().model_dump(),
    "stream_logs": True, "stop_on_kill": True, "log_position": 0,
}  # fmt: skip
JOB = {"conn_id": "c", "aws_conn_id": None, "experiment": "relative: no store", "submission_id": "s"}


@given(damaged_value(EVENTS))
@examples(250)
def test_any_event_is_read_or_refused(event: Any) -> None:
    with only_typed_errors() as caught:
        found = WaitEvent.parse(event)
        found.reason.encode()
        assert found.ref.rank >= (1, 1)
    assert all(isinstance(error, MessageUnreadable) for error in caught)


@given(damaged_value([ROW]))
@examples(120)
def test_any_row_ends_in_one_event_that_can_be_read(row: Any) -> None:
    """The rest of a row: Airflow itself makes the trigger of it, by keyword."""
    if not isinstance(row, dict):
        return
    trigger = RayTrainTrigger(**(ROW | {name: row[name] for name in ROW if name in row}))
    trigger.experiment_uri = ROW["experiment_uri"]  # type: ignore[assignment]

    async def fire() -> list[Any]:
        return [event async for event in trigger.run()]

    [event] = asyncio.run(fire())
    assert event.payload["end"] == "error"
    assert len(event.payload["reason"]) <= 2_000
    assert SECRET not in event.payload["reason"]
    event.payload["reason"].encode()
    assert not event.payload["reason"].startswith(
        ("TypeError", "ValueError", "KeyError", "AttributeError", "OverflowError")
    )


@given(damaged_value([JOB]))
@examples(120)
def test_any_job_record_is_read_or_refused(job: Any) -> None:
    with only_typed_errors():
        assert JobRecord.model_validate(JOB)
        stop_for_good(
            job,
            task=TaskInstanceKey("d", "r", "t"),
            counters={"try_number": 1, "max_tries": 1, "clear_number": 0},
            how="marked failed",
        )


@given(damaged_value([{"k": 1, "identity": "i"}]))
@examples(80)
def test_any_marker_is_the_identity_or_refused(marker: Any) -> None:
    class Store:
        def get(self, _: str) -> Any:
            return marker

    with only_typed_errors():
        assert isinstance(marker, dict) == (dag_run_identity(Store()) == (marker or {}).get("identity"))  # type: ignore[arg-type]
