"""What Airflow hands to a task: context, task instance, state store. Everything done to them is kept for the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, cast

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.context import OutletEventAccessors

RUN_ID = "manual__2026-11-29T00:00:00+00:00"
MARKER_KEY = "ray_train_owner"


def refused(status_code: int) -> AirflowRuntimeError:
    """As the supervisor hands on an answer of the API server; 404 from the state store: the task instance is archived."""
    return AirflowRuntimeError(
        ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": status_code, "message": "no"})
    )


@dataclass
class FakeStateStore:
    values: dict[str, Any] = field(default_factory=dict)
    refusal: AirflowRuntimeError | None = None
    """Raised by `set`."""
    before_set: Callable[[int], None] = lambda _: None
    sets: list[Any] = field(default_factory=list)

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        assert retention is not None, "the marker must not expire"
        self.before_set(len(self.sets) + 1)
        if self.refusal is not None:
            raise self.refusal
        self.sets.append(value)
        self.values[key] = value


@dataclass
class FakeTaskInstance:
    try_number: int = 1
    max_tries: int = 3
    map_index: int = -1
    dag_id: str = "d"
    run_id: str = RUN_ID
    task_id: str = "train"
    state: str = "running"
    hangs: bool = False
    """Whether Airflow's answers never come, as when the interrupted thread holds its connection."""
    released: threading.Event = field(default_factory=threading.Event)
    xcoms: dict[str, Any] = field(default_factory=dict)
    pushed: list[str] = field(default_factory=list)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value
        self.pushed.append(key)

    def get_task_states(self, **query: Any) -> dict[str, Any]:
        if self.hangs:
            self.released.wait(30)
        assert query["run_ids"] == [self.run_id]
        name = self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"
        return {self.run_id: {name: self.state}}


@dataclass
class FakeDagRun:
    clear_number: int = 0
    run_after: datetime = datetime(2026, 11, 29, tzinfo=timezone.utc)


@dataclass
class FakeTask:
    """The parts of a context, kept together."""

    ti: FakeTaskInstance = field(default_factory=FakeTaskInstance)
    store: FakeStateStore = field(default_factory=lambda: FakeStateStore({MARKER_KEY: {"k": 0, "identity": "i1"}}))
    dag_run: FakeDagRun = field(default_factory=FakeDagRun)
    outlet_events: OutletEventAccessors = field(default_factory=OutletEventAccessors)

    @property
    def context(self) -> Context:
        parts = {"ti": self.ti, "task_state_store": self.store, "dag_run": self.dag_run}
        return cast("Context", {**parts, "outlet_events": self.outlet_events})
