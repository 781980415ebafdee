"""Many trainings of one DAG on a real Airflow, Ray and S3: runs that overlap, indices of task groups, and an asset's consumer."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import pytest

from tests.e2e.test_operator import jobs_of
from tests.e2e.test_warm_start import objects_below, wait_for_success
from tests.stack.airflow_client import AirflowClient
from tests.stack.process import wait_until
from tests.stack.services import Stack
from tests.support.idle_training import live_jobs, owners
from tests.support.training_run import TrainingRun

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(800)]
LIMIT_S = 400.0
DATES = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"]


def dag_runs(airflow: AirflowClient, dag_id: str, *, count: int) -> list[dict[str, Any]]:
    """Wait for all runs of a DAG; those without a logical date come last."""

    def found() -> list[dict[str, Any]]:
        with contextlib.suppress(httpx.TransportError):
            return list(airflow.request("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"])
        return []

    wait_until(lambda: len(found()) >= count, timeout_s=LIMIT_S, what=f"{count} runs of {dag_id}")
    every = sorted(found(), key=lambda run: (run["logical_date"] is None, run["logical_date"] or "", run["dag_run_id"]))
    assert len(every) == count
    return every


def test_runs_that_catch_up_and_overlap_never_share_an_experiment(stack: Stack, airflow: AirflowClient) -> None:
    """Three missed dates and two runs without a date are live at once; a sixth that asks for one's experiment is refused."""
    airflow.wait_for_dag("catch_up")
    airflow.unpause("catch_up")
    for _ in range(2):
        airflow.trigger("catch_up")
    every = dag_runs(airflow, "catch_up", count=5)
    assert [run["logical_date"] for run in every] == [*DATES, None, None]
    assert [run["run_type"] for run in every] == ["scheduled"] * 3 + ["manual"] * 2
    runs = [TrainingRun(stack, airflow, "catch_up", run["dag_run_id"]) for run in every]
    for run in runs:
        airflow.wait_for_task(*run.key, states={"deferred"}, timeout_s=LIMIT_S)
    assert [len(live_jobs(run)) for run in runs] == [1] * 5, "all are live at the same time"
    experiments = [run.xcom("ray_train_job")["experiment"] for run in runs]
    assert len(set(experiments)) == 5

    name = experiments[0].removeprefix("s3://models/retraining/")
    asked = TrainingRun(stack, airflow, "asked_to_share", airflow.run_dag("asked_to_share", conf={"name": name}))
    refused = airflow.wait_for_task(*asked.key, timeout_s=LIMIT_S)
    assert (refused["state"], refused["try_number"]) == ("failed", 1), asked.log()[-4000:]
    assert asked.xcom("ray_train_failure")["kind"] == "config"
    assert [w for w in ("ForeignExperiment", runs[0].run_id) if w not in asked.log()] == []
    assert live_jobs(asked) == [], "nothing was submitted"

    (stack.airflow.home / "catch_up_gate").touch()
    results = [wait_for_success(run) for run in runs]
    assert [result["experiment"] for result in results] == experiments
    assert len({result["submission_id"] for result in results}) == 5
    for run, result in zip(runs, results, strict=True):
        assert {(o.dag_id, o.run_id, o.map_index) for o in owners(run).values()} == {("catch_up", run.run_id, -1)}
        assert jobs_of(run) == [result["submission_id"]]
        assert result["attempts"] == 1


def test_each_index_of_a_task_group_has_its_own_experiment_and_a_clear_touches_one(
    stack: Stack, airflow: AirflowClient
) -> None:
    """A mapped task inside a group, and a task inside a mapped group: two indices each."""
    run_id = airflow.run_dag("groups")
    places = [(task, index) for task in ("sweep.train", "one_model.train") for index in (0, 1)]
    runs = {place: TrainingRun(stack, airflow, "groups", run_id, *place) for place in places}
    assert airflow.wait_for_dag_run("groups", run_id, timeout_s=LIMIT_S) == "success"
    results = {place: run.xcom() for place, run in runs.items()}
    for (task, index), result in results.items():
        assert f"/groups/{task}-{index}/" in result["experiment"]
        assert result["new_checkpoints"] == index + 1
    assert len({result["experiment"] for result in results.values()}) == len(places)

    def untouched() -> dict[tuple[str, int], Any]:
        """Of what nobody cleared: the task instance, its owners and claims, and every byte of its experiment."""
        return {
            place: (
                {key: runs[place].task()[key] for key in ("id", "state", "try_number", "start_date", "end_date")},
                runs[place].lineage().tries,
                runs[place].lineage().attempts,
                objects_below(stack.s3, results[place]["experiment"]),
            )
            for place in places
            if place not in cleared
        }

    cleared = [("sweep.train", 1), ("one_model.train", 0)]
    before = untouched()
    body = {
        "dry_run": False,
        "dag_run_id": run_id,
        "only_failed": False,
        "task_ids": [list(place) for place in cleared],
    }
    answer = airflow.request("POST", "/dags/groups/clearTaskInstances", json=body)["task_instances"]
    assert sorted((one["task_id"], one["map_index"]) for one in answer) == sorted(cleared)
    for task, index in cleared:
        again = airflow.wait_for_task("groups", run_id, task, map_index=index, try_number=2, timeout_s=LIMIT_S)
        run = runs[task, index]
        assert again["state"] == "success", run.log(2)[-4000:]
        assert [str(a.ref) for a in run.lineage().attempts] == ["g1/a1", "g2/a1"]
        assert run.xcom()["experiment"] == results[task, index]["experiment"]
        assert run.xcom()["new_checkpoints"] == index + 1
    assert len(before) == 2
    assert untouched() == before


def test_a_training_that_an_asset_event_starts_begins_from_the_events_checkpoint(
    stack: Stack, airflow: AirflowClient
) -> None:
    """The parent trained epochs 0 and 1; the loop of the child, unmodified, sees it and trains epoch 2 only."""
    airflow.wait_for_dag("asset_child")
    airflow.unpause("asset_child")
    parent = TrainingRun(stack, airflow, "asset_parent", airflow.run_dag("asset_parent"))
    trained = wait_for_success(parent)
    before = objects_below(stack.s3, trained["experiment"])
    (consumer,) = dag_runs(airflow, "asset_child", count=1)
    assert (consumer["run_type"], consumer["logical_date"]) == ("asset_triggered", None)
    child = TrainingRun(stack, airflow, "asset_child", consumer["dag_run_id"])
    result = wait_for_success(child)
    (event,) = airflow.request("GET", "/assets/events", params={"source_run_id": parent.run_id})["asset_events"]
    uri = trained["latest_checkpoint"]["uri"]
    assert event["extra"]["checkpoint"] == uri
    (attempt,) = child.lineage().attempts
    (checkpoint,) = child.lineage().checkpoints
    assert (attempt.warm_started_from, attempt.restored_from) == (uri, None)
    assert (checkpoint.parent, checkpoint.metrics["epoch"]) == (uri, 2)
    assert result["warm_started_from"] == child.xcom("checkpoint_lineage")["checkpoints"][0]["parent"] == uri
    assert result["experiment"] != trained["experiment"]
    assert f"warm start from {uri}" in child.log()
    assert objects_below(stack.s3, trained["experiment"]) == before, "the parent's bytes"
