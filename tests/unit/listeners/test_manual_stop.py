"""The listener in the API server: only a person's mark on our task stops a training, and nothing of it can fail there."""

from __future__ import annotations

import json
import threading
import uuid
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


def test_a_task_marked_skipped_is_stopped_for_good(calls: Calls) -> None:
    manual_stop.on_task_instance_skipped(previous_state=None, task_instance=OrmTaskInstance())  # type: ignore[arg-type]
    manual_stop.on_task_instance_skipped(previous_state="running", task_instance=OrmTaskInstance())  # type: ignore[arg-type]
    calls.settle()
    assert [how for _, _, how in calls.seen] == ["marked skipped"]


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


# --- a DAG run that is ended early ---------------------------------------------------------------------------------


def dag_run_with(session: Session, **states: tuple[str | None, int]) -> Any:
    """A DAG run of Airflow's own, with task instances by their state and try number."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import insert

    dag_run = DagRun(dag_id="d7", run_id="r7", run_type="manual")
    dag_run.clear_number = 5
    session.add(dag_run)
    session.flush()
    for number, (task_id, (state, try_number)) in enumerate(states.items()):
        values = {"dag_id": "d7", "run_id": "r7", "task_id": task_id, "map_index": -1, "state": state}
        counters = {"try_number": try_number, "max_tries": 3, "pool": "default_pool", "pool_slots": 1}
        row = {"id": uuid.UUID(int=number + 1), **values, **counters, "priority_weight": 1, "queue": "default"}
        session.execute(insert(TaskInstance.__table__).values(**row))
    return dag_run


@pytest.mark.parametrize(
    ("hook", "msg"),
    [
        (manual_stop.on_dag_run_failed, "Dag Run's state was manually set to `failed`."),
        (manual_stop.on_dag_run_success, "Dag Run's state was manually set to `success`."),
        (manual_stop.on_dag_run_failed, "timed_out"),
    ],
)
def test_tasks_that_were_skipped_between_two_tries_are_stopped(
    calls: Calls, database: Session, hook: Any, msg: str
) -> None:
    """Airflow calls no task's listener for them; those that never ran have nothing to stop."""
    dag_run = dag_run_with(
        database, waited=("skipped", 2), never_ran=("skipped", 0), over=("failed", 1), runs=(None, 1)
    )
    hook(dag_run=dag_run, msg=msg)
    calls.settle()
    assert [task.task_id for task in calls.tasks] == ["waited"]
    [(job, counters, how)] = calls.seen
    assert (job, counters) == (JOB, {"try_number": 2, "max_tries": 3, "clear_number": 5})
    assert "DAG run" in how
    assert calls.threads[0] is not threading.main_thread()


@pytest.mark.parametrize("msg", ["task_failure", "all_tasks_deadlocked", "success"])
def test_a_dag_runs_natural_end_stops_nothing(calls: Calls, database: Session, msg: str) -> None:
    """What a failed task left alone on purpose, a later clear attaches to."""
    manual_stop.on_dag_run_failed(dag_run=dag_run_with(database, waited=("skipped", 2)), msg=msg)
    calls.settle()
    assert (calls.seen, calls.num_lookups) == ([], 0)


def test_one_record_that_cannot_be_read_spares_no_other_job(
    calls: Calls, database: Session, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(task: Any) -> Any:
        if task.task_id == "first":
            raise RuntimeError("database is locked")
        return JOB

    monkeypatch.setattr(manual_stop, "_job_record", look_up)
    dag_run = dag_run_with(database, first=("skipped", 1), second=("skipped", 1))
    manual_stop.on_dag_run_failed(dag_run=dag_run, msg="timed_out")
    calls.settle()
    assert [task.task_id for task in calls.tasks] == ["second"]
    assert "can't be read" in caplog.text


def test_a_dag_run_that_cannot_be_asked_stops_nothing_and_raises_nothing(calls: Calls) -> None:
    broken: Any = SimpleNamespace(dag_id="d", run_id="r")
    manual_stop.on_dag_run_failed(dag_run=broken, msg="timed_out")
    calls.settle()
    assert calls.seen == []
