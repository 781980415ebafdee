"""A training written as a function of the DAG file, mapped over another task's output, on a real Airflow, Ray and S3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.test_operator import LIMIT_S, wait_for_commits
from tests.stack.airflow_client import AirflowClient
from tests.stack.services import Stack
from tests.support.training_run import TrainingRun, driver_processes, kill

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]
DAG_ID = "taskflow_sweep"
RATES = [0.01, 0.2]
EPOCHS = 6


@pytest.fixture(scope="module")
def sweep(stack: Stack, airflow: AirflowClient) -> list[TrainingRun]:
    """Both trainings of one run, whose drivers were killed once in the middle."""
    run_id = airflow.run_dag(DAG_ID, conf={"epochs": EPOCHS, "epoch_seconds": 1})
    runs = [TrainingRun(stack, airflow, DAG_ID, run_id, "train", index) for index in range(len(RATES))]
    airflow.wait_for_task(DAG_ID, run_id, "learning_rates", timeout_s=LIMIT_S)
    for run in runs:
        wait_for_commits(run, 2)
    assert kill(driver_processes(stack.ray)), "the fault did not fire"
    return runs


@dataclass(frozen=True)
class Ended:
    """One training as it was when the whole DAG run had ended, before any test cleared it."""

    run: TrainingRun
    task: dict[str, Any]
    result: Any
    lineage: Any


@pytest.fixture(scope="module")
def ended(sweep: list[TrainingRun], airflow: AirflowClient) -> list[Ended]:
    """Both trainings at their end."""
    assert airflow.wait_for_dag_run(DAG_ID, sweep[0].run_id, timeout_s=LIMIT_S) == "success"
    return [Ended(run, run.task(), run.xcom(), run.lineage()) for run in sweep]


def owners_and_claims(run: TrainingRun) -> tuple[Any, Any]:
    """What changes in an experiment when a try touches it."""
    return run.lineage().tries, run.lineage().attempts


def test_each_index_trains_with_its_argument_and_its_retry_restores(ended: list[Ended]) -> None:
    for one, rate in zip(ended, RATES, strict=True):
        task, result, lineage = one.task, one.result, one.lineage
        assert (task["state"], task["try_number"], task["max_tries"]) == ("success", 2, 3)
        assert [a.state for a in lineage.attempts] == ["failed", "success"]
        assert lineage.attempts[1].restored_from is not None
        assert result["restore_proven"] == "yes"
        epochs = [c.metrics["epoch"] for c in lineage.checkpoints if c.state != "uncommitted"]
        assert epochs == list(range(EPOCHS)), "none was trained twice"
        assert {c.metrics["lr"] for c in lineage.checkpoints if "lr" in c.metrics} == {rate}
    assert ended[0].result["experiment"] != ended[1].result["experiment"]


def test_the_next_task_compares_what_the_trainings_returned(ended: list[Ended], airflow: AirflowClient) -> None:
    best = airflow.xcom(DAG_ID, ended[0].run.run_id, "pick_best")
    every = [one.result["best_checkpoint"] for one in ended]
    assert best["accuracy"] == max(found["metrics"]["accuracy"] for found in every)
    assert best["uri"] in [found["uri"] for found in every]


def test_clearing_one_index_trains_it_again_and_touches_no_other(ended: list[Ended], airflow: AirflowClient) -> None:
    touched, untouched = (one.run for one in ended)
    before = owners_and_claims(untouched)
    body = {"dry_run": False, "dag_run_id": touched.run_id, "only_failed": False, "task_ids": [["train", 0]]}
    cleared = airflow.request("POST", f"/dags/{DAG_ID}/clearTaskInstances", json=body)["task_instances"]
    assert [one["map_index"] for one in cleared] == [0]
    again = airflow.wait_for_task(*touched.key, map_index=0, try_number=3, timeout_s=LIMIT_S)
    assert again["state"] == "success"
    assert [str(a.ref) for a in touched.lineage().attempts] == ["g1/a1", "g1/a2", "g2/a1"], "fresh after a success"
    assert touched.xcom()["new_checkpoints"] == EPOCHS
    assert owners_and_claims(untouched) == before
