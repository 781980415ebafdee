"""One task instance over its tries: Airflow's own task runner, with the scheduler's and the triggerer's part around it."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import structlog
from airflow.sdk import TaskInstanceState
from airflow.sdk.api.datamodels import _generated as api
from airflow.sdk.execution_time import comms
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance, run
from airflow.sdk.serde import deserialize

from airflow_provider.testing.runs import EmittedEvent, TaskRun, TryRun
from airflow_provider.testing.supervisor import NotInTestMode

if TYPE_CHECKING:
    from airflow_provider.testing.cluster import RayTrainCluster

_MAX_STEPS = 100_000
"""Looks of a sensor in reschedule mode, each a step of its own."""


@dataclass(frozen=True)
class DagRunOf:
    """The DAG run of a task instance."""

    run_id: str
    conf: dict[str, Any]
    logical_date: datetime | None
    triggered_by: tuple[EmittedEvent, ...]
    began: datetime
    """When it was made: the moment of a run without a date."""


@dataclass
class TaskInstanceRunner:
    """Runs one task instance until it has ended."""

    cluster: RayTrainCluster
    task: Any
    dag_run: DagRunOf
    result: TaskRun

    def run_all(self, *, num_before: int) -> None:
        """All tries; `num_before` are those before a clear."""
        retries = self._retries()
        max_tries = num_before + retries
        for number in range(num_before + 1, max_tries + 2):
            self.result.tries.append(TryRun(number))
            self._forget_xcoms()
            self.cluster.begin_try()
            self._run_try(self.result.last, max_tries)
            if self.result.state != "up_for_retry":
                return

    @property
    def _key(self) -> tuple[tuple[str, str, str], int]:
        return (self.result.dag_id, self.result.run_id, self.result.task_id), self.result.map_index

    def _retries(self) -> int:
        return int(self.task.retries or 0)

    def _forget_xcoms(self) -> None:
        """As the API server does when a try starts."""
        self.cluster.airflow.xcoms.pop(self._key, None)

    def _run_try(self, one: TryRun, max_tries: int) -> None:
        identity = uuid.uuid4()
        self.cluster.airflow.instances[identity] = self._key
        resume: dict[str, Any] = {}
        self.cluster.clock.begin_wait()
        for step in range(_MAX_STEPS):
            state, message, error = self._step(one, identity, max_tries=max_tries, looks=step, resume=resume)
            self.cluster.check_stuck()
            if isinstance(error, NotInTestMode):
                raise error
            resume = {}
            if isinstance(message, comms.DeferTask):
                one.num_deferrals += 1
                resume = {"next_method": message.next_method, "next_kwargs": self._follow(message)}
            elif isinstance(message, comms.RescheduleTask):
                now = self.cluster.clock.now()
                self.cluster.airflow.first_looks.setdefault(identity, now)
                self.cluster.clock.skip((message.reschedule_date - now).total_seconds())
            else:
                self._conclude(one, state, message, error)
                return
        raise NotInTestMode("The sensor looked 100,000 times", change="give it a longer poke_interval, or a timeout")

    def _step(
        self, one: TryRun, identity: uuid.UUID, *, max_tries: int, looks: int, resume: dict[str, Any]
    ) -> tuple[str, Any, BaseException | None]:
        """One process of the task."""
        now = self.cluster.clock.now()
        is_rescheduled = identity in self.cluster.airflow.first_looks
        context = api.TIRunContext(
            dag_run=self._dag_run(),
            max_tries=max_tries,
            should_retry=one.try_number <= max_tries,
            task_reschedule_count=looks if is_rescheduled else 0,
            **resume,
        )
        instance = RuntimeTaskInstance.model_construct(
            id=identity,
            task_id=self.result.task_id,
            dag_id=self.result.dag_id,
            run_id=self.result.run_id,
            try_number=one.try_number,
            map_index=self.result.map_index,
            dag_version_id=identity,
            task=self.task,
            _ti_context_from_server=context,  # type: ignore[call-arg]  # a private attribute, as Airflow itself sets it
            max_tries=max_tries,
            start_date=now,
            state=TaskInstanceState.RUNNING,
        )
        with _restoring_process():
            state, message, error = run(
                instance, instance.get_template_context(), cast("Any", structlog.get_logger("airflow.task"))
            )
        return str(state.value), message, error

    def _dag_run(self) -> api.DagRun:
        of = self.dag_run
        consumed: list[dict[str, Any]] = [
            {
                "asset": {"name": event.asset, "uri": event.uri, "extra": {}},
                "extra": event.extra,
                "source_task_id": None,
                "source_dag_id": None,
                "source_run_id": None,
                "source_map_index": None,
                "source_aliases": [],
                "timestamp": of.began,
            }
            for event in of.triggered_by
        ]
        return api.DagRun.model_validate(
            {
                "dag_id": self.result.dag_id,
                "run_id": of.run_id,
                "logical_date": of.logical_date,
                "data_interval_start": of.logical_date,
                "data_interval_end": of.logical_date,
                "run_after": of.logical_date or of.began,
                "start_date": of.began,
                "end_date": None,
                "run_type": "asset_triggered" if consumed else "manual",
                "state": "running",
                "conf": of.conf or None,
                "consumed_asset_events": consumed,
                "partition_key": None,
            }
        )

    def _follow(self, message: comms.DeferTask) -> dict[str, Any]:
        """The triggerer's part: the trigger from its row, its one event, and what the task resumes with."""
        module, _, name = message.classpath.rpartition(".")
        row = cast("dict[str, Any]", deserialize(cast("Any", message.trigger_kwargs)))
        trigger = getattr(import_module(module), name)(**row)

        async def first() -> Any:
            async for event in trigger.run():
                return event.payload
            raise NotInTestMode(f"{message.classpath} ended without an event")

        self.cluster.clock.begin_wait()
        payload = asyncio.run(first())
        self.cluster.check_stuck()
        kwargs = cast("dict[str, Any]", deserialize(cast("Any", message.next_kwargs or {})))
        return {**kwargs, "event": payload}

    def _conclude(self, one: TryRun, state: str, message: Any, error: BaseException | None) -> None:
        airflow = self.cluster.airflow
        one.state, one.error = state, error
        one.decisions, one.submissions = self.cluster.take()
        one.xcoms = dict(airflow.xcoms.get(self._key, {}))
        one.rendered = airflow.rendered
        if isinstance(message, comms.RetryTask):
            one.retry_reason = message.retry_reason
        if isinstance(message, comms.SucceedTask):
            one.asset_events = list(_emitted(message))
            for event in one.asset_events:
                airflow.add_event(event.asset, event.uri, event.extra)


def _emitted(message: comms.SucceedTask) -> Iterator[EmittedEvent]:
    """The events that the API server makes of a success: one for each plain outlet, and those set through an alias."""
    extras = {}
    for event in message.outlet_events or []:
        key = cast("dict[str, Any]", event["dest_asset_key"])
        extra = dict(cast("dict[str, Any]", event.get("extra") or {}))
        if "source_alias_name" in event:
            yield EmittedEvent(str(key["name"]), str(key["uri"]), extra)
        else:
            extras[key["name"]] = extra
    for outlet in message.task_outlets or []:
        if outlet.type != "AssetAlias":
            name = str(outlet.name or outlet.uri)
            yield EmittedEvent(name, str(outlet.uri or name), extras.get(name, {}))


@contextmanager
def _restoring_process() -> Iterator[None]:
    """The task runner expects a process of its own: its handler of SIGTERM and Airflow's variables go again."""
    handler, variables = signal.getsignal(signal.SIGTERM), dict(os.environ)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
