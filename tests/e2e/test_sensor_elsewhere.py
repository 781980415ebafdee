"""Sensors of another deployment: an Airflow of its own that shares only the bucket with the training. There is no Ray at all.

The records in the bucket are those of trainings of an Airflow that this one has never heard of. Each wait is there twice: begun by a
worker, and started straight from the trigger. Both must end the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core.identity import TaskInstanceKey, experiment_uri
from airflow_provider.storage.object_store import open_object_store
from tests.e2e.elsewhere.waits import WAITS
from tests.stack.airflow_client import AirflowClient
from tests.stack.services import Stack
from tests.support.watched_experiment import WatchedExperiment, failure

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
HERE = Path(__file__).resolve().parent
LIMIT_S = 300.0
WAYS = ("worker", "trigger")
TOLD = ("return_value", "ray_train_wait", "ray_train_failure")
RUN_ID = "scheduled__2026-11-29T00:00:00+00:00"
"""Of the training's own Airflow."""
URIS = {
    "trained": experiment_uri("s3://models/churn", TaskInstanceKey("train_churn", RUN_ID, "train")),
    "running": "s3://models/elsewhere/running",
    "failed": "s3://models/elsewhere/failed",
}
NEXT, LATER = "next", {f"next_by_{way}" for way in WAYS}


class Bucket:
    """Experiments as their drivers and tries leave them, step by step, in the real bucket."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._made = {name: WatchedExperiment(uri) for name, uri in URIS.items()}
        for name, made in self._made.items():
            made.claim()
            self.commit(name, *range(6))
        self._made["trained"].succeed()
        self._made["failed"].end("failed", failure=failure("user", "KeyError: labels (churn.py:30)"))
        for name in URIS:
            self._write(name)

    def commit(self, name: str, *epochs: int) -> None:
        """One more checkpoint for each."""
        self._made[name].commit(*({"epoch": epoch, "loss": 1 / (1 + epoch)} for epoch in epochs))
        self._write(name)

    def _write(self, name: str) -> None:
        source, target = self._made[name].store, open_object_store(URIS[name], client_factory=self._stack.s3.client)
        for info in source.list(""):
            found = source.read(info.key)
            assert found is not None
            target.write(info.key, found.body)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A bucket, and an Airflow with a connection to it and to nothing else."""
    with Stack(tmp_path_factory.mktemp("elsewhere"), parts=("s3", "airflow"), dags=[HERE / "elsewhere"]) as stack:
        yield stack


@pytest.fixture(scope="module")
def airflow(stack: Stack) -> Iterator[AirflowClient]:
    """A logged-in user of that Airflow."""
    with stack.airflow.client() as client:
        yield client


@pytest.fixture(scope="module")
def bucket(stack: Stack) -> Bucket:
    """One training that ended well, one that goes on, one that failed; six epochs each."""
    return Bucket(stack)


@pytest.fixture(scope="module")
def waits(stack: Stack, airflow: AirflowClient, bucket: Bucket) -> str:
    """Run id of all waits. Two of them wait on while the triggerer is killed; then what they wait for is committed."""
    conf = {name: URIS[name] for name in ("running", "failed")} | {"run_id": RUN_ID}
    run_id = airflow.run_dag("waits", conf=conf, timeout_s=LIMIT_S)
    for task_id in LATER:
        airflow.wait_for_task("waits", run_id, task_id, states={"deferred"}, timeout_s=LIMIT_S)
    tasks = {way: airflow.task_instance("waits", run_id, f"next_by_{way}") for way in WAYS}
    assert tasks["trigger"]["trigger"]["classpath"].endswith(".RayTrainSensorStartTrigger")
    assert (tasks["trigger"]["pid"], tasks["trigger"]["try_number"]) == (None, 1), "no worker ran"
    assert tasks["worker"]["pid"] is not None
    for task in airflow.task_instances("waits", run_id):
        if task["task_id"] not in LATER:
            airflow.wait_for_task("waits", run_id, task["task_id"], timeout_s=LIMIT_S)
    stack.airflow.triggerer.kill()
    stack.airflow.triggerer.start()
    bucket.commit("running", 8)
    airflow.wait_for_dag_run("waits", run_id, timeout_s=LIMIT_S)
    return run_id


