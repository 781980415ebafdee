"""One Ray cluster and one S3 server for all tests of the runtime; claims and jobs are made by hand, without Airflow.

Slow: each job costs Ray's start-up (14 s on two quiet cores). Faults are aimed at single processes and their firing is proven.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.stack.ray_cluster import RayCluster
from tests.stack.s3 import S3Server
from tests.support.job_package import Experiment
from tests.support.runtime_case import loop, new_experiment, processes


@pytest.fixture(scope="package")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="package")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[RayCluster]:
    """One Ray cluster."""
    with RayCluster(tmp_path_factory.mktemp("ray"), env=s3.env()) as cluster:
        yield cluster


@pytest.fixture
def experiment(request: pytest.FixtureRequest, s3: S3Server, ray_cluster: RayCluster) -> Iterator[Experiment]:
    """An experiment of its own. No job outlives its test."""
    yield new_experiment(request.node.name, s3, ray_cluster)
    for process in processes(ray_cluster, "airflow_provider.runtime.driver"):
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)


@pytest.fixture(scope="package")
def healthy(s3: S3Server, ray_cluster: RayCluster) -> Experiment:
    """An unharmed run: what every harmed one must equal."""
    experiment = new_experiment("healthy", s3, ray_cluster)
    job = experiment.start(loop(numpy=True), 1)
    assert experiment.wait(job)["status"] == "SUCCEEDED", experiment.log(job)
    return experiment
