"""A sensor of a training whose task ended for good, where the attempt's own records don't say so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.sensors.errors import TrainingFailed, WaitTimedOut
from airflow_provider.sensors.ray_train import RayTrainSensor
from airflow_provider.testing.cluster import RayTrainCluster
from airflow_provider.testing.outcomes import NeverEnds, Outcome, Unreachable

STORAGE = "s3://models/churn"


def watched(cluster: RayTrainCluster, *outcomes: Outcome, **changes: Any) -> Any:
    """What a sensor says of a training that was run before."""
    with DAG("churn", schedule=None) as dag:
        RayTrainOperator(task_id="train", storage_path=STORAGE, train_loop="a:b", **changes)
        RayTrainSensor(task_id="wait", storage_path=STORAGE, external_task_id="train", timeout=timedelta(days=3))
    trained = cluster.run(dag.get_task("train"), outcomes=outcomes)
    assert trained.state == "failed"
    return cluster.run(dag.get_task("wait"), run_id=trained.run_id).error


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_task_that_failed_before_its_first_attempt(ray_train_cluster: RayTrainCluster, deferrable: bool) -> None:
    error = watched(ray_train_cluster, warm_start="s3://models/none/here", deferrable=deferrable)
    assert isinstance(error, TrainingFailed)
    assert "There is no checkpoint to warm start from" in str(error)


def test_a_deadline(ray_train_cluster: RayTrainCluster) -> None:
    error = watched(ray_train_cluster, NeverEnds({"epoch": 1}), timeout_s=3600.0)
    assert isinstance(error, TrainingFailed)
    assert error.failure.kind.value == "timeout"


def test_behind_a_cluster_that_is_away_the_training_goes_on(ray_train_cluster: RayTrainCluster) -> None:
    error = watched(ray_train_cluster, Unreachable({"epoch": 1}, then=NeverEnds()), retries=0)
    assert isinstance(error, WaitTimedOut)
