"""The same training on Ray alone: a script posted to the Jobs API, as a person or a peer's operator would."""

from __future__ import annotations

import json
import shlex
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from airflow_provider.client.address import ClusterAddress
from airflow_provider.client.credentials import ClusterCredentials
from airflow_provider.client.jobs_client import SyncJobsClient
from airflow_provider.client.packages import package_directory
from airflow_provider.client.values import JobRequest
from airflow_provider.core.errors import RayTrainError
from benchmarks.measure import MeasurementFailed
from tests.stack.ray_cluster import RayCluster

TRAINING = Path(__file__).resolve().parent / "dags" / "training"
STORAGE = "s3://models/plain"


def open_client(ray: RayCluster) -> SyncJobsClient:
    """A client of the cluster's Jobs API, past any gate."""
    return SyncJobsClient(ClusterAddress.parse(ray.address), credentials=ClusterCredentials(token=ray.token))


@dataclass(frozen=True)
class PlainJobs:
    """Posts `plain.py` to one cluster."""

    ray: RayCluster

    def post(self, loop: Mapping[str, Any], *, name: str, num_workers: int, max_failures: int) -> float:
        """One job; when it was posted. `name` is the run directory, which a later job of the same name goes on in."""
        run = {"storage_path": STORAGE, "name": name, "num_workers": num_workers, "max_failures": max_failures}
        submission_id = f"plain-{uuid.uuid4().hex[:12]}"
        with open_client(self.ray) as client:
            package = package_directory(TRAINING)
            client.ensure_package(package)
            argument = shlex.quote(json.dumps({"run": run, "loop": dict(loop)}))
            request = JobRequest(
                submission_id=submission_id,
                entrypoint=f"python plain.py {argument}",
                runtime_env={"working_dir": package.uri, "env_vars": {"RAY_TRAIN_V2_ENABLED": "1"}},
            )
            at = time.time()
            client.submit(request)
        return at

    def newest_posted_at(self) -> float:
        """When Ray took the newest job."""
        with open_client(self.ray) as client:
            return max(job.start_time.timestamp() for job in client.list_jobs() if job.start_time is not None)

    @contextmanager
    def ending_all(self) -> Iterator[None]:
        """Whatever happens inside, no job of the cluster is left at the end."""
        try:
            yield
        finally:
            stop_all(self.ray)


def stop_all(ray: RayCluster, *, timeout_s: float = 60.0) -> None:
    """Stop every live job and wait until nothing of it is left, so that the next measurement has the machine for itself."""
    end = time.monotonic() + timeout_s
    with open_client(ray) as client:
        while time.monotonic() < end:
            live = [job for job in client.list_jobs() if not job.status.is_terminal]
            for job in live:
                with suppress(RayTrainError):  # it has just ended
                    client.stop(job.submission_id)
            if not live and not training_processes(ray):
                return
            time.sleep(0.5)
    raise MeasurementFailed(f"jobs are left on the cluster after {timeout_s:.0f} s")


def training_processes(ray: RayCluster) -> list[psutil.Process]:
    """Drivers, controllers and training workers of any job."""
    names = ("ray::RayTrainWorker", "ray::TrainController", "airflow_provider.runtime.driver", "plain.py")
    return [process for process in ray.processes() if any(name in command_of(process) for name in names)]


def command_of(process: psutil.Process) -> str:
    """Its command line, empty if it has gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
