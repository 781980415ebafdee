"""One real stack for all end-to-end tests of the operator: Airflow, Ray and S3, started once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack.airflow_client import AirflowClient
from tests.stack.services import Stack
from tests.support.otlp_server import OtlpServer
from tests.support.training_run import TrainingRun

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "dags"


@pytest.fixture(scope="session")
def metrics() -> Iterator[OtlpServer]:
    """Where the stack's Airflow sends its metrics to."""
    with OtlpServer() as server:
        yield server


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, metrics: OtlpServer) -> Iterator[Stack]:
    """S3, Ray and Airflow with the example DAGs and the tests' own."""
    stack = Stack(
        tmp_path_factory.mktemp("stack"),
        dags=[EXAMPLES, HERE / "dags"],
        airflow_env={"AIRFLOW__CORE__TEST_CONNECTION": "Enabled", **metrics.airflow_env()},
        is_gated=True,
    )
    bad_token = json.loads(stack.ray.airflow_connection()) | {"password": "not-the-token"}
    not_ray = {"conn_type": "ray", "host": stack.airflow.url}
    bad_key = json.loads(stack.s3.airflow_connection()) | {"password": "wrong-secret-key"}
    for name, value in {"ray_bad_token": bad_token, "ray_not_ray": not_ray, "aws_bad_key": bad_key}.items():
        stack.airflow.add_connection(name, json.dumps(value))
    with stack:
        yield stack


@pytest.fixture(scope="session")
def airflow(stack: Stack) -> Iterator[AirflowClient]:
    """A logged-in user."""
    with stack.airflow.client() as client:
        yield client


@pytest.fixture(scope="session")
def unharmed(stack: Stack, airflow: AirflowClient) -> TrainingRun:
    """Six epochs without any fault: what the harmed runs are compared with."""
    run = TrainingRun(stack, airflow, "train_deferred", airflow.run_dag("train_deferred", conf={"epochs": 6}))
    assert airflow.wait_for_task(*run.key, timeout_s=240)["state"] == "success", run.log()[-4000:]
    # Read now: another test replaces the cluster, which then forgets the job.
    run.job_as_ray_shows_it = stack.ray.get(f"/api/jobs/{run.xcom()['submission_id']}").decode()
    return run


@pytest.fixture
def start(stack: Stack, airflow: AirflowClient) -> Callable[..., TrainingRun]:
    """Start a DAG run and give its task instance to watch."""

    def start(dag_id: str, *, task_id: str = "train", map_index: int = -1, **conf: Any) -> TrainingRun:
        return TrainingRun(stack, airflow, dag_id, airflow.run_dag(dag_id, conf=conf), task_id, map_index)

    return start
