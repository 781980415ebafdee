"""The training of the benchmarks as tasks: deferred, with a poll each second and with the default, and blocking a worker."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider.core.spec import CheckpointConfig, ScalingConfig
from airflow_provider.operators.ray_train import RayTrainOperator

# At the default of 10 s the end of the job's log tells of it first, one or two seconds after the death.
TASKS = (("stepping_deferred", True, 1.0), ("stepping_default", True, 10.0), ("stepping_blocking", False, 1.0))

for dag_id, deferrable, poll_interval_s in TASKS:
    with DAG(
        dag_id,
        schedule=None,
        catchup=False,
        params={
            "marks": Param("", type="string"),
            "steps": Param(10, type="integer"),
            "every": Param(1, type="integer"),
            "step_s": Param(0.5, type="number"),
            "num_workers": Param(2, type="integer"),
        },
        render_template_as_native_obj=True,
    ):
        RayTrainOperator(
            task_id="train",
            storage_path="s3://models/benchmarks",
            working_dir="training",
            train_loop="stepping:train_loop",
            train_loop_config={
                "marks": "{{ params.marks }}",
                "steps": "{{ params.steps }}",
                "every": "{{ params.every }}",
                "step_s": "{{ params.step_s }}",
            },
            scaling_config=ScalingConfig(num_workers="{{ params.num_workers }}"),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            progress_metric="step",
            poll_interval_s=poll_interval_s,
            deferrable=deferrable,
            retries=20,
            retry_delay=timedelta(seconds=1),
        )
