"""Sensors of every kind in one DAG run, on experiments that a test names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider.sensors.ray_train import RayTrainSensor

FINISHED, RUNNING, FAILED = "{{ params.finished }}", "{{ params.running }}", "{{ params.failed }}"
NAMES = ("finished", "running", "failed", "dag_id", "run_id", "nowhere")


def sensor(task_id: str, experiment: Any = FINISHED, **options: Any) -> RayTrainSensor:
    """One sensor; its retries show which ends Airflow tries again."""
    known: dict[str, Any] = {
        "poke_interval": 0.5,
        "timeout": 240,
        "retries": 2,
        "retry_delay": timedelta(seconds=1),
    }
    return RayTrainSensor(task_id=task_id, experiment=experiment, **{**known, **options})


with DAG("sensors", schedule=None, catchup=False, params={name: Param("", type="string") for name in NAMES}):

    @task
    def upstream(finished: str) -> dict[str, str]:
        """What a training returns, or at least what of it matters here."""
        return {"experiment": finished, "state": "success"}

    # Ends that are there
    sensor("end", upstream(FINISHED))
    sensor("blocking", deferrable=False, until="accuracy > 0.1 and epoch >= 1")
    sensor(
        "other_dag",
        None,
        storage_path="s3://models/across_dags",
        external_dag_id="{{ params.dag_id }}",
        external_run_id="{{ params.run_id }}",
        external_task_id="train",
    )
    RayTrainSensor.partial(task_id="mapped", poke_interval=0.5, timeout=240).expand_kwargs(
        [
            {"experiment": FINISHED, "until": "epoch == 2"},
            {"experiment": FINISHED, "until": "plateau(epoch, patience=1, mode=min)"},
            {"experiment": FAILED, "until": "epoch >= 1"},
        ]
    )

    # Ends that come while they wait
    sensor("next_checkpoint", RUNNING, until="checkpoint")
    sensor("next_end", RUNNING, since="now")
    sensor("next_blocking", RUNNING, deferrable=False, until="checkpoint", timeout=240)
    sensor("next_rescheduled", RUNNING, deferrable=False, mode="reschedule", until="checkpoint", poke_interval=2)

    # Ends that are none
    sensor("training_failed", FAILED)
    sensor("skipped", FAILED, soft_fail=True)
    sensor("missing", "{{ params.nowhere }}", missing="fail")
    sensor("never_came", "{{ params.nowhere }}", timeout=3)
    sensor("timed_out", RUNNING, until="accuracy > 2", timeout=3)
    sensor("not_met", until="accuracy > 2")
    sensor("no_metric", until="acuracy > 0.1")
    sensor("rendered_wrong", until="{{ 'accuracy >' }}")
    sensor("refused", aws_conn_id="aws_bad_key")
