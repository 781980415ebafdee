"""A training script that exists already, made resilient: it asks for its run config, and nothing else of it changes.

`training/train_digits.py` was `python train_digits.py --epochs 5`, with a run config of its own. Now a retry restores it, a zombie
of it can't overwrite what came after, and its checkpoints are in the lineage. Its command line stays what it was; the operator adds
nothing to it. Needs the connections `ray_default` and `aws_default`, as `resilient_training` does.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider.core.spec import CheckpointConfig, FailureConfig
from airflow_provider.operators.ray_train import RayTrainOperator

with DAG(
    "existing_script",
    schedule=None,
    catchup=False,
    params={
        "epochs": Param(5, type="integer", minimum=1),
        "epoch_seconds": Param(0.0, type="number", minimum=0, description="shortest time of an epoch"),
    },
    tags=["ray", "example"],
    doc_md=__doc__,
):
    RayTrainOperator(
        task_id="train",
        storage_path="s3://{{ var.value.get('training_bucket', 'models') }}/existing_script",
        # A shell command on the cluster, started in the working_dir. Only put into it what may be part of a command: these two are
        # numbers by their Params.
        entrypoint="python train_digits.py --epochs {{ params.epochs }} --epoch-seconds {{ params.epoch_seconds }}",
        working_dir="training",
        # How many workers train is the script's own affair. What follows reaches it by its run config.
        failure_config=FailureConfig(max_failures=20),
        checkpoint_config=CheckpointConfig(num_to_keep=3),
        progress_metric="epoch",
        poll_interval_s=2,
        retries=3,
        retry_delay=timedelta(seconds=1),
    )
