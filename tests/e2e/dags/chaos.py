"""The training under attack, deferred and blocking."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider.operators.ray_train import RayTrainOperator

for dag_id, deferrable in (("chaos_deferred", True), ("chaos_blocking", False)):
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
            progress_metric="epoch",
            poll_interval_s=1,
            # Short enough that a frozen machine is given up within a test; the driver's sign of life comes every 15 s.
            silent_driver_timeout_s=45,
            deferrable=deferrable,
            retries=4,
            retry_delay=timedelta(seconds=1),
        )
