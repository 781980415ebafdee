"""A training publishes its model as an asset; an evaluation starts by itself when a better model is there.

`train_digits` emits an event of `digits` for each successful training, and one of `digits_promoted` only for a model that is
good enough and better than the last promoted one. `evaluate_digits` runs on the latter: it reads from the event which
checkpoint to look at. Needs the connections `ray_default` and `aws_default`, as `resilient_training` does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, Param, task

from airflow_provider.assets.model import GatedAsset, newest_model
from airflow_provider.core.spec import CheckpointConfig
from airflow_provider.operators.ray_train import RayTrainOperator

# One asset per model, with a name that stays; which checkpoint it is about stands in each event.
DIGITS = Asset("digits")
PROMOTED = Asset("digits_promoted")

with DAG(
    "train_digits",
    schedule=None,
    catchup=False,
    max_active_runs=1,  # two runs that end in the same moment could both be "better than the last"
    params={"epochs": Param(3, type="integer", minimum=1)},
    render_template_as_native_obj=True,
    tags=["ray", "example"],
    doc_md=__doc__,
):
    RayTrainOperator(
        task_id="train",
        storage_path="s3://{{ var.value.get('training_bucket', 'models') }}/digits",
        train_loop="digits:train_loop",
        train_loop_config={"epochs": "{{ params.epochs }}", "lr": 0.05, "seed": 7},
        working_dir="training",
        # The best checkpoint by this metric is the one that is published.
        checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
        progress_metric="epoch",
        outlets=[
            DIGITS,
            GatedAsset(PROMOTED, metric="accuracy", mode="max", threshold=0.2, better_than_last=True),
        ],
        poll_interval_s=2,
        retry_delay=timedelta(seconds=1),
    )


@task
def evaluate(triggering_asset_events: Any = None) -> dict[str, Any]:
    """Look at the promoted checkpoint. What it returns can be another training's `warm_start`: it names a `checkpoint`."""
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    model = newest_model(triggering_asset_events[PROMOTED])
    bucket, folder = S3Hook.parse_s3_url(model.checkpoint)
    files = S3Hook("aws_default").get_file_metadata(f"{folder}/", bucket)
    sizes = {file["Key"].removeprefix(f"{folder}/"): file["Size"] for file in files}
    print(f"{model.checkpoint}: accuracy {model.metrics['accuracy']:.4f} after epoch {model.epoch}, files {sizes}")  # noqa: T201 - its log
    return {"checkpoint": model.checkpoint, "accuracy": model.metrics["accuracy"], "files": sizes}


with DAG("evaluate_digits", schedule=[PROMOTED], catchup=False, tags=["ray", "example"], doc_md=__doc__):
    evaluate()
