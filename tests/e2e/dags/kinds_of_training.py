"""The ways to say what to train, both modes, and requests that must fail early and clearly."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, task

from airflow_provider.operators.ray_train import RayTrainOperator

COMMON = {
    "storage_path": "s3://models/e2e",
    "working_dir": "training",
    "poll_interval_s": 1,
    "retries": 2,
    "retry_delay": timedelta(seconds=1),
}
PARAMS = {
    "epochs": Param(3, type="integer"),
    "epoch_seconds": Param(0.0, type="number"),
    "break_in_epoch": Param(None, type=["integer", "null"]),
}
LOOP_CONFIG = {
    "epochs": "{{ params.epochs }}",
    "epoch_seconds": "{{ params.epoch_seconds }}",
    "break_in_epoch": "{{ params.break_in_epoch }}",
}


def dag(dag_id: str) -> DAG:
    """A DAG that only tests start."""
    return DAG(dag_id, schedule=None, catchup=False, params=PARAMS, render_template_as_native_obj=True)


with dag("train_deferred"):
    RayTrainOperator(
        task_id="train",
        train_loop="counting:train_loop",
        train_loop_config=LOOP_CONFIG,
        progress_metric="epoch",
        **COMMON,
    )

with dag("train_blocking"):
    RayTrainOperator(
        task_id="train", train_loop="counting:train_loop", train_loop_config=LOOP_CONFIG, deferrable=False, **COMMON
    )

with dag("train_factory"):
    RayTrainOperator(task_id="train", trainer="counting:make_trainer", train_loop_config=LOOP_CONFIG, **COMMON)

with dag("train_elastic"):
    # One to two workers, and rows that a Ray Data factory gives again on each attempt.
    RayTrainOperator(
        task_id="train",
        train_loop="counting:train_loop",
        train_loop_config=LOOP_CONFIG | {"has_rows": True},
        datasets="counting:datasets",
        scaling_config={"num_workers": (1, 2)},
        **COMMON,
    )

with dag("train_script"):
    RayTrainOperator(task_id="train", entrypoint="python counting_script.py --epochs {{ params.epochs }}", **COMMON)

with dag("train_function"):

    @task.ray_train(**COMMON)
    def train(epochs: int) -> None:
        """Written in the DAG file, with the modules of `working_dir` at hand."""
        import counting

        counting.train_loop({"epochs": epochs})

    train(epochs="{{ params.epochs }}")

with dag("train_v1"):
    RayTrainOperator(
        task_id="train", train_loop="counting:train_loop", train_loop_config=LOOP_CONFIG, train_version="v1", **COMMON
    )

with dag("train_mapped"):
    RayTrainOperator.partial(
        task_id="train", train_loop="counting:train_loop", scaling_config={"num_workers": 1}, **COMMON
    ).expand(train_loop_config=[{"epochs": 1}, {"epochs": 2}])

with dag("bad_requests"):
    RayTrainOperator(task_id="no_module", train_loop="no_such_module:train_loop", **COMMON)
    RayTrainOperator(task_id="no_function", train_loop="counting:no_such_function", **COMMON)
    RayTrainOperator(
        task_id="no_bucket", train_loop="counting:train_loop", **{**COMMON, "storage_path": "s3://no-such-bucket/e2e"}
    )
    RayTrainOperator(task_id="no_connection", train_loop="counting:train_loop", conn_id="no_such_connection", **COMMON)
    RayTrainOperator(task_id="bad_token", train_loop="counting:train_loop", conn_id="ray_bad_token", **COMMON)
    RayTrainOperator(task_id="not_ray", train_loop="counting:train_loop", conn_id="ray_not_ray", **COMMON)
    RayTrainOperator(task_id="no_permission", train_loop="counting:train_loop", aws_conn_id="aws_bad_key", **COMMON)
    RayTrainOperator(
        task_id="rendered_wrong",
        train_loop="counting:train_loop",
        scaling_config={"num_workers": "{{ dag.dag_id }}"},
        **COMMON,
    )
    RayTrainOperator(task_id="no_code", train_loop="counting:train_loop", **{**COMMON, "working_dir": "no_such_folder"})
