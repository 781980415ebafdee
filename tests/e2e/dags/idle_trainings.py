"""Trainings that idle until their test opens a gate: for all that may happen to a task meanwhile."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, Param

from airflow_provider.operators.ray_train import RayTrainOperator

COMMON = {
    "storage_path": "s3://models/idle",
    "working_dir": "training",
    "train_loop": "waiting:train_loop",
    "train_loop_config": {"gate": "{{ params.gate }}"},
    "scaling_config": {"num_workers": 1},
    "progress_metric": "epoch",
    "poll_interval_s": 1,
    "retry_delay": timedelta(seconds=1),
}
EDITED = Path(os.environ.get("AIRFLOW_HOME", ".")) / "retries_of_idle_edited"
"""A test edits the DAG by writing this file."""


def dag(dag_id: str) -> DAG:
    """A DAG that only tests start."""
    return DAG(dag_id, schedule=None, catchup=False, params={"gate": Param("/nowhere", type="string")})


with dag("idle_deferred"):
    RayTrainOperator(task_id="train", **COMMON)

with dag("idle_blocking"):
    RayTrainOperator(task_id="train", deferrable=False, **COMMON)
    EmptyOperator(task_id="neighbour")

with dag("idle_pair"):
    RayTrainOperator(task_id="deferred", **COMMON)
    RayTrainOperator(task_id="blocking", deferrable=False, **COMMON)

with dag("idle_mapped"):
    UNMAPPED = {name: value for name, value in COMMON.items() if name != "train_loop_config"}
    RayTrainOperator.partial(task_id="train", **UNMAPPED).expand(train_loop_config=[COMMON["train_loop_config"]] * 2)

# Has a schedule, since a backfill needs one; the time for it is over, so that only tests start it.
with DAG(
    "idle_daily",
    schedule="@daily",
    start_date=datetime(2000, 1, 1, tzinfo=timezone.utc),
    end_date=datetime(2000, 1, 2, tzinfo=timezone.utc),
    catchup=False,
    params={"gate": Param("/nowhere", type="string")},
):
    RayTrainOperator(task_id="train", **COMMON)

with dag("idle_overdue"):
    RayTrainOperator(task_id="deferred", execution_timeout=timedelta(seconds=45), **COMMON)
    RayTrainOperator(task_id="blocking", execution_timeout=timedelta(seconds=45), deferrable=False, **COMMON)

with dag("idle_deadline"):
    RayTrainOperator(task_id="train", timeout_s=75, **COMMON)

with dag("idle_once"):
    RayTrainOperator(task_id="train", retries=0, **COMMON)

with dag("idle_patient"):
    RayTrainOperator(task_id="train", deferrable=False, **{**COMMON, "retry_delay": timedelta(hours=1)})

with dag("idle_edited"):
    RayTrainOperator(task_id="train", retries=int(EDITED.read_text()) if EDITED.exists() else 3, **COMMON)

with dag("idle_outlet"):
    RayTrainOperator(task_id="train", outlets=[Asset(name="idle_model", uri="s3://models/idle_model")], **COMMON)
