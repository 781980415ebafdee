"""What Airflow's database knows of trainings: the operator's record, the tries, the XComs. Read-only."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.json_input import UnreadableJson, is_shallow, read_json, storable_tree
from airflow_provider.core.strict_json import storable
from airflow_provider.hooks.final_stop import JOB_RECORD_KEY
from airflow_provider.links.ray_train import EXPERIMENT_URL_KEY, JOB_URL_KEY
from airflow_provider.plugin.view.facts import Recorded, TaskTry

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

logger = logging.getLogger(__name__)

LINEAGE_KEY = "checkpoint_lineage"
MAX_TRIES = 200
RUNS_PER_PAGE = 50


@dataclass(frozen=True)
class Training:
    """A task instance that has recorded an experiment."""

    key: TaskInstanceKey
    experiment: str
    recorded_at: datetime
    state: str | None
    try_number: int | None


def read_recorded(session: Session, key: TaskInstanceKey) -> Recorded | None:
    """Everything recorded of a task instance; None for one that isn't there."""
    from airflow.models.taskinstance import TaskInstance

    instance = _first(session, TaskInstance, key)
    if instance is None:
        return None
    xcoms = _xcoms(session, key)
    kept, unread = _kept(session, key)
    job = _job(kept) or _job(xcoms.get(JOB_RECORD_KEY)) or {}
    lineage = xcoms.get(LINEAGE_KEY)
    return Recorded(
        key=key,
        state=str(instance.state) if instance.state else None,
        tries=_tries(session, key, instance),
        experiment=job.get("experiment"),
        unread=None if job else unread,
        conn_id=_text(job.get("conn_id")),
        aws_conn_id=_text(job.get("aws_conn_id")),
        team_name=_team_name(session, key.dag_id),
        job_url=_text(xcoms.get(JOB_URL_KEY)),
        experiment_url=_text(xcoms.get(EXPERIMENT_URL_KEY)),
        lineage=lineage if isinstance(lineage, dict) else None,
    )


def _team_name(session: Session, dag_id: str) -> str | None:
    """By Airflow's database, as for a task: never by what the browser or a record says."""
    from airflow.configuration import conf
    from airflow.models.dag import DagModel

    return DagModel.get_team_name(dag_id, session=session) if conf.getboolean("core", "multi_team") else None


def _first(session: Session, model: Any, key: TaskInstanceKey) -> Any:
    from sqlalchemy import select

    return session.scalars(_of(select(model), model, key).limit(1)).first()


def _of(query: Any, model: Any, key: TaskInstanceKey) -> Any:
    return query.where(
        model.dag_id == key.dag_id,
        model.run_id == key.run_id,
        model.task_id == key.task_id,
        model.map_index == key.map_index,
    )


def _tries(session: Session, key: TaskInstanceKey, instance: Any) -> tuple[TaskTry, ...]:
    from airflow.models.taskinstancehistory import TaskInstanceHistory
    from sqlalchemy import select

    query = _of(select(TaskInstanceHistory), TaskInstanceHistory, key)
    older = session.scalars(query.order_by(TaskInstanceHistory.try_number.desc()).limit(MAX_TRIES))
    found = {one.try_number: one for one in older}
    if instance.try_number:
        found[instance.try_number] = instance
    return tuple(
        TaskTry(number, str(one.state) if one.state else None, one.queued_dttm, one.start_date, one.end_date)
        for number, one in sorted(found.items())
    )


def _kept(session: Session, key: TaskInstanceKey) -> tuple[Any, str | None]:
    """The state store's record, which outlives tries, and the name of the error where it couldn't be read."""
    from airflow.state import TaskScope, get_state_backend

    scope = TaskScope(dag_id=key.dag_id, run_id=key.run_id, task_id=key.task_id, map_index=key.map_index)
    try:
        return from_json(get_state_backend().get(scope, JOB_RECORD_KEY, session=session)), None
    except Exception as error:  # process edge: a state backend of the deployment may fail in any way; the XCom is left
        logger.exception("The state store gave no record of %s", key)
        return None, type(error).__name__


def from_json(value: Any) -> Any:
    """The value of a JSON text; any other text is itself. What nobody could write again, or send, is not in it."""
    if isinstance(value, str):
        try:
            return read_json(value)
        except UnreadableJson:
            return storable(value)
    return storable_tree(value) if is_shallow(value) else None


def _xcoms(session: Session, key: TaskInstanceKey) -> dict[str, Any]:
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    wanted = (JOB_RECORD_KEY, JOB_URL_KEY, EXPERIMENT_URL_KEY, LINEAGE_KEY)
    rows = session.scalars(_of(select(XComModel), XComModel, key).where(XComModel.key.in_(wanted)))
    # Ours are plain JSON: objects of other classes are never made here, whatever somebody has pushed under these keys.
    return {row.key: from_json(row.value) for row in rows}


def _job(value: Any) -> dict[str, Any] | None:
    """The operator's record, or None for anything else: a worker's own backend may have left a reference."""
    return value if isinstance(value, dict) and isinstance(value.get("experiment"), str) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def dags_with_trainings(session: Session) -> frozenset[str]:
    """Ids of all DAGs that have a task instance which recorded an experiment."""
    from airflow.models.task_state_store import TaskStateStoreModel as Kept
    from sqlalchemy import select

    return frozenset(session.scalars(select(Kept.dag_id).where(Kept.key == JOB_RECORD_KEY).distinct()))


def trainings(
    session: Session, *, dag_ids: Iterable[str], run_id: str | None = None, page: int = 1
) -> tuple[tuple[Training, ...], int]:
    """A page of the task instances of these DAGs that recorded an experiment, newest first, and how many there are."""
    from airflow.models.task_state_store import TaskStateStoreModel as Kept
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import and_, func, select

    wanted = [Kept.key == JOB_RECORD_KEY, Kept.dag_id.in_(sorted(dag_ids))]
    if run_id is not None:
        wanted.append(Kept.run_id == run_id)
    same = and_(
        TaskInstance.dag_id == Kept.dag_id,
        TaskInstance.run_id == Kept.run_id,
        TaskInstance.task_id == Kept.task_id,
        TaskInstance.map_index == Kept.map_index,
    )
    query = select(Kept, TaskInstance.state, TaskInstance.try_number).join(TaskInstance, same).where(*wanted)
    newest = query.order_by(Kept.updated_at.desc(), Kept.id.desc()).offset((page - 1) * RUNS_PER_PAGE)
    total = session.scalar(select(func.count()).select_from(query.with_only_columns(Kept.id).subquery())) or 0
    found = []
    for kept, state, try_number in session.execute(newest.limit(RUNS_PER_PAGE)):
        key = TaskInstanceKey(kept.dag_id, kept.run_id, kept.task_id, kept.map_index)
        job = _job(from_json(kept.value))
        where = job["experiment"] if job else ""
        found.append(Training(key, where, kept.updated_at, str(state) if state else None, try_number))
    return tuple(found), total
