"""The sensor with an experiment in memory, run as Airflow runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    TaskDeferred,
)

from airflow_provider.sensors.ray_train import RayTrainSensor
from airflow_provider.triggers.ray_train_sensor import RayTrainSensorTrigger
from tests.support.fake_airflow import FakeTask
from tests.support.watched_experiment import WatchedExperiment, failure

URI = "s3://models/churn"
Ends = Callable[[WatchedExperiment], None]


class World:
    def __init__(self) -> None:
        self.watched = WatchedExperiment(URI)
        self.task = FakeTask()
        self.opened: list[str] = []
        self.before_look: Callable[[int], None] = lambda _: None
        self.looks = 0

    def sensor(self, **changes: Any) -> RayTrainSensor:
        known: dict[str, Any] = {"task_id": "wait", "poke_interval": 0.01, "timeout": 5}
        if "external_task_id" not in changes:
            known["experiment"] = URI
        return RayTrainSensor(**{**known, **changes})

    def execute(self, **changes: Any) -> Any:
        return self.sensor(**changes).execute(self.task.context)

    def defer(self, **changes: Any) -> RayTrainSensorTrigger:
        with pytest.raises(TaskDeferred) as deferred:
            self.execute(**changes)
        assert deferred.value.method_name == "execute_complete"
        trigger = deferred.value.trigger
        assert isinstance(trigger, RayTrainSensorTrigger)
        return trigger

    def run(self, *, deferrable: bool = True, **changes: Any) -> Any:
        """To the end, as Airflow does: deferred over the trigger and its event, or blocking."""
        if not deferrable:
            return self.execute(deferrable=False, **changes)
        with pytest.raises(TaskDeferred) as deferred:
            self.execute(**changes)
        path, row = deferred.value.trigger.serialize()
        assert path.endswith("RayTrainSensorTrigger")

        async def fire() -> Any:
            return [event.payload async for event in RayTrainSensorTrigger(**json.loads(json.dumps(row))).run()]

        (payload,) = asyncio.run(asyncio.wait_for(fire(), 20))
        kwargs = {"event": json.loads(json.dumps(payload))}
        return self.sensor(**changes).resume_execution("execute_complete", kwargs, self.task.context)

    def later(self, change: Ends, *, at_look: int = 2) -> None:
        """What happens to the training right before a look."""

        def before(look: int) -> None:
            if look == at_look:
                change(self.watched)

        self.before_look = before


def train(watched: WatchedExperiment) -> None:
    watched.claim()
    watched.commit({"epoch": 0, "loss": 0.5}, {"epoch": 1, "loss": 0.4})


def fail(watched: WatchedExperiment) -> None:
    train(watched)
    watched.end("failed", failure=failure("user", "KeyError: labels"))


def succeed(watched: WatchedExperiment) -> None:
    train(watched)
    watched.succeed()
