"""Several tasks and runs in test mode: a DAG run stays the one it was, and a file's DAGs are found as Airflow finds them."""

from __future__ import annotations

import textwrap
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, task

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.testing.cluster import RayTrainCluster
from airflow_provider.testing.dag_files import load_dags
from airflow_provider.testing.outcomes import Succeeds, UserError

STORAGE = "s3://models/churn"
DATE = datetime(2026, 11, 29, tzinfo=timezone.utc)


def operator(**changes: Any) -> RayTrainOperator:
    known = {"task_id": "train", "storage_path": STORAGE, "train_loop": "a:b", "retries": 1}
    with DAG("churn", schedule=None, params={"epochs": 3}, render_template_as_native_obj=True):
        return RayTrainOperator(**{**known, **changes})


def test_a_cleared_run_does_not_become_a_later_one(ray_train_cluster: RayTrainCluster) -> None:
    """Its `run_after` stays: what a run after it trained is no parent of it."""
    train = operator(warm_start={"source": "previous_run", "missing": "fresh"})
    first, second = ray_train_cluster.run(train), ray_train_cluster.run(train)
    assert second.submissions[0].warm_started_from == first.return_value["latest_checkpoint"]["uri"]
    cleared = ray_train_cluster.run(train, run_id=first.run_id)
    assert cleared.submissions[0].spec.ref.rank == (2, 1)
    assert cleared.submissions[0].warm_started_from is None


def test_tasks_of_a_dag_run_share_its_conf_its_date_and_its_events(ray_train_cluster: RayTrainCluster) -> None:
    asset = Asset("labels")
    config = {"epochs": "{{ params.epochs }}", "day": "{{ ds }}", "at": "{{ dag_run.run_after | ts }}"}
    config["events"] = "{{ triggering_asset_events.values() | list | length }}"
    event = ray_train_cluster.run(operator(outlets=[asset])).asset_events
    first = ray_train_cluster.run(
        operator(train_loop_config=config), conf={"epochs": 7}, logical_date=DATE, triggered_by=event
    )
    second = ray_train_cluster.run(operator(train_loop_config=config, task_id="tune"), run_id=first.run_id)
    assert first.submissions[0].train_loop_config == second.submissions[0].train_loop_config
    assert second.submissions[0].train_loop_config is not None
    assert second.submissions[0].train_loop_config["epochs"] == 7
    assert second.submissions[0].train_loop_config["events"] == 1


def test_an_xcom_of_the_run_before_is_found_where_one_is_asked_for(ray_train_cluster: RayTrainCluster) -> None:
    with DAG("nightly", schedule=None) as dag:

        @task
        def count(ti: Any = None) -> Any:
            return (ti.xcom_pull("count", include_prior_dates=True) or 0) + 1

        count()
    runs = [ray_train_cluster.run(dag.get_task("count")) for _ in range(3)]
    assert [run.return_value for run in runs] == [1, 2, 3]


def dags(folder: Path, text: str) -> dict[str, DAG]:
    path = folder / "some_dags.py"
    path.write_text("from airflow.sdk import DAG, BaseOperator\n" + textwrap.dedent(text))
    return load_dags(path)


def test_a_dag_that_is_only_a_name_of_its_file_is_found(tmp_path: Path) -> None:
    """The classic style: tasks say `dag=dag`, and nothing enters it."""
    found = dags(tmp_path, "dag = DAG('classic', schedule=None)\nBaseOperator(task_id='t', dag=dag)\n")
    assert list(found) == ["classic"]
    assert found["classic"].task_ids == ["t"]


def test_dags_made_in_a_loop_are_found_and_two_of_one_id_are_an_error(tmp_path: Path) -> None:
    text = (
        "for n, name in enumerate({}):\n    with DAG(name, schedule=None):\n        BaseOperator(task_id=f't{{n}}')\n"
    )
    assert set(dags(tmp_path, text.format("('a', 'b')"))) == {"a", "b"}
    with pytest.raises(InvalidConfig, match="two DAGs with the id 'a'"):
        dags(tmp_path, text.format("('a', 'a')"))


def test_a_failing_training_without_retries_has_one_try(ray_train_cluster: RayTrainCluster) -> None:
    run = ray_train_cluster.run(operator(retries=0), outcomes=[UserError({"epoch": 1})])
    assert (run.state, len(run.tries)) == ("failed", 1)
    again = ray_train_cluster.run(operator(retries=0), run_id=run.run_id, outcomes=[Succeeds({"epoch": 2})])
    assert (again.state, again.submissions[0].spec.ref.rank) == ("success", (1, 2))
