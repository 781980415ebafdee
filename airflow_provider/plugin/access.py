"""Who may see which task instance's page: Airflow's own checks, on the very ids that are looked up afterwards."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, HTTPException, Query, Request

from airflow_provider.core.identity import TaskInstanceKey

Id = Annotated[str, Query(min_length=1, max_length=250)]
UNMAPPED = "{MAP_INDEX}"
"""What Airflow's UI leaves in the address of a task that isn't mapped."""


def _allow(request: Request, user: GetUserDep, dag_id: str, *entities: DagAccessEntity) -> None:
    """Raises HTTPException 403. The id is given, never read from the request again: two readers could disagree."""
    for entity in entities:
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
    """The task instance that the address names; its lineage is what its XComs hold, so the right to those is needed too."""
    _allow(request, user, dag_id, DagAccessEntity.TASK_INSTANCE, DagAccessEntity.XCOM)
    return TaskInstanceKey(dag_id, run_id, task_id, _map_index(map_index))


def dag_run(request: Request, user: GetUserDep, dag_id: Id, run_id: Id) -> tuple[str, str]:
    """The DAG run that the address names."""
    _allow(request, user, dag_id, DagAccessEntity.TASK_INSTANCE, DagAccessEntity.XCOM)
    return dag_id, run_id


def readable_dags(user: GetUserDep) -> frozenset[str]:
    """Ids of all DAGs that the user may read."""
    return frozenset(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


def _map_index(text: str) -> int:
    if text in ("", "-1", UNMAPPED):
        return -1
    if not (text.isascii() and text.isdigit()):
        raise HTTPException(422, "map_index is a number")
    return int(text[:9])


TaskInstanceDep = Annotated[TaskInstanceKey, Depends(task_instance)]
DagRunDep = Annotated[tuple[str, str], Depends(dag_run)]
ReadableDagsDep = Annotated[frozenset[str], Depends(readable_dags)]