def told(airflow: AirflowClient, run_id: str, task_id: str) -> dict[str, Any]:
    """All that a wait says to Airflow and to other tasks."""
    return {key: airflow.xcom("waits", run_id, task_id, key=key) for key in TOLD}


STATES = {"end": "success", "metric": "success", "next": "success", "skipped": "skipped"}
ENDS = {"failed": "training_failed", "skipped": "training_failed", "timed_out": "timeout"}
WORDS = {"timed_out": "within 3 s (timeout)", "never_came": "there is no experiment at", "failed": "KeyError: labels"}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_ends_the_same_whoever_began_it(airflow: AirflowClient, waits: str, name: str) -> None:
    """State, result, end and failure, without a connection to Ray and of a DAG that this Airflow doesn't know."""
    ids = {way: f"{name}_by_{way}" for way in WAYS}
    tasks = {way: airflow.task_instance("waits", waits, ids[way]) for way in WAYS}
    state = STATES.get(name, "failed")
    for way, task in tasks.items():
        log = airflow.log_text("waits", waits, ids[way], try_number=task["try_number"])
        assert task["state"] == state, log[-3000:]
        assert WORDS.get(name, "") in log, log[-3000:]
    # Airflow 3.3.2 may lose a try to a stale event of its executor when a task resumes that a worker deferred.
    assert tasks["trigger"]["try_number"] == 1
    by_worker, by_trigger = (told(airflow, waits, ids[way]) for way in WAYS)
    assert by_trigger == by_worker
    if state == "success":
        found = by_trigger["return_value"]
        assert found["experiment"] == URIS["running" if name == NEXT else "trained"]
        assert found["checkpoint"]["metrics"]["epoch"] == (8 if name == NEXT else 5)
        assert (by_trigger["ray_train_wait"], by_trigger["ray_train_failure"]) == (None, None)
    else:
        assert by_trigger["return_value"] is None
        assert by_trigger["ray_train_wait"]["end"] == ENDS.get(name, name)


def test_the_next_task_uses_the_result_and_no_secret_is_told(stack: Stack, airflow: AirflowClient, waits: str) -> None:
    latest = airflow.xcom("waits", waits, "end_by_worker")["latest_checkpoint"]["uri"]
    assert latest.startswith(f"{URIS['trained']}/g000001/")
    assert [airflow.xcom("waits", waits, f"use_{way}") for way in WAYS] == [latest, latest]
    every = airflow.task_instances("waits", waits)
    assert len(every) == 2 * len(WAITS) + 2
    for task in every:
        assert stack.s3.secret_key not in airflow.log_text("waits", waits, task["task_id"])


def test_a_clear_starts_from_the_trigger_again_and_leaves_nothing_of_the_try_before(
    airflow: AirflowClient, waits: str, bucket: Bucket
) -> None:
    """Airflow deletes a task's XComs when a try begins in a worker, and this one only resumes there."""
    task_id = "timed_out_by_trigger"
    assert told(airflow, waits, task_id)["ray_train_wait"]["end"] == "timeout"
    bucket.commit("running", 9)
    airflow.clear("waits", waits, task_ids=[task_id])
    again = airflow.wait_for_task("waits", waits, task_id, try_number=2, timeout_s=LIMIT_S)
    assert again["state"] == "success", airflow.log_text("waits", waits, task_id, try_number=2)[-3000:]
    found = told(airflow, waits, task_id)
    assert found["return_value"]["checkpoint"]["metrics"]["epoch"] == 9
    assert (found["ray_train_wait"], found["ray_train_failure"]) == (None, None)
