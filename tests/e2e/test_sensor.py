"""The sensor on a real Airflow and bucket: one training writes an experiment; many sensors wait for it, its copies, and nothing.

The cluster is dead while they wait: what they need lies in the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.manifest import ManifestEntry, parse_manifest
from airflow_provider.core.records import CollectedRecord, OutcomeRecord, OutcomeState
from airflow_provider.storage.experiment_records import ExperimentRecords
from tests.stack.airflow_client import AirflowClient
from tests.stack.process import wait_until
from tests.stack.services import Stack
from tests.support.training_run import TrainingRun, records_at

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]
LIMIT_S = 240.0
NOWHERE = "s3://models/across_dags/nowhere"
GENERATION, ATTEMPT = 1, 1


@dataclass
class Experiments:
    """The trained one, and two copies of its records: one whose driver still runs, one that failed."""

    training: TrainingRun
    evaluation_run: str
    finished: str
    running: str
    failed: str


def copied(stack: Stack, uri: str, name: str) -> ExperimentRecords:
    """The experiment at another path, without its end."""
    target = records_at(stack.s3, f"s3://models/across_dags/{name}")
    source = records_at(stack.s3, uri)
    ends = (layout.outcome(GENERATION, ATTEMPT), layout.collected(GENERATION, ATTEMPT))
    for info in source.store.list(""):
        found = source.store.read(info.key) if info.key not in ends else None
        if found is not None:
            target.store.write(info.key, found.body)
    return target


@pytest.fixture(scope="module")
def experiments(stack: Stack, airflow: AirflowClient) -> Experiments:
    """The example trains; the DAG that it starts evaluates."""
    airflow.wait_for_dag("sensor_evaluation")
    run_id = airflow.run_dag("sensor_training", conf={"epochs": 4, "epoch_seconds": 4})
    training = TrainingRun(stack, airflow, "sensor_training", run_id)
    airflow.wait_for_task("sensor_training", run_id, "start_evaluation", timeout_s=LIMIT_S)
    runs = airflow.request("GET", "/dags/sensor_evaluation/dagRuns")["dag_runs"]
    (evaluation_run,) = [r["dag_run_id"] for r in runs if r["conf"].get("training_run_id") == run_id]
    airflow.wait_for_task("sensor_evaluation", evaluation_run, "evaluate", timeout_s=LIMIT_S)
    airflow.wait_for_task(*training.key, timeout_s=LIMIT_S)
    uri = training.xcom()["experiment"]
    running, failed = copied(stack, uri, "running"), copied(stack, uri, "failed")
    failure = Failure(kind=FailureKind.USER, reason="KeyError: labels (counting.py:30)")
    record = OutcomeRecord(state=OutcomeState.FAILED, failure=failure, finished_at=datetime.now(timezone.utc))
    failed.store.write(layout.outcome(GENERATION, ATTEMPT), record.body())
    return Experiments(training, evaluation_run, uri, running.store.uri, failed.store.uri)


def commit(records: ExperimentRecords, *, epoch: int) -> str:
    """One more checkpoint in the manifest, as a driver commits it."""
    key = layout.manifest(GENERATION, ATTEMPT)
    stored = records.store.read(key)
    assert stored is not None
    manifest = parse_manifest(stored.body, key=key)
    name = f"{layout.attempt(GENERATION, ATTEMPT).partition('/')[2]}/checkpoint_9999-{epoch:06d}"
    entry = ManifestEntry(name, {"epoch": epoch, "accuracy": 0.9})
    grown = type(manifest)(entries=(*manifest.entries, entry), latest=entry)
    records.store.write(key, grown.body(ray_version=manifest.ray_version))
    return name


def finish(records: ExperimentRecords, *, latest: str) -> None:
    """The driver's outcome, accepted by its task."""
    now = datetime.now(timezone.utc)
    outcome = OutcomeRecord(state=OutcomeState.SUCCESS, latest_checkpoint=latest, finished_at=now)
    records.store.write(layout.outcome(GENERATION, ATTEMPT), outcome.body())
    collected = CollectedRecord(k=1, accepted=True, written_at=now)
    records.store.write(layout.collected(GENERATION, ATTEMPT), collected.body())


def test_another_dag_evaluates_a_checkpoint_while_the_training_goes_on(experiments: Experiments) -> None:
    """The example: the sensor began before the experiment was there, and ended before the training did."""
    airflow, training = experiments.training.airflow, experiments.training
    evaluated = airflow.xcom("sensor_evaluation", experiments.evaluation_run, "evaluate")
    assert evaluated["model"].startswith(f"{experiments.finished}/g000001/")
    assert evaluated["accuracy"] >= 0.5
    assert 2 <= evaluated["after_epochs"] <= 4
    sensor = airflow.task_instance("sensor_evaluation", experiments.evaluation_run, "good_enough")
    assert sensor["state"] == "success"
    assert sensor["start_date"] < training.task()["end_date"]
    found = airflow.xcom("sensor_evaluation", experiments.evaluation_run, "good_enough")
    assert evaluated["training"] == found["state"] == "running"
    assert training.xcom()["state"] == "success"


