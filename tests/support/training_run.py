"""One training task instance on the real stack, seen from all sides: Airflow, the bucket, the cluster's processes."""

from __future__ import annotations

import io
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from airflow_provider.core.lineage import Lineage, project
from airflow_provider.operators.collecting import read_experiment
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.object_store import open_object_store

if TYPE_CHECKING:
    from tests.stack.airflow_client import AirflowClient
    from tests.stack.ray_cluster import RayCluster
    from tests.stack.s3 import S3Server
    from tests.stack.services import Stack

JOB_RECORD_KEY = "ray_train_job"
DRIVER = "airflow_provider.runtime.driver"
WORKER = "ray::RayTrainWorker"


def driver_processes(ray: RayCluster) -> list[psutil.Process]:
    """Our drivers on the cluster, with the shells around them."""
    return [p for p in ray.processes() if DRIVER in _command(p)]


def worker_processes(ray: RayCluster) -> list[psutil.Process]:
    """The training workers on the cluster."""
    return [p for p in ray.processes() if _command(p).startswith(WORKER)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def kill(processes: list[psutil.Process]) -> list[int]:
    """SIGKILL processes; returns the pids that were there to kill, so that a test can prove its fault."""
    killed = []
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed.append(process.pid)
    return killed


@dataclass
class TrainingRun:
    """A task instance of a running DAG run."""

    stack: Stack
    airflow: AirflowClient
    dag_id: str
    run_id: str
    task_id: str = "train"
    map_index: int = -1
    job_as_ray_shows_it: str = ""
    _experiment: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What most calls of the REST API take."""
        return (self.dag_id, self.run_id, self.task_id)

    def task(self) -> dict[str, Any]:
        """The task instance as Airflow sees it now."""
        return self.airflow.task_instance(*self.key, map_index=self.map_index)

    def xcom(self, key: str = "return_value") -> Any:
        """An XCom of the newest try."""
        return self.airflow.xcom(*self.key, key=key, map_index=self.map_index)

    def log(self, try_number: int = 1) -> str:
        """A try's log."""
        return self.airflow.log_text(*self.key, try_number=try_number, map_index=self.map_index)

    def records(self) -> ExperimentRecords | None:
        """The experiment's records, once the operator has said where they are."""
        if self._experiment is None:  # kept: Airflow deletes a task's XComs when a new try starts
            job = self.xcom(JOB_RECORD_KEY)
            self._experiment = job["experiment"] if job else None
        return records_at(self.stack.s3, self._experiment) if self._experiment else None

    def lineage(self) -> Lineage:
        """The lineage as the bucket tells it now."""
        records = self.records()
        assert records is not None
        return project(read_experiment(records))

    def weights(self) -> dict[str, Any]:
        """The state in the latest checkpoint of a training that succeeded."""
        return final_weights(self.stack.s3, self.xcom()["latest_checkpoint"]["uri"])

    def metrics_by_epoch(self) -> dict[int, dict[str, Any]]:
        """Metrics of every committed checkpoint by its epoch."""
        return {c.metrics["epoch"]: c.metrics for c in self.lineage().checkpoints if "epoch" in c.metrics}


def records_at(s3: S3Server, uri: str) -> ExperimentRecords:
    """Records of an experiment in the stack's bucket."""
    return ExperimentRecords(open_object_store(uri, client_factory=s3.client))


def final_weights(s3: S3Server, checkpoint_uri: str, *, file: str = "state.pt") -> dict[str, Any]:
    """The state saved in a checkpoint, loaded with torch."""
    import torch

    bucket, _, prefix = checkpoint_uri.removeprefix("s3://").partition("/")
    body = s3.client().get_object(Bucket=bucket, Key=f"{prefix}/{file}")["Body"].read()
    state: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True)
    return state


def is_bit_equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two saved states hold the same bits in every tensor of the model and the optimiser."""
    import torch

    def flat(value: Any, path: str = "") -> dict[str, Any]:
        if isinstance(value, dict):
            return {k: v for key, item in value.items() for k, v in flat(item, f"{path}/{key}").items()}
        if isinstance(value, list):
            return {k: v for i, item in enumerate(value) for k, v in flat(item, f"{path}/{i}").items()}
        return {path: value}

    one, two = flat(a), flat(b)
    return one.keys() == two.keys() and all(
        torch.equal(one[k], two[k]) if isinstance(one[k], torch.Tensor) else one[k] == two[k] for k in one
    )
