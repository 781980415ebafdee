"""What the commands read of Airflow itself: connections, a task instance's counters, and what its operator kept."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider.cli.errors import AirflowUnreadable, NotFound
from airflow_provider.hooks.final_stop import JOB_RECORD_KEY

if TYPE_CHECKING:
    from airflow_provider.core.identity import TaskInstanceKey

MARKER_KEY = "ray_train_owner"
ENDED_TASK = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})
"""States of a task that only a person's clear leads out of."""
ENDED_RUN = frozenset({"success", "failed"})
UNREADABLE = "could not be read"
"""Airflow takes a connection that it can't read for one that isn't there."""
_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"


def read_connections_as_a_server() -> None:
    """Let connections come from the environment, the secrets backend, then the metadata database.

    The SDK's lookup leaves the database out in a process that is neither a task nor a server; Airflow's own
    `connections test` says the same about itself.
    """
    os.environ.setdefault(_CONTEXT, "server")


def check_connection(conn_id: str, *, conn_type: str) -> None:
    """Raise NotFound, with where it was looked for, unless Airflow knows the connection."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise NotFound(
            f"Airflow has no connection {conn_id!r}",
            known=f"looked in {_looked_in(conn_id)}",
            change=f"create it with type {conn_type} (AIRFLOW_CONN_{conn_id.upper()}, or `airflow connections add`), "
            "or name another one",
        ) from None


def _looked_in(conn_id: str) -> str:
    """The places, and which of them could not be read: Airflow takes that for "not there"."""
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    said = []
    for backend in ensure_secrets_backend_loaded():
        name = type(backend).__name__
        try:
            backend.get_connection(conn_id=conn_id)
        except Exception as error:  # noqa: BLE001 - a deployment's own backend may fail in any way
            name = f"{name} ({UNREADABLE}: {type(error).__name__})"
        said.append(name)
    return ", ".join(said)


@dataclass(frozen=True)
class TaskInAirflow:
    """A task instance as Airflow's database has it."""

    state: str | None
    try_number: int
    max_tries: int
    run_state: str
    clear_number: int
    identity: str | None
    """The mark of its DAG run; None where no try of ours has left one."""
    stop_on_kill: bool = True
    """The operator's: False lets a job go on after its task."""
    is_resuming: bool = False
    """Whether its try was deferred and goes on when it is scheduled next: that is no new try."""

    @property
    def is_over(self) -> bool:
        """Whether nothing but a person's clear can start it again."""
        return self.state in ENDED_TASK and self.run_state in ENDED_RUN

    @property
    def counters(self) -> dict[str, int]:
        """What owner records compare."""
        return {"try_number": self.try_number, "max_tries": self.max_tries, "clear_number": self.clear_number}


def task_in_airflow(key: TaskInstanceKey) -> TaskInAirflow | None:
    """The task instance, or None if this Airflow has none of that name. Raises AirflowUnreadable."""

    def read(session: Any) -> TaskInAirflow | None:
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import TaskInstance
        from sqlalchemy import select

        query = (
            select(
                TaskInstance.state,
                TaskInstance.try_number,
                TaskInstance.max_tries,
                DagRun.state,
                DagRun.clear_number,
                TaskInstance.next_method,
            )
            .join(DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id))
            .where(
                TaskInstance.dag_id == key.dag_id,
                TaskInstance.run_id == key.run_id,
                TaskInstance.task_id == key.task_id,
                TaskInstance.map_index == key.map_index,
            )
        )
        row = session.execute(query).one_or_none()
        if row is None:
            return None
        state, try_number, max_tries, run_state, clear_number, next_method = row
        marker, job = _kept(key, MARKER_KEY, session), _kept(key, JOB_RECORD_KEY, session)
        identity = marker.get("identity") if isinstance(marker, dict) else None
        return TaskInAirflow(
            state=str(state) if state is not None else None,
            try_number=try_number,
            max_tries=max_tries,
            run_state=str(run_state),
            clear_number=clear_number or 0,
            identity=identity if isinstance(identity, str) else None,
            stop_on_kill=not (isinstance(job, dict) and job.get("stop_on_kill") is False),
            is_resuming=next_method is not None,
        )

    found: TaskInAirflow | None = _reading(read)
    return found


def kept_job(key: TaskInstanceKey) -> Any:
    """What the operator kept of its training (`ray_train_job`), None where it kept nothing. Raises AirflowUnreadable."""
    return _reading(lambda session: _kept(key, JOB_RECORD_KEY, session))


def _kept(key: TaskInstanceKey, name: str, session: Any) -> Any:
    from airflow.state import TaskScope, get_state_backend

    scope = TaskScope(dag_id=key.dag_id, run_id=key.run_id, task_id=key.task_id, map_index=key.map_index)
    value = get_state_backend().get(scope, name, session=session)
    return None if value is None else json.loads(value)


def _reading(read: Any) -> Any:
    from airflow.utils.session import create_session

    try:
        with create_session() as session:
            return read(session)
    except Exception as error:  # noqa: BLE001 - a database fails in as many ways as it has drivers
        # The message of a driver may hold the database's address with its password.
        raise AirflowUnreadable(
            "Airflow's database can't be read from here",
            known=type(error).__name__,
            change="run the command where Airflow's scheduler or API server runs, or name the experiment by its URI",
        ) from None