DEFERRED = {"never_came", "timed_out"}
"""Airflow 3.3.2 may lose a try to a stale event of its executor when a task resumes; the others end in their first look."""
ENDS = {
    # task id: (Airflow's state, end in the XCom, words a person must find in the log)
    "training_failed": ("failed", "training_failed", ("KeyError: labels", "not retried")),
    "skipped": ("skipped", "training_failed", ("KeyError: labels",)),
    "missing": ("failed", "missing", ("there is no experiment at", "missing='fail'")),
    "never_came": ("failed", "never_came", ("within 3 s", "there is no experiment at")),
    "timed_out": ("failed", "timeout", ("within 3 s", "g1/a1 trains", "highest")),
    "not_met": ("failed", "not_met", ("ended with success", "accuracy > 2: last")),
    "no_metric": ("failed", "no_metric", ("none of 4 checkpoints reports acuracy", "accuracy, epoch, loss")),
    "rendered_wrong": ("failed", None, ("at column 11", "a number is expected")),
    "refused": ("failed", "error", ("The object store refused",)),
}


@pytest.fixture(scope="module")
def sensors(stack: Stack, airflow: AirflowClient, experiments: Experiments) -> str:
    """Run id of all sensors in one DAG run, on a dead cluster; the running copy commits once, then ends."""
    conf = {"finished": experiments.finished, "running": experiments.running, "failed": experiments.failed}
    conf |= {"nowhere": NOWHERE, "dag_id": "sensor_training", "run_id": experiments.training.run_id}
    stack.ray.kill_head()
    try:
        run_id = airflow.run_dag("sensors", conf=conf)
        for task_id in ("next_checkpoint", "next_end"):
            airflow.wait_for_task("sensors", run_id, task_id, states={"deferred"}, timeout_s=LIMIT_S)
        airflow.wait_for_task("sensors", run_id, "next_rescheduled", states={"up_for_reschedule"}, timeout_s=LIMIT_S)
        wait_until(
            lambda: "waiting: g1/a1 trains" in airflow.log_text("sensors", run_id, "next_blocking"),
            timeout_s=LIMIT_S,
            what="the blocking sensor's first look",
        )
        trigger = airflow.task_instance("sensors", run_id, "next_end")["trigger"]
        assert trigger["classpath"].endswith(".RayTrainSensorTrigger")
        records = records_at(stack.s3, experiments.running)
        name = commit(records, epoch=4)
        for task_id in ("next_checkpoint", "next_blocking", "next_rescheduled"):
            airflow.wait_for_task("sensors", run_id, task_id, timeout_s=LIMIT_S)
        assert airflow.task_instance("sensors", run_id, "next_end")["state"] == "deferred"
        airflow.wait_for_task("sensors", run_id, "timed_out", timeout_s=LIMIT_S)  # it must not see the end below
        finish(records, latest=name)
        airflow.wait_for_dag_run("sensors", run_id, timeout_s=LIMIT_S)
    finally:
        stack.ray.start()
    return run_id


def test_waits_that_end_well_return_what_a_next_task_uses(
    airflow: AirflowClient, experiments: Experiments, sensors: str
) -> None:
    def result(task_id: str, map_index: int = -1) -> dict[str, Any]:
        task = airflow.task_instance("sensors", sensors, task_id, map_index=map_index)
        # A loaded Airflow may count a reschedule as a try, and then has no log of the one before.
        log = airflow.log_text("sensors", sensors, task_id, map_index=map_index, try_number=task["try_number"])
        assert task["state"] == "success", log[-3000:]
        found: dict[str, Any] = airflow.xcom("sensors", sensors, task_id, map_index=map_index)
        return found

    own = experiments.training.xcom()
    for task_id in ("end", "other_dag"):
        found = result(task_id)
        for name in (
            "state",
            "experiment",
            "generation",
            "submission_id",
            "latest_checkpoint",
            "best_checkpoint",
            "attempts",
        ):
            assert found[name] == own[name], (task_id, name)
        assert found["checkpoint"] == own["latest_checkpoint"]
        assert (found["attempt"], found["progress"]) == (1, {"epoch": 3})
    assert result("blocking")["checkpoint"]["metrics"]["epoch"] == 3
    assert [result("mapped", i)["progress"]["epoch"] for i in range(3)] == [2, 3, 3]
    assert result("mapped", 2)["state"] == "failed", "its condition held before that"
    for task_id in ("next_checkpoint", "next_blocking", "next_rescheduled"):
        found = result(task_id)
        assert (found["state"], found["progress"], found["experiment"]) == (
            "running",
            {"epoch": 4},
            experiments.running,
        )
    assert "waiting: g1/a1 trains; 5 checkpoints" in airflow.log_text("sensors", sensors, "next_end"), (
        "the trigger's words"
    )
    assert (result("next_end")["state"], result("next_end")["progress"]) == ("success", {"epoch": 4})


@pytest.mark.parametrize("task_id", ENDS)
def test_other_ends_differ_and_none_is_tried_again(airflow: AirflowClient, sensors: str, task_id: str) -> None:
    state, end, words = ENDS[task_id]
    task = airflow.task_instance("sensors", sensors, task_id)
    log = airflow.log_text("sensors", sensors, task_id, try_number=task["try_number"])
    assert task["state"] == state, log[-3000:]
    assert task["try_number"] <= (2 if task_id in DEFERRED else 1), "of three"
    assert [w for w in words if w not in log] == [], log[-3000:]
    if end is not None:
        told = airflow.xcom("sensors", sensors, task_id, key="ray_train_wait")
        assert told["end"] == end
        assert told["experiment"].startswith("s3://models/across_dags/")


def test_no_secret_reaches_a_log_or_an_xcom(stack: Stack, airflow: AirflowClient, sensors: str) -> None:
    tasks = airflow.task_instances("sensors", sensors)
    assert len(tasks) > 15
    for task in tasks:
        log = airflow.log_text(
            "sensors", sensors, task["task_id"], map_index=task["map_index"], try_number=task["try_number"]
        )
        assert [s for s in (stack.s3.secret_key, stack.ray.token, "wrong-secret-key") if s in log] == []
