"""The listener in the API server: only a person's mark on our task stops a training, and nothing of it can fail there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.listeners import manual_stop
from airflow_provider.plugin import RayTrainPlugin

JOB = {"conn_id": "ray", "aws_conn_id": None, "experiment": "/shared/x", "submission_id": "job-1"}


@dataclass
class OrmDagRun:
    clear_number: int = 2


@dataclass
class OrmTaskInstance:
    """What the API server hands to listeners: `task` is None there."""

    operator: str | None = "RayTrainOperator"
    task: None = None
    try_number: int = 1
    max_tries: int = 3
    dag_id: str = "d"
    run_id: str = "r"
    task_id: str = "t"
    map_index: int = 4
    dag_run: OrmDagRun | None = field(default_factory=OrmDagRun)


class Calls:
    """Stands in for `stop_for_good` and the XCom row."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.record: dict[str, Any] | Exception | None = JOB
        self.error: Exception | None = None
        self.tasks: list[TaskInstanceKey] = []
        self.seen: list[tuple[dict[str, Any], dict[str, int], str]] = []
        self.threads: list[threading.Thread] = []
        self.num_lookups = 0
        monkeypatch.setattr(manual_stop, "_job_record", self._look_up)
        monkeypatch.setattr("airflow_provider.hooks.final_stop.stop_for_good", self._stop)

    def _look_up(self, _: object) -> dict[str, Any] | None:
        self.num_lookups += 1
        if isinstance(self.record, Exception):
            raise self.record
        return self.record

    def _stop(self, job: dict[str, Any], *, task: TaskInstanceKey, counters: dict[str, int], how: str) -> str:
        self.threads.append(threading.current_thread())
        if self.error is not None:
            raise self.error
        self.tasks.append(task)
        self.seen.append((job, counters, how))
        return "stopped"

    def settle(self) -> None:
        for thread in threading.enumerate():
            if thread.name == "ray-train-manual-stop":
                thread.join(10)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def failed(previous_state: Any, instance: Any) -> None:
    manual_stop.on_task_instance_failed(previous_state=previous_state, task_instance=instance)


def test_a_task_marked_failed_is_stopped_for_good(calls: Calls) -> None:
    failed(None, OrmTaskInstance())
    calls.settle()
    assert calls.seen == [(JOB, {"try_number": 1, "max_tries": 3, "clear_number": 2}, "marked failed")]
    assert calls.tasks == [TaskInstanceKey("d", "r", "t", 4)]


@pytest.mark.scenario("C60")
def test_a_task_marked_successful_is_stopped_for_good(calls: Calls) -> None:
    manual_stop.on_task_instance_success(previous_state=None, task_instance=OrmTaskInstance())  # type: ignore[arg-type]
    calls.settle()
    assert [how for _, _, how in calls.seen] == ["marked successful"]


@pytest.mark.parametrize("state", ["running", "deferred", "queued", ""])
def test_a_state_that_airflow_changed_by_itself_stops_nothing(calls: Calls, state: str) -> None:
    """A task that failed in its worker is retried: its job may be the one to attach to."""
    failed(state, OrmTaskInstance())
    calls.settle()
    assert (calls.seen, calls.num_lookups) == ([], 0)


@pytest.mark.parametrize("operator", ["RayTrainOperator", "OurTeamsTraining", None])
def test_any_task_that_pushed_a_job_is_ours_whatever_its_class_is_called(calls: Calls, operator: str | None) -> None:
    """A subclass has another name, and the API server knows no more of it."""
    failed(None, OrmTaskInstance(operator=operator))
    calls.settle()
    assert [job for job, _, _ in calls.seen] == [JOB]


@pytest.mark.parametrize("operator", ["PythonOperator", "RayTrainOperator"])
def test_a_task_that_pushed_none_is_never_ours(calls: Calls, operator: str) -> None:
    calls.record = None
    failed(None, OrmTaskInstance(operator=operator))
    manual_stop.on_task_instance_success(previous_state=None, task_instance=OrmTaskInstance(operator=operator))  # type: ignore[arg-type]
    calls.settle()
    assert (calls.seen, calls.threads, calls.num_lookups) == ([], [], 2)


