"""Retrain every night on the weights of the night before, and promote the model only if it is better than the last promoted.

A night that failed, was cleared or lost its XComs is no hole: what it committed lies in the bucket, and the next one begins
from there; where it committed nothing, from the night before it. The first night of all begins from scratch.

Each night emits an event of the asset `nightly_digits`, a better one also of `nightly_digits_promoted`: schedule on that
what serves or evaluates the model, as `evaluate_on_asset.py` does.

Needs the connections `ray_default` and `aws_default` (`make stack` has both) and a bucket named by the Airflow Variable or
environment variable `AIRFLOW_VAR_TRAINING_BUCKET`, `models` by default.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, Param

from airflow_provider.assets.model import GatedAsset
from airflow_provider.core.spec import CheckpointConfig, ScalingConfig
from airflow_provider.core.warm_start import WarmStart
from airflow_provider.operators.ray_train import RayTrainOperator

NIGHTLY, PROMOTED = Asset("nightly_digits"), Asset("nightly_digits_promoted")

with DAG(
    "nightly_retraining",
    schedule="0 3 * * *",
    catchup=False,
    max_active_runs=1,  # a night waits for the one that it begins from
    params={
        "epochs": Param(3, type="integer", minimum=1),
        "epoch_seconds": Param(1.0, type="number", minimum=0, description="shortest time of an epoch"),
    },
    render_template_as_native_obj=True,
    tags=["ray", "example"],
    doc_md=__doc__,
):
    RayTrainOperator(
        task_id="train",
        storage_path="s3://{{ var.value.get('training_bucket', 'models') }}/nightly",
        train_loop="nightly:train_loop",
        train_loop_config={
            "run": "{{ run_id }}",
            "epochs": "{{ params.epochs }}",
            "epoch_seconds": "{{ params.epoch_seconds }}",
            "lr": 0.05,
            "seed": 7,
        },
        warm_start=WarmStart(source="previous_run", missing="fresh"),
        working_dir="training",
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
        checkpoint_config=CheckpointConfig(num_to_keep=1),
        progress_metric="epoch",
        inlets=[PROMOTED],  # Airflow keeps the last promoted model's state for an asset that a DAG refers to
        outlets=[NIGHTLY, GatedAsset(PROMOTED, metric="accuracy", mode="max", better_than_last=True)],
        poll_interval_s=2,
        retries=3,
        retry_delay=timedelta(seconds=1),
    )
