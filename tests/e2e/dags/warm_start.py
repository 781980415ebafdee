"""Warm starts that the examples don't show: Ray Train V1, a parent that is not there, and one of another framework."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider.operators.ray_train import RayTrainOperator

COMMON = {
    "storage_path": "s3://models/e2e",
    "working_dir": "training",
    "poll_interval_s": 1,
    "retries": 2,
    "retry_delay": timedelta(seconds=1),
    "train_loop": "counting:train_loop",
}

with DAG(
    "warm_start_v1",
    schedule=None,
    catchup=False,
    params={"parent": Param("", type="string")},
    render_template_as_native_obj=True,
):
    RayTrainOperator(
        task_id="train",
        train_loop_config={"epochs": 4},
        warm_start="{{ params.parent }}",
        train_version="v1",
        progress_metric="epoch",
        **COMMON,
    )

with DAG("warm_start_refused", schedule=None, catchup=False, params={"foreign": Param("", type="string")}):
    RayTrainOperator(task_id="deleted", warm_start="s3://models/base/deleted", **COMMON)
    RayTrainOperator(task_id="foreign", warm_start="{{ params.foreign }}", **COMMON)
    RayTrainOperator(task_id="event", warm_start={"source": {"rows": "{{ run_id }}"}}, **COMMON)