@pytest.mark.parametrize(
    ("stored", "found"), [('{"conn_id": "ray"}', {"conn_id": "ray"}), ('"text"', "text"), (None, None)]
)
def test_the_job_is_looked_up_under_our_key_for_exactly_this_task_instance(
    monkeypatch: pytest.MonkeyPatch, stored: str | None, found: Any
) -> None:
    statements: list[Any] = []
    row = None if stored is None else SimpleNamespace(value=stored)

    class Session:
        def execute(self, statement: Any) -> Any:
            statements.append(statement)
            return SimpleNamespace(scalar=lambda: row)

    monkeypatch.setattr("airflow.utils.session.create_session", lambda: nullcontext(Session()))
    instance: Any = SimpleNamespace(dag_id="d7", task_id="t7", run_id="r7", map_index=4)
    assert manual_stop._pushed_record(instance) == found
    asked = set(map(str, statements[0].compile().params.values()))
    assert {"ray_train_job", "d7", "t7", "r7", "4"} <= asked


INSTANCE: Any = SimpleNamespace(dag_id="d7", task_id="t7", run_id="r7", map_index=4)
KEPT = {"conn_id": "ray", "aws_conn_id": None, "experiment": "/shared/kept", "dag_run_identity": "i1"}


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Airflow's own tables, empty."""
    from airflow.models import import_all_models
    from airflow.models.base import Base

    import_all_models()
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        monkeypatch.setattr("airflow.utils.session.create_session", lambda: nullcontext(session))
        yield session
    engine.dispose()


def keep(session: Session, value: Any, **changes: Any) -> None:
    """As the API server stores what a worker sets."""
    from airflow.models.dagrun import DagRun
    from airflow.state import TaskScope, get_state_backend

    scope = TaskScope(**{"dag_id": "d7", "run_id": "r7", "task_id": "t7", "map_index": 4, **changes})
    if session.scalar(select(DagRun.id).where(DagRun.dag_id == scope.dag_id, DagRun.run_id == scope.run_id)) is None:
        session.add(DagRun(dag_id=scope.dag_id, run_id=scope.run_id, run_type="manual"))
        session.flush()
    get_state_backend().set(scope, "ray_train_job", json.dumps(value), session=session)


def test_a_mark_between_a_trys_start_and_its_first_push_finds_the_record_of_the_try_before(database: Session) -> None:
    """Airflow has deleted the XComs, and the job of the try before lives."""
    keep(database, KEPT)
    assert manual_stop._job_record(INSTANCE) == KEPT


@pytest.mark.parametrize("changes", [{"dag_id": "d8"}, {"run_id": "r8"}, {"task_id": "t8"}, {"map_index": 5}])
def test_the_record_of_another_task_instance_is_none_of_ours(database: Session, changes: dict[str, Any]) -> None:
    keep(database, KEPT, **changes)
    assert manual_stop._job_record(INSTANCE) is None


@pytest.mark.parametrize("kept", [None, {"__external_ref__": "s3://x"}, "text", RuntimeError("no such backend")])
def test_without_a_record_in_the_state_store_the_xcom_counts(
    monkeypatch: pytest.MonkeyPatch, kept: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker's own backend leaves a reference there, an older release nothing, and a broken one raises."""

    def read(_: object) -> Any:
        if isinstance(kept, Exception):
            raise kept
        return kept

    monkeypatch.setattr(manual_stop, "_kept_record", read)
    monkeypatch.setattr(manual_stop, "_pushed_record", lambda _: JOB)
    assert manual_stop._job_record(INSTANCE) == JOB
    assert ("can't be read" in caplog.text) is isinstance(kept, Exception)


def test_a_task_that_submitted_nothing_has_nothing_to_stop(calls: Calls) -> None:
    calls.record = None
    failed(None, OrmTaskInstance())
    calls.settle()
    assert calls.threads == []


def test_a_dag_run_that_is_not_loaded_counts_as_never_cleared(calls: Calls) -> None:
    failed(None, OrmTaskInstance(dag_run=None))
    calls.settle()
    assert calls.seen[0][1]["clear_number"] == 0


def test_the_persons_request_does_not_wait_for_ray(calls: Calls) -> None:
    failed(None, OrmTaskInstance())
    calls.settle()
    assert calls.threads[0] is not threading.main_thread()
    assert calls.threads[0].daemon


@pytest.mark.parametrize("where", ["look-up", "stop"])
def test_an_error_never_reaches_the_api_server(calls: Calls, where: str, caplog: pytest.LogCaptureFixture) -> None:
    if where == "look-up":
        calls.record = RuntimeError("database is locked")
    else:
        calls.error = RuntimeError("no such bucket")
    failed(None, OrmTaskInstance())
    calls.settle()
    assert "could not be stopped" in caplog.text


def test_the_plugin_registers_it_as_airflow_calls_it() -> None:
    from airflow.listeners.listener import ListenerManager

    assert RayTrainPlugin.listeners == [manual_stop]
    manager: Any = cast("Any", ListenerManager)()
    manager.add_listener(manual_stop)
    assert manager.has_listeners
