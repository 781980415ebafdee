"""The operator as a worker runs it: real HTTP to a fake Jobs API, a bucket in memory, a made-up Airflow context."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider.core import layout
from airflow_provider.core.identity import TaskInstanceKey, experiment_uri, submission_id
from airflow_provider.core.records import OutcomeRecord
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import FakeJob
from airflow_provider.triggers.ray_train import RayTrainTrigger
from tests.support.experiment import ref
from tests.support.fake_airflow import FakeTask
from tests.support.memory_store import MemoryStore
from tests.support.records import outcome
from tests.support.training_try import Bench

STORAGE = "/shared/models"


DriverServer = FakeJobsServer


@dataclass
class World:
    """One task instance's surroundings over its tries."""

    server: DriverServer
    bench: Bench
    task: FakeTask = field(default_factory=FakeTask)

    @property
    def records(self) -> ExperimentRecords:
        return self.bench.records

    def operator(self, **changes: Any) -> RayTrainOperator:
        known: dict[str, Any] = {
            "task_id": "train",
            "storage_path": STORAGE,
            "conn_id": "ray_test",
            "train_loop": "pkg.mod:loop",
            "poll_interval_s": 0.01,
            "stream_logs": False,
        }
        return RayTrainOperator(**{**known, **changes})

    def defer(self, operator: RayTrainOperator | None = None) -> RayTrainTrigger:
        """Run a try up to its deferral."""
        with pytest.raises(TaskDeferred) as deferred:
            (operator or self.operator()).execute(self.task.context)
        assert deferred.value.method_name == "execute_complete"
        trigger = deferred.value.trigger
        assert isinstance(trigger, RayTrainTrigger)
        return trigger

    def event(self, trigger: RayTrainTrigger, end: str = "ended", **changes: Any) -> dict[str, Any]:
        """As the trigger fires it, after a trip through JSON."""
        event = {"end": end, "reason": f"it {end}", **trigger._identity(), **changes}
        loaded: dict[str, Any] = json.loads(json.dumps(event))
        return loaded

    def follow(self, trigger: RayTrainTrigger, **limits: float | None) -> dict[str, Any]:
        """The trigger's one event, as a triggerer gets it over HTTP; `limits` replace those of the row."""

        async def collect() -> list[dict[str, Any]]:
            return [event.payload async for event in trigger.run()]

        trigger.limits = {**trigger.limits, **limits}
        (payload,) = asyncio.run(collect())
        loaded: dict[str, Any] = json.loads(json.dumps(payload))
        return loaded

    def complete(self, event: dict[str, Any], *, operator: Any = None) -> Any:
        """A new process with the event that a trigger really fired."""
        return (operator or self.operator()).execute_complete(self.task.context, event)

    def resume(self, trigger: RayTrainTrigger, end: str = "ended", *, operator: Any = None, **changes: Any) -> Any:
        """A new process after the trigger fired."""
        return (operator or self.operator()).execute_complete(self.task.context, self.event(trigger, end, **changes))

    def defer_again(self, trigger: RayTrainTrigger, end: str = "ended") -> RayTrainTrigger:
        """A resume that waits for another job."""
        with pytest.raises(TaskDeferred) as deferred:
            self.resume(trigger, end)
        again = deferred.value.trigger
        assert isinstance(again, RayTrainTrigger)
        return again

    def end(self, job: FakeJob | None, status: str, *, attempt: int = 1, record: OutcomeRecord | None = None) -> None:
        """The job ends; `record` is what its driver left."""
        if record is not None:
            self.bench.store.put_raw(layout.outcome(1, attempt), record.body())
        if job is not None:
            job.status = status

    def succeed(self, trigger: RayTrainTrigger, *, num_checkpoints: int = 1) -> None:
        names = tuple(f"checkpoint_{n}" for n in range(num_checkpoints))
        full = self.bench.commit(*names, attempt=trigger.attempt) if names else []
        record = outcome(latest_checkpoint=full[-1] if full else None)
        self.end(self.server.jobs[trigger.submission_id], "SUCCEEDED", attempt=trigger.attempt, record=record)

    def next_try(self, *, is_clear: bool = False) -> None:
        """Airflow starts another try: XComs are gone, the state store stays."""
        self.task.ti.try_number += 1
        if is_clear:
            self.task.ti.max_tries += 3
        self.task.ti.xcoms.clear()
        self.task.ti.pushed.clear()

    def newer_owner(self, k: int, **changes: Any) -> None:
        ti = self.task.ti
        self.bench.own(k, **{"try_number": ti.try_number + 1, "run_id": ti.run_id, **changes})

    def job_id(self, attempt: int = 1) -> str:
        key = TaskInstanceKey(self.task.ti.dag_id, self.task.ti.run_id, self.task.ti.task_id)
        return submission_id(experiment_uri(STORAGE, key), key, ref(1, attempt))


@contextmanager
def running_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with DriverServer(token="t0ken") as server:
        connection = {"conn_type": "ray", "host": server.url, "password": "t0ken"}
        monkeypatch.setenv("AIRFLOW_CONN_RAY_TEST", json.dumps(connection))
        bench = Bench(MemoryStore(STORAGE))
        for module in ("operators.session", "triggers.ray_train", "hooks.final_stop"):
            monkeypatch.setattr(f"airflow_provider.{module}.open_experiment", lambda *_, **__: bench.store)
        yield World(server, bench)
