"""Train a small classifier so that it survives: kill a worker or the driver and watch the retry restore.

Needs the connections `ray_default` and `aws_default` (`make stack` has both) and a bucket named by the Airflow Variable or
environment variable `AIRFLOW_VAR_TRAINING_BUCKET`, `models` by default.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider.core.spec import CheckpointConfig, FailureConfig, ScalingConfig
from airflow_provider.operators.ray_train import RayTrainOperator

with DAG(
    "resilient_training",
    schedule=None,
    catchup=False,
    params={
        "epochs": Param(12, type="integer", minimum=1),
        "epoch_seconds": Param(1.0, type="number", minimum=0, description="shortest time of an epoch"),
    },
    render_template_as_native_obj=True,
    tags=["ray", "example"],
    doc_md=__doc__,
):
    RayTrainOperator(
        task_id="train",
        storage_path="s3://{{ var.value.get('training_bucket', 'models') }}/resilient",
        train_loop="digits:train_loop",
        train_loop_config={
            "epochs": "{{ params.epochs }}",
            "epoch_seconds": "{{ params.epoch_seconds }}",
            "lr": 0.05,
            "seed": 7,
        },
        working_dir="training",
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        failure_config=FailureConfig(max_failures=20),
        checkpoint_config=CheckpointConfig(num_to_keep=4, checkpoint_score_attribute="accuracy"),
        progress_metric="epoch",
        poll_interval_s=2,
        retries=3,
        retry_delay=timedelta(seconds=1),
    )
