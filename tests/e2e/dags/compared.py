"""Trainings that don't end well, each in its own way: what the test mode leaves of them is compared with what a cluster leaves."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider.operators.ray_train import RayTrainOperator

COMMON = {
    "storage_path": "s3://models/compared",
    "working_dir": "training",
    "scaling_config": {"num_workers": 1, "resources_per_worker": {"CPU": 0.5}},
    "progress_metric": "epoch",
    "poll_interval_s": 1,
    "retries": 1,
    "retry_delay": timedelta(seconds=1),
}
IDLE = {"train_loop": "waiting:train_loop", "train_loop_config": {"gate": "/nowhere"}, **COMMON}

with DAG("compared", schedule=None, catchup=False):
    RayTrainOperator(
        task_id="user_error",
        train_loop="counting:train_loop",
        train_loop_config={"epochs": 3, "break_in_epoch": 1},
        **COMMON,
    )
    RayTrainOperator(
        task_id="lost",
        train_loop="counting:train_loop",
        train_loop_config={"epochs": 4, "epoch_seconds": 4},
        **COMMON,
    )
    RayTrainOperator(task_id="stalled", stall_timeout_s=15, **(IDLE | {"retries": 0}))
    RayTrainOperator(task_id="deadline", timeout_s=90, **IDLE)
