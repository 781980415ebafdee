"""Warm starts that the examples don't show: Ray Train V1, a factory, a script, and parents that can't be one."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, Param

from airflow_provider.assets.model import GatedAsset
from airflow_provider.operators.ray_train import RayTrainOperator

COMMON = {
    "storage_path": "s3://models/e2e",
    "working_dir": "training",
    "poll_interval_s": 1,
    "retries": 2,
    "retry_delay": timedelta(seconds=1),
}
LOOP = {"train_loop": "counting:train_loop", **COMMON}
COUNTED = Asset("counted")

with DAG(
    "warm_start_v1",
    schedule=None,
    catchup=False,
    params={"parent": Param("", type="string")},
    render_template_as_native_obj=True,
):
    RayTrainOperator(
        task_id="train",
        train_loop_config={"epochs": 4},
        warm_start="{{ params.parent }}",
        train_version="v1",
        progress_metric="epoch",
        **LOOP,
    )

with DAG("warm_start_kinds", schedule=None, catchup=False):
    # Each index gets a verdict of its own; a training's own factory and a script go on from the better model.
    sweep = RayTrainOperator.partial(
        task_id="sweep", outlets=[GatedAsset(COUNTED, metric="epoch", mode="max", threshold=1)], **LOOP
    ).expand(train_loop_config=[{"epochs": 1}, {"epochs": 3}])
    PARENT = "{{ ti.xcom_pull('sweep', map_indexes=1)['latest_checkpoint']['uri'] }}"
    factory = RayTrainOperator(
        task_id="factory",
        trainer="counting:make_trainer",
        train_loop_config={"epochs": 5},
        warm_start=PARENT,
        **COMMON,
    )
    script = RayTrainOperator(
        task_id="script", entrypoint="python counting_script.py --epochs 4", warm_start=PARENT, **COMMON
    )
    sweep >> [factory, script]

with DAG("warm_start_refused", schedule=None, catchup=False, params={"foreign": Param("", type="string")}):
    RayTrainOperator(task_id="deleted", warm_start="s3://models/base/deleted", **LOOP)
    RayTrainOperator(task_id="foreign", warm_start="{{ params.foreign }}", **LOOP)
    RayTrainOperator(task_id="event", warm_start={"source": {"rows": "{{ run_id }}"}}, **LOOP)
