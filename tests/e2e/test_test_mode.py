"""The test mode for DAG authors is held to a real cluster: trainings that don't end well leave the same on both, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider.testing.cluster import RayTrainCluster
from airflow_provider.testing.dag_files import load_dags
from airflow_provider.testing.outcomes import DriverLost, NeverEnds, Outcome, Succeeds, UserError
from tests.e2e.test_examples import filled, records_of, shape
from tests.e2e.test_operator import wait_for_commits, wait_for_end
from tests.stack.airflow_client import AirflowClient
from tests.stack.ray_cluster import RayCluster
from tests.stack.services import Stack
from tests.support.training_run import TrainingRun, driver_processes, kill

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
DAG_FILE = Path(__file__).parent / "dags" / "compared.py"
TASKS = ("user_error", "lost", "stalled", "deadline")


@pytest.fixture(scope="module")
def real(stack: Stack, airflow: AirflowClient) -> dict[str, TrainingRun]:
    """All four on the cluster at once; of one the driver dies with its supervisor, as with their node, after two commits."""
    run_id = airflow.run_dag("compared")
    runs = {task_id: TrainingRun(stack, airflow, "compared", run_id, task_id) for task_id in TASKS}
    wait_for_commits(runs["lost"], 2)
    job = runs["lost"].xcom("ray_train_job")["submission_id"]
    assert kill(supervisors(stack.ray, job)), "the fault did not fire"
    for run in runs.values():
        wait_for_end(run)
    return runs


def supervisors(ray: RayCluster, job: str) -> list[psutil.Process]:
    """The job's actor in Ray, first of all, and its driver."""
    drivers = [p for p in driver_processes(ray) if job in str(p.environ())]
    actors = {parent for p in drivers for parent in p.parents() if "JobSupervisor" in " ".join(parent.cmdline())}
    assert actors, [p.cmdline() for p in drivers]
    return [*actors, *drivers]


GAPS: dict[str, set[str]] = {
    "alive.json": {"num_restarts", "train_run_id"},
    "collected.json": {"job_message"},
    "outcome.json": {"num_restarts"},
    "restored.json": {"uncommitted"},
    "000001.json": {"restarts"},
}
"""Fields that only a driver on a cluster can fill, by the record's name: Ray's own words, restarts within a job, torn uploads."""
LAGS: dict[str, set[str]] = {"alive.json": {"last_checkpoint", "last_commit_at", "last_metrics", "num_commits"}}
"""Fields that a driver writes every so often: what its last sign of life has when it ends so is a matter of the moment."""


def xcoms_of(run: TrainingRun) -> dict[str, Any]:
    """All XComs of the last try but links, which Airflow writes after it."""
    path = f"/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{run.task_id}/xcomEntries"
    keys = [one["key"] for one in run.airflow.request("GET", path)["xcom_entries"]]
    return {key: run.xcom(key) for key in keys if not key.startswith("_link_")}


def outcomes_of(task_id: str, run: TrainingRun) -> list[Outcome]:
    """What a DAG author would write for what the cluster saw, with the metrics that were reported there."""
    commits: dict[str, list[Any]] = {"000001": [], "000002": []}
    for found in run.lineage().checkpoints:
        if found.state == "uncommitted":
            continue  # torn by the kill
        commits[found.name.split("/")[2]].append(found.metrics)
    if task_id == "user_error":
        return [UserError(*commits["000001"], exception=run.xcom("ray_train_failure")["reason"])]
    if task_id == "lost":
        return [DriverLost(*commits["000001"]), Succeeds(*commits["000002"])]
    return [NeverEnds(*commits["000001"])]


def compared_records(records: dict[str, Any]) -> dict[str, Any]:
    """Without the late segment of a killed driver, which only exists where its last commits were not recorded yet."""
    return {name: body for name, body in records.items() if "/records/late-" not in name}


@pytest.mark.parametrize("task_id", TASKS)
def test_the_same_is_left(real: dict[str, TrainingRun], ray_train_cluster: RayTrainCluster, task_id: str) -> None:
    """State, tries, kind, XComs and records. Only the search for a poisoned checkpoint is not played."""
    run = real[task_id]
    task = load_dags(DAG_FILE)["compared"].get_task(task_id)
    fake = ray_train_cluster.run(task, outcomes=outcomes_of(task_id, run), run_id=run.run_id)
    ended = run.task()
    assert (fake.state, fake.last.try_number) == (ended["state"], ended["try_number"])
    assert (ended["state"], ended["try_number"]) == (("success", 2) if task_id == "lost" else ("failed", 1))

    real_xcoms = xcoms_of(run)
    assert set(fake.xcoms) == set(real_xcoms)
    for key, value in real_xcoms.items():
        assert shape(fake.xcoms[key]) == shape(value), key
    for key in ("kind", "retryable"):
        assert fake.xcoms.get("ray_train_failure", {}).get(key) == real_xcoms.get("ray_train_failure", {}).get(key)
    if task_id == "lost":
        first = run.lineage().attempts[0]
        assert fake.tries[0].xcoms["ray_train_failure"]["kind"] == first.failure_kind
        for key in ("attempts", "tries", "new_checkpoints", "restore_proven", "progress"):
            assert fake.return_value.get(key) == run.xcom().get(key), key

    records = run.records()
    assert records is not None
    left = compared_records(records_of(records.store))
    made = records_of(ray_train_cluster.experiment(fake.xcoms["ray_train_job"]["experiment"]))
    only_real = {name for name in set(left) - set(made) if "/quarantine/" not in name}
    assert (only_real, set(made) - set(left)) == (set(), set())
    for name in made:
        assert set(made[name]) == set(left[name]), name
        kind = name.rpartition("/")[2]
        lags = LAGS.get(kind, set())
        assert filled(left[name]) - filled(made[name]) <= GAPS.get(kind, set()) | lags, name
        assert filled(made[name]) - filled(left[name]) <= lags, name
    outcome = [name for name in left if name.endswith("/outcome.json")]
    for name in outcome:
        assert (made[name]["state"], kind_of(made[name])) == (left[name]["state"], kind_of(left[name])), name


def kind_of(outcome: dict[str, Any]) -> str | None:
    """Of the failure, where there is one."""
    return outcome["failure"]["kind"] if outcome["failure"] else None
