"""What a mapped task gives: all its results as one lazy sequence of Airflow's."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.sensors.ray_train import RayTrainSensor
from airflow_provider.testing.cluster import RayTrainCluster

STORAGE = "s3://models/churn"


@pytest.fixture
def dag() -> DAG:
    with DAG("sweep", schedule=None) as dag:

        @task
        def choose(rate: float) -> dict[str, float]:
            return {"lr": rate}

        chosen: Any = choose.expand(rate=[0.1, 0.2])
        common: dict[str, Any] = {"storage_path": STORAGE, "train_loop": "a:b"}
        RayTrainOperator(task_id="train", train_loop_config={"tried": chosen}, **common)
        RayTrainOperator(task_id="tune", warm_start=chosen, **common)
        RayTrainSensor(task_id="wait", experiment=chosen)
    return dag


def run(cluster: RayTrainCluster, dag: DAG, task_id: str) -> Any:
    return cluster.run(dag.get_task(task_id), xcoms={"choose": [{"lr": 0.1}, {"lr": 0.2}]})


def test_it_is_a_list_in_the_config(ray_train_cluster: RayTrainCluster, dag: DAG) -> None:
    trained = run(ray_train_cluster, dag, "train")
    assert trained.submissions[0].train_loop_config == {"tried": [{"lr": 0.1}, {"lr": 0.2}]}


@pytest.mark.parametrize(("task_id", "change"), [("tune", "choose one"), ("wait", "map the sensor too")])
def test_where_one_is_needed_the_error_says_how(
    ray_train_cluster: RayTrainCluster, dag: DAG, task_id: str, change: str
) -> None:
    error = run(ray_train_cluster, dag, task_id).error
    assert isinstance(error, InvalidConfig)
    assert "a list of 2 values" in error.what
    assert change in error.change
