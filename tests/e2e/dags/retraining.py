"""Many trainings of one DAG: missed and overlapping runs, task groups, and a training that another one's asset event starts."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG, Asset, Param, TaskGroup, task_group

from airflow_provider.operators.ray_train import RayTrainOperator

COMMON = {
    "storage_path": "s3://models/retraining",
    "working_dir": "training",
    "poll_interval_s": 1,
    "retries": 2,
    "retry_delay": timedelta(seconds=1),
}
COUNTING = {
    "train_loop": "counting:train_loop",
    "scaling_config": {"num_workers": 1},
    "progress_metric": "epoch",
    "max_active_tis_per_dag": 1,  # Ray's start is the test's whole cost
    **COMMON,
}
GATE = Path(os.environ.get("AIRFLOW_HOME", ".")) / "catch_up_gate"
"""The runs that catch up have no conf: all of them wait for this file."""
FIRST, LAST = datetime(2026, 1, 1, tzinfo=timezone.utc), datetime(2026, 1, 3, tzinfo=timezone.utc)
RETRAINED = Asset("retrained")

with DAG("catch_up", schedule="@daily", start_date=FIRST, end_date=LAST, catchup=True, max_active_runs=5):
    RayTrainOperator(task_id="train", entrypoint=f"python waiting_script.py {GATE}", **COMMON)

with DAG("asked_to_share", schedule=None, catchup=False, params={"name": Param("", type="string")}):
    RayTrainOperator(task_id="train", experiment_name="{{ params.name }}", **COUNTING)

with DAG("groups", schedule=None, catchup=False):

    @task_group
    def one_model(epochs: int) -> None:
        """Mapped as a whole: its index is that of the group."""
        RayTrainOperator(task_id="train", train_loop_config={"epochs": epochs}, **COUNTING)

    with TaskGroup("sweep"):
        RayTrainOperator.partial(task_id="train", **COUNTING).expand(train_loop_config=[{"epochs": 1}, {"epochs": 2}])
    one_model.expand(epochs=[1, 2])

with DAG("asset_parent", schedule=None, catchup=False):
    RayTrainOperator(task_id="train", train_loop_config={"epochs": 2}, outlets=[RETRAINED], **COUNTING)

with DAG("asset_child", schedule=[RETRAINED], catchup=False, render_template_as_native_obj=True):
    RayTrainOperator(
        task_id="train",
        train_loop_config={"epochs": 3},
        warm_start="{{ (triggering_asset_events.values() | first | last).extra }}",
        **COUNTING,
    )
