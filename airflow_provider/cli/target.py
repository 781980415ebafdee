"""Which experiment a command is about, and the clients to look at it with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from airflow_provider.cli.airflow_side import check_connection, kept_job
from airflow_provider.cli.errors import NotFound
from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.identity import TaskInstanceKey, experiment_uri
from airflow_provider.core.wait_parameters import experiment_path
from airflow_provider.hooks.experiment import open_experiment
from airflow_provider.hooks.final_stop import JobRecord
from airflow_provider.hooks.ray import RayHook
from airflow_provider.storage.experiment_records import ExperimentRecords

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider.client.jobs_client import SyncJobsClient
    from airflow_provider.storage.object_store import ObjectStore

DEFAULT_CONN_ID = RayHook.default_conn_name
DEFAULT_AWS_CONN_ID = "aws_default"
_NAMES = ("dag_id", "task_id", "run_id")


@dataclass(frozen=True)
class Target:
    """An experiment and the connections to it."""

    uri: str
    conn_id: str
    aws_conn_id: str | None
    key: TaskInstanceKey | None = None
    """The task instance, where the command line named it."""

    def records(self) -> ExperimentRecords:
        """The experiment's records. Raises NotFound where nobody has ever owned it."""
        records = ExperimentRecords(open_folder(self.uri, aws_conn_id=self.aws_conn_id))
        if not records.owner_numbers():
            raise NotFound(
                f"There is no experiment at {self.uri}",
                known="the folder holds no owner record",
                change="correct the path; `airflow ray-train experiments STORAGE_PATH` lists what is there",
            )
        return records

    def client(self) -> SyncJobsClient:
        """A client of the dashboard; close it after use."""
        return dashboard(self.conn_id)


def find_target(args: Namespace) -> Target:
    """The experiment that a command line names: by its URI, by its task instance, or by both parts of its path.

    Without a storage path the task instance's own record is read from Airflow's database, which also knows the
    connections of its operator. Raises InvalidConfig, NotFound and AirflowUnreadable.
    """
    key = _key(args)
    if args.experiment is not None:
        if key is not None or args.storage_path is not None:
            raise InvalidConfig(
                "The experiment is named twice", change="give its URI, or --dag-id, --task-id and --run-id"
            )
        return Target(experiment_path(args.experiment), *_connections(args, None))
    if key is None:
        raise InvalidConfig(
            "The command line names no experiment",
            change="give its URI, or --dag-id, --task-id and --run-id (and --map-index of a mapped task)",
        )
    if args.storage_path is not None:
        return Target(experiment_uri(args.storage_path, key), *_connections(args, None), key)
    kept = _kept_record(key)
    return Target(kept.experiment, *_connections(args, kept), key)


def _key(args: Namespace) -> TaskInstanceKey | None:
    given = {name: getattr(args, name) for name in _NAMES}
    missing = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if missing:
        raise InvalidConfig(f"A task instance needs {' and '.join(missing)} too", change="add it")
    return TaskInstanceKey(args.dag_id, args.run_id, args.task_id, args.map_index)


def _connections(args: Namespace, kept: JobRecord | None) -> tuple[str, str | None]:
    """What the command line says, else what the operator used, else the operator's defaults."""
    conn_id = getattr(args, "conn_id", None) or (kept.conn_id if kept else DEFAULT_CONN_ID)
    if args.aws_conn_id is None:
        return conn_id, kept.aws_conn_id if kept else DEFAULT_AWS_CONN_ID
    return conn_id, args.aws_conn_id or None


def _kept_record(key: TaskInstanceKey) -> JobRecord:
    try:
        return JobRecord.model_validate(kept_job(key))
    except ValidationError:
        raise NotFound(
            f"Airflow knows no experiment of {key}",
            known="no try of it has left a record in its state store",
            change="correct the names, or add --storage-path, from which the path can be derived",
        ) from None


def open_folder(uri: str, *, aws_conn_id: str | None, storage_path: str | None = None) -> ObjectStore:
    """An object store rooted at a folder. Raises NotFound for an AWS connection that Airflow doesn't know."""
    if uri.startswith("s3://") and aws_conn_id not in (None, DEFAULT_AWS_CONN_ID):
        check_connection(str(aws_conn_id), conn_type="aws")
    return open_experiment(uri, aws_conn_id=aws_conn_id, storage_path=storage_path)


def dashboard(conn_id: str) -> SyncJobsClient:
    """A client of the dashboard behind a connection; close it after use. Raises NotFound and InvalidConfig."""
    check_connection(conn_id, conn_type=RayHook.conn_type)
    return RayHook(conn_id).client()
