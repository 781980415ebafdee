"""A person marked a task failed or successful: stop its training for good, even while no triggerer runs.

Airflow deletes a deferred task's trigger row before a triggerer that is down could call `on_kill`; this listener runs in
the API server, where such a change is made. It acts only on manual changes (`previous_state is None` there), in a thread,
so that the person's request doesn't wait for Ray or the bucket. Known limitation: the API server must reach both.

A DAG run that is ended early, by hand or by its `dagrun_timeout`, is another matter: Airflow skips the tasks that wait for
their next try without a word to anybody, while a job of the try before may live on.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

log = logging.getLogger(__name__)


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: TaskInstance) -> None:
    """A task failed; a manual change has no previous state."""
    _stop_if_manual(previous_state, task_instance, "marked failed")


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: TaskInstance) -> None:
    """A task succeeded; a manual change has no previous state."""
    _stop_if_manual(previous_state, task_instance, "marked successful")


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: TaskInstance) -> None:
    """A task was skipped; a manual change has no previous state."""
    _stop_if_manual(previous_state, task_instance, "marked skipped")


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """A DAG run failed, perhaps before its time."""
    _stop_skipped(dag_run, msg)


@hookimpl
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:
    """A DAG run succeeded, perhaps before its time."""
    _stop_skipped(dag_run, msg)


@dataclass(frozen=True)
class _Skipped:
    """A task instance that was skipped with its DAG run, as other threads may know it."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    counters: dict[str, int]


def _stop_skipped(dag_run: DagRun, msg: str) -> None:
    """Stop what tasks left behind that had run, and were skipped while they waited for their next try.

    The message is all that tells a DAG run's natural end, for which nothing is skipped, from an early one. Records are
    looked up in the thread: the scheduler calls this inside a transaction that nobody may commit.
    """
    if msg != "timed_out" and "manually" not in msg:
        return
    try:
        skipped = _skipped_tasks(dag_run)
        if skipped:
            threading.Thread(target=_stop_all, args=(skipped,), name="ray-train-manual-stop", daemon=True).start()
    except Exception:  # process edge: neither a person's request nor the scheduler may fail because of us
        log.exception("The trainings of %s could not be stopped", dag_run)


def _skipped_tasks(dag_run: DagRun) -> list[_Skipped]:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return []
    query = select(TaskInstance.task_id, TaskInstance.map_index, TaskInstance.try_number, TaskInstance.max_tries).where(
        TaskInstance.dag_id == dag_run.dag_id,
        TaskInstance.run_id == dag_run.run_id,
        TaskInstance.state == "skipped",
        TaskInstance.try_number > 0,
    )
    clear_number = dag_run.clear_number or 0
    return [
        _Skipped(
            dag_run.dag_id,
            dag_run.run_id,
            task_id,
            map_index,
            {"try_number": try_number, "max_tries": max_tries, "clear_number": clear_number},
        )
        for task_id, map_index, try_number, max_tries in session.execute(query)
    ]


def _stop_all(skipped: list[_Skipped]) -> None:
    for task in skipped:
        try:
            job = _job_record(task)
        except Exception:  # process edge: the others' jobs count, too
            log.exception("The record of %s can't be read", task.task_id)
            continue
        if job is not None:
            key = (task.dag_id, task.run_id, task.task_id, task.map_index)
            _stop(job, key, task.counters, "skipped when its DAG run was ended")


def _stop_if_manual(previous_state: Any, task_instance: TaskInstance, how: str) -> None:
    if previous_state is not None:
        return
    try:
        job = _job_record(task_instance)
        if job is None:
            return
        counters = {
            "try_number": task_instance.try_number,
            "max_tries": task_instance.max_tries,
            "clear_number": getattr(getattr(task_instance, "dag_run", None), "clear_number", 0) or 0,
        }
        key = (task_instance.dag_id, task_instance.run_id, task_instance.task_id, task_instance.map_index)
        arguments = (job, key, counters, how)
        threading.Thread(target=_stop, args=arguments, name="ray-train-manual-stop", daemon=True).start()
    except Exception:  # process edge: the person's request must not fail because of us
        log.exception("The training of %s could not be stopped", task_instance)


def _job_record(task_instance: TaskInstance | _Skipped) -> Any:
    """What the operator left: in the state store, which outlives tries, else in the XCom of this try.

    A worker's own backend may keep only a reference in the state store, and releases before wrote no entry.
    """
    try:
        kept = _kept_record(task_instance)
    except Exception:  # process edge: a state backend of the deployment may fail in any way
        log.exception("The state store of %s can't be read; looking for an XCom", task_instance)
        kept = None
    return kept if isinstance(kept, dict) and "experiment" in kept else _pushed_record(task_instance)


def _kept_record(task_instance: TaskInstance | _Skipped) -> Any:
    from airflow.state import TaskScope, get_state_backend
    from airflow.utils.session import create_session

    from airflow_provider.hooks.final_stop import JOB_RECORD_KEY

    scope = TaskScope(
        dag_id=task_instance.dag_id,
        run_id=task_instance.run_id,
        task_id=task_instance.task_id,
        map_index=task_instance.map_index,
    )
    with create_session() as session:
        value = get_state_backend().get(scope, JOB_RECORD_KEY, session=session)
    return None if value is None else json.loads(value)


def _pushed_record(task_instance: TaskInstance | _Skipped) -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    from airflow_provider.hooks.final_stop import JOB_RECORD_KEY

    with create_session() as session:
        row = session.execute(
            XComModel.get_many(
                key=JOB_RECORD_KEY,
                dag_ids=task_instance.dag_id,
                task_ids=task_instance.task_id,
                run_id=task_instance.run_id,
                map_indexes=task_instance.map_index,
            )
        ).scalar()
    if row is None:
        return None
    return XComModel.deserialize_value(row)


def _stop(job: Any, key: tuple[str, str, str, int], counters: dict[str, int], how: str) -> None:
    from airflow_provider.core.identity import TaskInstanceKey
    from airflow_provider.hooks.final_stop import stop_for_good

    try:
        log.info(stop_for_good(job, task=TaskInstanceKey(*key), counters=counters, how=how))
    except Exception:  # process edge: an error here must not reach the API server
        name = job.get("submission_id") if isinstance(job, dict) else f"a task that was {how}"
        log.exception("The training of %s could not be stopped", name)
