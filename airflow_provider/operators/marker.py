"""What a try keeps in the task's state store, which outlives tries: the marker, and where its training is.

The refusal of the marker is how a replaced process learns that it is one.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from airflow_provider.core.errors import MessageUnreadable
from airflow_provider.hooks.final_stop import JOB_RECORD_KEY

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor

MARKER_KEY = "ray_train_owner"


def dag_run_identity(store: TaskStateStoreAccessor) -> str:
    """The mark of this DAG run: kept in the state store, which is deleted with the run. A new one where none is kept.

    Raises MessageUnreadable for one that is there but damaged: a new mark would read as a re-created DAG run.
    """
    marker = store.get(MARKER_KEY)
    if marker is None:
        return uuid.uuid4().hex
    if isinstance(marker, dict) and isinstance(marker.get("identity"), str):
        return str(marker["identity"])
    raise MessageUnreadable(
        f"The entry {MARKER_KEY} in the task's state store can't be read",
        known=f"it is a {type(marker).__name__} without an identity; nothing was started",
        change="delete the entry: the next try writes it anew and counts as a re-created DAG run",
    )


def keep_identity(store: TaskStateStoreAccessor, identity: str) -> bool:
    """Keep the mark of a new DAG run before anything is owned; False when this process has been replaced meanwhile.

    Two tries that each made a mark of their own would look like two DAG runs to whoever reads their owner records.
    """
    return store.get(MARKER_KEY) is not None or set_marker(store, k=0, identity=identity)


def set_marker(store: TaskStateStoreAccessor, *, k: int, identity: str) -> bool:
    """Store the marker; False when Airflow says that this task instance is archived (404)."""
    return _keep(store, MARKER_KEY, {"k": k, "identity": identity})


def keep_job_record(store: TaskStateStoreAccessor, record: dict[str, Any]) -> bool:
    """Store what the listener needs, over the next tries' starts too; False as above.

    Airflow deletes a task's XComs when a try starts: a mark that comes before the first push would find none, while the
    job of the try before lives on.
    """
    return _keep(store, JOB_RECORD_KEY, record)


def _keep(store: TaskStateStoreAccessor, key: str, value: dict[str, Any]) -> bool:
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    try:
        store.set(key, value, retention=NEVER_EXPIRE)
    except AirflowRuntimeError as error:
        if (error.error.detail or {}).get("status_code") == 404:
            return False
        raise
    return True
