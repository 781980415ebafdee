"""The shortest training: a Ray Train loop beside the DAG file, a bucket, and retries that restore. See `training/digits.py`."""

from airflow.sdk import DAG

from airflow_provider.core.spec import ScalingConfig
from airflow_provider.operators.ray_train import RayTrainOperator

with DAG("quickstart", schedule=None, tags=["ray", "example"], doc_md=__doc__):
    RayTrainOperator(
        task_id="train",
        storage_path="s3://{{ var.value.get('training_bucket', 'models') }}/quickstart",
        train_loop="digits:train_loop",
        train_loop_config={"epochs": 3, "lr": 0.05, "seed": 7},
        working_dir="training",
        scaling_config=ScalingConfig(num_workers=1),
        progress_metric="epoch",
    )
