"""Two DAGs: one trains, the other evaluates the first checkpoint that is good enough, while the training goes on.

The evaluating DAG waits with `RayTrainSensor`, which reads the bucket only: it needs no connection to the cluster, and would work
from another Airflow too. Needs the connections `ray_default` and `aws_default` (`make stack` has both) and a bucket named by the
Airflow Variable or environment variable `AIRFLOW_VAR_TRAINING_BUCKET`, `models` by default.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, task

from airflow_provider.core.spec import CheckpointConfig, ScalingConfig
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.sensors.ray_train import RayTrainSensor

STORAGE_PATH = "s3://{{ var.value.get('training_bucket', 'models') }}/across_dags"

with DAG(
    "sensor_training",
    schedule=None,
    catchup=False,
    params={
        "epochs": Param(8, type="integer", minimum=1),
        "epoch_seconds": Param(1.0, type="number", minimum=0, description="shortest time of an epoch"),
    },
    render_template_as_native_obj=True,
    tags=["ray", "example"],
    doc_md=__doc__,
):
    RayTrainOperator(
        task_id="train",
        storage_path=STORAGE_PATH,
        train_loop="digits:train_loop",
        train_loop_config={
            "epochs": "{{ params.epochs }}",
            "epoch_seconds": "{{ params.epoch_seconds }}",
            "lr": 0.05,
            "seed": 7,
        },
        working_dir="training",
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
        checkpoint_config=CheckpointConfig(num_to_keep=4),
        progress_metric="epoch",
        poll_interval_s=2,
        retry_delay=timedelta(seconds=1),
    )
    # Beside the training, not after it: the other DAG waits by itself.
    TriggerDagRunOperator(
        task_id="start_evaluation",
        trigger_dag_id="sensor_evaluation",
        conf={"training_run_id": "{{ run_id }}"},
    )

with DAG(
    "sensor_evaluation",
    schedule=None,
    catchup=False,
    params={
        "training_run_id": Param("", type="string", description="run id of the training DAG"),
        "condition": Param("accuracy >= 0.5 and epoch >= 1", type="string"),
    },
    is_paused_upon_creation=False,
    tags=["ray", "example"],
    doc_md=__doc__,
):
    good_enough = RayTrainSensor(
        task_id="good_enough",
        storage_path=STORAGE_PATH,
        external_dag_id="sensor_training",
        external_run_id="{{ params.training_run_id }}",
        external_task_id="train",
        until="{{ params.condition }}",
        poke_interval=2,
        timeout=timedelta(hours=6),
    )

    @task
    def evaluate(found: dict[str, Any]) -> dict[str, Any]:
        """Stands for an evaluation: it gets the checkpoint's URI and metrics, and how far the training was."""
        checkpoint = found["checkpoint"]
        return {
            "model": checkpoint["uri"],
            "accuracy": checkpoint["metrics"]["accuracy"],
            "after_epochs": found["progress"]["epoch"] + 1,
            "training": found["state"],
        }

    evaluate(good_enough.output)
