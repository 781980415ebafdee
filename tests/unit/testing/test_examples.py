"""The example DAGs in test mode: each parses, each of its trainings is submitted and restored as the file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_provider.assets.model import newest_model
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.testing.cluster import RayTrainCluster
from airflow_provider.testing.dag_files import load_dags
from airflow_provider.testing.outcomes import DriverLost, Succeeds, Unreachable

FOLDER = Path(__file__).resolve().parents[3] / "dags"
FILES = sorted(FOLDER.glob("*.py"))
DAGS: dict[str, DAG] = {dag_id: dag for file in FILES for dag_id, dag in load_dags(file).items()}
REPORT = {"epoch": 0, "accuracy": 0.5, "loss": 1.0}


def is_training(task: Any) -> bool:
    kind = task.operator_class if isinstance(task, MappedOperator) else type(task)
    return issubclass(kind, RayTrainOperator)


TRAININGS = [(dag_id, task.task_id) for dag_id, dag in DAGS.items() for task in dag.tasks if is_training(task)]


def test_every_example_is_here() -> None:
    assert len(DAGS) >= 11
    assert len(TRAININGS) >= 10
    assert {"quickstart", "existing_script", "spot_cluster", "replaced_nodes"} <= set(DAGS)


@pytest.mark.parametrize(("dag_id", "task_id"), TRAININGS, ids=[f"{d}.{t}" for d, t in TRAININGS])
def test_each_training_is_submitted_and_restored(ray_train_cluster: RayTrainCluster, dag_id: str, task_id: str) -> None:
    task = DAGS[dag_id].get_task(task_id)
    outcomes = [DriverLost(REPORT, {**REPORT, "epoch": 1}), Succeeds({**REPORT, "epoch": 2, "accuracy": 0.9})]
    how: dict[str, Any] = {"map_index": 1, "xcoms": {"learning_rates": [0.01, 0.2]}} if task.is_mapped else {}
    run = ray_train_cluster.run(task, outcomes=outcomes, **how)
    assert [one.state for one in run.tries] == ["up_for_retry", "success"], run.error
    first, second = run.submissions
    assert second.restored_checkpoint is not None
    assert second.spec.training == first.spec.training
    assert first.spec.experiment_uri.startswith("s3://models/")
    assert first.spec.training.progress_metric == "epoch"
    assert "{{" not in first.spec.model_dump_json()
    assert run.return_value["new_checkpoints"] == 3


def test_quickstart_has_20_lines() -> None:
    assert len((FOLDER / "quickstart.py").read_text().splitlines()) <= 20


def test_existing_script_runs_with_its_own_command_line(ray_train_cluster: RayTrainCluster) -> None:
    run = ray_train_cluster.run(DAGS["existing_script"].get_task("train"), conf={"epochs": 2})
    (job,) = run.submissions
    assert job.spec.training.command == "python train_digits.py --epochs 2 --epoch-seconds 0.0"
    assert "train_digits.py" in [Path(name).name for name in job.files]
    script = (FOLDER / "training" / "train_digits.py").read_text()
    assert [line.strip() for line in script.splitlines() if "run_config()" in line] == ["run_config=run_config(),"]


def test_spot_bears_preemptions_and_waits_for_nodes(ray_train_cluster: RayTrainCluster) -> None:
    from airflow_provider.core.failure import FailureKind
    from airflow_provider.testing.outcomes import FailsWith

    no_node = FailsWith(FailureKind.CAPACITY, reason="no spot node in 2 hours")
    run = ray_train_cluster.run(
        DAGS["spot_cluster"].get_task("train"),
        outcomes=[
            DriverLost(REPORT),
            no_node,
            no_node,
            Unreachable({**REPORT, "epoch": 1}),
        ],
    )
    assert [one.state for one in run.tries] == ["up_for_retry"] * 4 + ["success"]
    spec = run.submissions[0].spec
    assert (spec.training.scaling.num_workers, spec.timings.resource_timeout_s) == ((1, 2), 7200)
    assert (spec.training.failure.max_preemption_failures, spec.training.failure.max_failures) == (-1, 50)
    assert spec.deadline is not None
    assert run.submissions[0].request["entrypoint_resources"] == {"node:__internal_head__": 0.001}
    fixed = ray_train_cluster.run(DAGS["replaced_nodes"].get_task("train"))
    assert fixed.submissions[0].scaling.num_workers == 2


def test_the_sweep_from_its_rates_to_its_best(ray_train_cluster: RayTrainCluster) -> None:
    """A whole DAG: plain tasks run too, and mapped ones find their argument in what was returned before."""
    dag = DAGS["taskflow_sweep"]
    rates = ray_train_cluster.run(dag.get_task("learning_rates"))
    runs = [
        ray_train_cluster.run(
            dag.get_task("train"),
            run_id=rates.run_id,
            map_index=index,
            outcomes=[Succeeds({**REPORT, "accuracy": accuracy})],
        )
        for index, accuracy in enumerate([0.6, 0.9])
    ]
    configs = [run.submissions[0].train_loop_config for run in runs]
    assert [config and config["lr"] for config in configs] == [0.01, 0.2]
    assert runs[0].submissions[0].spec.experiment_uri != runs[1].submissions[0].spec.experiment_uri
    best = ray_train_cluster.run(dag.get_task("pick_best"), run_id=rates.run_id)
    assert best.return_value["uri"] == runs[1].return_value["best_checkpoint"]["uri"]


def test_nightly_begins_from_the_night_before(ray_train_cluster: RayTrainCluster) -> None:
    train = DAGS["nightly_retraining"].get_task("train")
    first, second = (ray_train_cluster.run(train) for _ in range(2))
    assert first.submissions[0].warm_started_from is None
    assert second.submissions[0].warm_started_from == first.return_value["latest_checkpoint"]["uri"]


def test_promotion_emits_only_what_is_good_enough(ray_train_cluster: RayTrainCluster) -> None:
    train = DAGS["train_digits"].get_task("train")
    poor = ray_train_cluster.run(train, outcomes=[Succeeds({**REPORT, "accuracy": 0.1})])
    good = ray_train_cluster.run(train, outcomes=[Succeeds({**REPORT, "accuracy": 0.8})])
    assert [event.asset for event in poor.asset_events] == ["digits"]
    promoted = next(event for event in good.asset_events if event.asset == "digits_promoted")
    assert promoted.extra["checkpoint"] == good.return_value["best_checkpoint"]["uri"]
    assert newest_model([_as_airflow_gives_it(promoted)]).metrics["accuracy"] == 0.8


def _as_airflow_gives_it(event: Any) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(timestamp=1, extra=event.extra)


def test_the_other_dag_sees_the_training(ray_train_cluster: RayTrainCluster) -> None:
    training = ray_train_cluster.run(
        DAGS["sensor_training"].get_task("train"),
        outcomes=[Succeeds(REPORT, {**REPORT, "epoch": 1, "accuracy": 0.7})],
    )
    evaluation = DAGS["sensor_evaluation"]
    conf = {"training_run_id": training.run_id}
    found = ray_train_cluster.run(evaluation.get_task("good_enough"), conf=conf)
    seen = ray_train_cluster.run(evaluation.get_task("evaluate"), conf=conf, run_id=found.run_id)
    assert seen.return_value["accuracy"] == 0.7
    assert seen.return_value["after_epochs"] == 2
