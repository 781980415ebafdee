"""Who may see which task instance's page: Airflow's own checks, on the very ids that are looked up afterwards."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException, Query, Request

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.plugin.recorded import dags_with_trainings

Id = Annotated[str, Query(min_length=1, max_length=250, pattern=r"^[^\x00]+$")]
"""PostgreSQL refuses a text with NUL by an error that would be the server's fault."""
_ENTITIES = (DagAccessEntity.TASK_INSTANCE, DagAccessEntity.XCOM)
"""What a lineage shows: its tries, and what the task's XComs hold."""
UNMAPPED = "{MAP_INDEX}"
"""What Airflow's UI leaves in the address of a task that isn't mapped."""


def _allow(request: Request, user: GetUserDep, dag_id: str) -> None:
    """Raises HTTPException 403. The id is given, never read from the request again: two readers could disagree."""
    for entity in _ENTITIES:
        requires_access_dag("GET", entity, param_dag_id=dag_id)(request, user)


def task_instance(
    request: Request,
    user: GetUserDep,
    *,
    dag_id: Id,
    run_id: Id,
    task_id: Id,
    map_index: Annotated[str, Query(max_length=20)] = "-1",
) -> TaskInstanceKey:
    """The task instance that the address names."""
    _allow(request, user, dag_id)
    return TaskInstanceKey(dag_id, run_id, task_id, _map_index(map_index))


def dag_run(request: Request, user: GetUserDep, dag_id: Id, run_id: Id) -> tuple[str, str]:
    """The DAG run that the address names."""
    _allow(request, user, dag_id)
    return dag_id, run_id


def readable_dags(request: Request, user: GetUserDep) -> frozenset[str]:
    """Ids of the DAGs with trainings whose lineage the user may see: a list must not tell what the page itself would refuse."""
    with create_session(scoped=False) as session:
        trained = dags_with_trainings(session)
    readable = trained & get_auth_manager().get_authorized_dag_ids(user=user, method="GET") if trained else frozenset()
    return frozenset(dag_id for dag_id in readable if _is_allowed(request, user, dag_id))


def _is_allowed(request: Request, user: GetUserDep, dag_id: str) -> bool:
    try:
        _allow(request, user, dag_id)
    except HTTPException:
        return False
    return True


def _map_index(text: str) -> int:
    if text in ("", "-1", UNMAPPED):
        return -1
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise HTTPException(422, "map_index is a number")
    return int(text)


TaskInstanceDep = Annotated[TaskInstanceKey, Depends(task_instance)]
DagRunDep = Annotated[tuple[str, str], Depends(dag_run)]
ReadableDagsDep = Annotated[frozenset[str], Depends(readable_dags)]
