"""What Airflow keeps between a sensor's processes, damaged: typed errors that repeat nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given

from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.sensor_event import SensorEnd, SensorEvent
from airflow_provider.triggers.ray_train_sensor import RayTrainSensorTrigger
from tests.support.damage import check_message, damaged_value, examples, is_utf8, only_typed_errors

EVENTS: list[Any] = [
    {"end": "done", "reason": "r", "result": {"state": "success"}},
    {"end": "failed", "reason": "r", "why": "training_failed", "failure": {"kind": "user", "reason": "KeyError"}},
    {"end": "error", "reason": "r", "error": {"name": "StoreUnreachable", "what": "w", "known": "k", "change": "c"}},
    {"end": "timeout", "reason": "r", "is_absent": True},
]
ROW: dict[str, Any] = {
    "experiment_uri": "/nonexistent/experiment",
    "aws_conn_id": None,
    "storage_path": None,
    "spec": {
        "until": "loss < 1",
        "missing": "wait",
        "baseline": {"generation": 1, "attempt": 1, "checkpoint": "g000001/x"},
    },
    "deadline": "2026-11-29T12:00:00+00:00",
    "poke_interval": 0,
    "unreachable_timeout_s": 0.001,
}


@given(damaged_value(EVENTS))
@examples(300)
def test_an_event(event: Any) -> None:
    with only_typed_errors():
        found = SensorEvent.parse(event)
        if found.error is not None:
            error = found.error.rebuilt()
            assert isinstance(error, RayTrainError)
            error.failure.model_dump_json()


@given(damaged_value([ROW["spec"]]), damaged_value([ROW["deadline"]]))
@examples(100)
def test_a_triggers_row(spec: Any, deadline: Any) -> None:
    """One event, whatever the row holds: an exception would lose its type."""

    async def fire() -> list[dict[str, Any]]:
        trigger = RayTrainSensorTrigger(**ROW | {"spec": spec, "deadline": deadline})
        return [event.payload async for event in trigger.run()]

    (payload,) = asyncio.run(asyncio.wait_for(fire(), 20))
    assert is_utf8(payload)
    event = SensorEvent.parse(payload)
    assert event.end in {SensorEnd.ERROR, SensorEnd.TIMEOUT}
    if event.error is not None:
        check_message(event.error.rebuilt())
