"""Waits of an Airflow that knows the bucket only: each begun by a worker, and once more started straight from the trigger."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider.sensors.ray_train import RayTrainSensor

TRAINED = {
    "storage_path": "s3://models/churn",
    "external_dag_id": "train_churn",  # a DAG that this Airflow has never seen
    "external_run_id": "{{ params.run_id }}",
    "external_task_id": "train",
}
RUNNING, FAILED = {"experiment": "{{ params.running }}"}, {"experiment": "{{ params.failed }}"}
NOWHERE = {"experiment": "s3://models/across_dags/nobody"}
WAITS: dict[str, dict[str, Any]] = {
    "end": TRAINED,
    "metric": TRAINED | {"until": "epoch >= {{ params.epoch }} and loss < 100"},
    "failed": FAILED,
    "skipped": FAILED | {"soft_fail": True},
    "missing": NOWHERE | {"missing": "fail"},
    "never_came": NOWHERE | {"timeout": 3},
    "timed_out": RUNNING | {"until": "epoch >= 9", "timeout": 3},
    "not_met": TRAINED | {"until": "epoch > 1000"},
    "no_metric": TRAINED | {"until": "acuracy > 0.1"},
    "next": RUNNING | {"until": "epoch >= 8"},
}

with DAG(
    "waits",
    schedule=None,
    catchup=False,
    params={name: Param("", type="string") for name in ("run_id", "running", "failed")} | {"epoch": 3},
):
    for name, options in WAITS.items():
        for way, starts_in_trigger in {"worker": False, "trigger": True}.items():
            known = {"poke_interval": 0.5, "timeout": 300, "retries": 2, "retry_delay": timedelta(seconds=1)}
            sensor = RayTrainSensor(
                task_id=f"{name}_by_{way}", start_from_trigger=starts_in_trigger, **{**known, **options}
            )
            if name == "end":

                @task(task_id=f"use_{way}")
                def use(found: dict[str, Any]) -> str:
                    """What a next task does with a result."""
                    return str(found["latest_checkpoint"]["uri"])

                use(sensor.output)
