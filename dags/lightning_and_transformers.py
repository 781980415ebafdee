"""Lightning and Hugging Face Transformers with Ray's own integrations: a retry restores as each library does by itself.

The cluster needs `lightning`, `transformers` and `accelerate`, in its image or by `runtime_env={"pip": [...]}`. Needs the
connections `ray_default` and `aws_default`, as `resilient_training` does.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider.operators.ray_train import RayTrainOperator

COMMON = {
    "storage_path": "s3://{{ var.value.get('training_bucket', 'models') }}/integrations",
    "working_dir": "training",
    "progress_metric": "epoch",
    "poll_interval_s": 2,
    "retry_delay": timedelta(seconds=1),
}

LENGTH = {"epochs": "{{ params.epochs }}", "epoch_seconds": "{{ params.epoch_seconds }}"}

with DAG(
    "lightning_and_transformers",
    schedule=None,
    catchup=False,
    params={
        "epochs": Param(3, type="integer", minimum=1),
        "epoch_seconds": Param(0.0, type="number", minimum=0, description="shortest time of an epoch"),
    },
    render_template_as_native_obj=True,
    tags=["ray", "example"],
    doc_md=__doc__,
):
    # A training loop; its rows come from Ray Data, by a factory that is called for each attempt.
    RayTrainOperator(
        task_id="lightning",
        train_loop="digits_lightning:train_loop",
        datasets="digits_lightning:datasets",
        train_loop_config=LENGTH | {"lr": 0.05},
        **COMMON,
    )
    # A factory that builds the trainer itself and takes the run config.
    RayTrainOperator(
        task_id="transformers",
        trainer="digits_transformers:make_trainer",
        train_loop_config=LENGTH | {"lr": 0.01},
        **COMMON,
    )
