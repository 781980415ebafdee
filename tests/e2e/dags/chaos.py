"""The training under attack: deferred, blocking, and with its workers on a node that has a `slot`, which the head has not."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider.core.spec import CheckpointConfig, ScalingConfig
from airflow_provider.operators.ray_train import RayTrainOperator

HEAD = ScalingConfig()
NODE = ScalingConfig(resources_per_worker={"CPU": 1, "slot": 1})

for dag_id, deferrable, scaling_config in (
    ("chaos_deferred", True, HEAD),
    ("chaos_blocking", False, HEAD),
    ("chaos_on_node", True, NODE),
):
    with DAG(
        dag_id,
        schedule=None,
        catchup=False,
        params={"epochs": Param(6, type="integer")},
        render_template_as_native_obj=True,
    ):
        RayTrainOperator(
            task_id="train",
            storage_path="s3://models/chaos",
            working_dir="training",
            train_loop="counting:train_loop",
            train_loop_config={"epochs": "{{ params.epochs }}", "epoch_seconds": 0.5},
            scaling_config=scaling_config,
            # So few that retention deletes first with the third commit, whose manifest is the one that faults strike.
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            progress_metric="epoch",
            poll_interval_s=1,
            # Short enough that a frozen machine is given up within a test; the driver's sign of life comes every 15 s.
            silent_driver_timeout_s=45,
            deferrable=deferrable,
            retries=4,
            retry_delay=timedelta(seconds=1),
        )
