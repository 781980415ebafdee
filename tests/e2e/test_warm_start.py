"""Warm starts on a real Airflow, Ray and S3: nightly runs that begin where the night before ended."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.stack.airflow_client import AirflowClient
from tests.stack.process import wait_until
from tests.stack.s3 import S3Server
from tests.stack.services import Stack
from tests.support.training_run import TrainingRun, driver_processes, kill, worker_processes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
Start = Callable[..., TrainingRun]
LIMIT_S = 300.0


def wait_for_success(run: TrainingRun) -> dict[str, Any]:
    """Wait for the task's end; the answer is its result."""
    task = run.airflow.wait_for_task(*run.key, map_index=run.map_index, timeout_s=LIMIT_S)
    assert task["state"] == "success", run.log()[-4000:]
    result: dict[str, Any] = run.xcom()
    return result


def objects_below(s3: S3Server, uri: str) -> dict[str, str]:
    """Every object with its etag: what a warm start must leave alone."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    pages = s3.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
    return {item["Key"]: item["ETag"] for page in pages for item in page.get("Contents", [])}


def asset_events(run: TrainingRun) -> list[dict[str, Any]]:
    """The asset events that the DAG run emitted."""
    answer = run.airflow.request("GET", "/assets/events", params={"source_run_id": run.run_id})
    return list(answer["asset_events"])


def promotions(run: TrainingRun) -> list[str]:
    """The checkpoints of the promotion's events, where the plain asset has exactly one event too."""
    events = asset_events(run)
    assert [e["name"] for e in events].count("nightly_digits") == 1
    return [e["extra"]["checkpoint"] for e in events if e["name"] == "nightly_digits_promoted"]


def job_log(run: TrainingRun, number: int) -> str:
    """The log of the job that the attempt was sent as; empty before there is one."""
    if run.records() is None:
        return ""
    sent = {job["submission_id"] for job in json.loads(run.stack.ray.get("/api/jobs/", timeout_s=60))}
    claimed = [attempt.submission_id for attempt in run.lineage().attempts]
    if len(claimed) < number or claimed[number - 1] not in sent:
        return ""
    return str(json.loads(run.stack.ray.get(f"/api/jobs/{claimed[number - 1]}/logs", timeout_s=60))["logs"])


def wait_until_seen(run: TrainingRun, words: str, *, times: int) -> None:
    """Wait until the training loop of the first attempt has said so that many times, before any commit."""
    wait_until(lambda: job_log(run, 1).count(words) >= times, timeout_s=LIMIT_S, what=words, every_s=0.5)
    assert run.lineage().checkpoints == (), "too late: it has committed"


@pytest.mark.slow  # two nights and two deaths; the refusals below and the units of the warm start are in `make test`
def test_a_night_begins_from_the_night_before_whatever_dies_before_its_first_commit(start: Start) -> None:
    """An unmodified loop sees the parent in the first fit, after a worker's death, and in the next try."""
    first = start("nightly_retraining", epochs=2, epoch_seconds=0)
    earlier = wait_for_success(first)
    parent = earlier["latest_checkpoint"]
    assert parent["metrics"]["total_epochs"] >= 2
    assert promotions(first) == [parent["uri"]], "the first model of all is promoted"
    before = objects_below(first.stack.s3, earlier["experiment"])
    first.airflow.wait_for_dag_run(first.dag_id, first.run_id)
    first.airflow.request("DELETE", f"/dags/{first.dag_id}/dagRuns/{first.run_id}")  # its XComs and its row are gone

    second = start("nightly_retraining", epochs=2, epoch_seconds=10)
    done = parent["metrics"]["total_epochs"]
    seen = f"begins at epoch 0 with {done} epochs behind it"
    wait_until_seen(second, seen, times=1)
    assert kill(worker_processes(second.stack.ray)), "the first fault did not fire"
    wait_until_seen(second, seen, times=2)  # the restarted worker sees the parent again
    assert kill(driver_processes(second.stack.ray)), "the second fault did not fire"
    result = wait_for_success(second)

    lineage = second.lineage()
    assert [t.try_number for t in lineage.tries] == [1, 2]
    assert [a.warm_started_from for a in lineage.attempts] == [parent["uri"], parent["uri"]]
    assert [a.restored_from for a in lineage.attempts] == [None, None]
    committed = [c for c in lineage.checkpoints if c.state != "uncommitted"]
    assert [c.metrics["total_epochs"] for c in committed] == [done + 1, done + 2]
    assert [c.metrics["epoch"] for c in committed] == [0, 1]
    assert [c.parent for c in committed] == [parent["uri"], committed[0].name]
    assert [c.state for c in committed] == ["pruned", "committed"], "num_to_keep=1 counts the run's own only"
    assert result["warm_started_from"] == parent["uri"]
    assert result["restore_proven"] != "no"
    assert second.xcom("checkpoint_lineage")["checkpoints"][0]["parent"] == parent["uri"]
    assert objects_below(second.stack.s3, earlier["experiment"]) == before, "the parent's bytes"
    said = f"warm start from {parent['uri']} because it is the latest committed checkpoint"
    assert said in second.log(1)
    assert f"warm start from {parent['uri']} because the generation's first claim chose it" in second.log(2)
    assert seen in job_log(second, 2)
    # Promoted once, by the try that ended it, and only if it is better than the night before.
    verdict, latest = result["published"]["nightly_digits_promoted"], result["latest_checkpoint"]
    assert (verdict["value"], verdict["last"]) == (latest["metrics"]["accuracy"], parent["metrics"]["accuracy"])
    is_better = verdict["value"] > verdict["last"]
    assert verdict["published"] is is_better
    assert promotions(second) == ([latest["uri"]] if is_better else [])


@pytest.mark.slow
def test_ray_train_v1_begins_from_a_plain_folder_of_files(stack: Stack, start: Start) -> None:
    state = io.BytesIO()
    torch.save({"weight": torch.ones(4), "epoch": 1}, state)
    stack.s3.client().put_object(Bucket="models", Key="base/counting/state.pt", Body=state.getvalue())
    before = objects_below(stack.s3, "s3://models/base")
    run = start("warm_start_v1", parent="s3://models/base/counting")
    result = wait_for_success(run)
    assert result["new_checkpoints"] == 2, "epochs 2 and 3 of 4"
    assert result["warm_started_from"] == "s3://models/base/counting"
    assert [c.parent for c in run.lineage().checkpoints][:1] == ["s3://models/base/counting"]
    assert objects_below(stack.s3, "s3://models/base") == before


@pytest.mark.slow
def test_a_factory_and_a_script_begin_from_the_index_that_passed_its_gate(stack: Stack, start: Start) -> None:
    """A mapped training publishes per index; an unmodified trainer and an unmodified script see the parent alike."""
    swept = [start("warm_start_kinds", task_id="sweep", map_index=0)]
    run_id = swept[0].run_id
    swept.append(TrainingRun(stack, swept[0].airflow, "warm_start_kinds", run_id, "sweep", 1))
    small, large = (wait_for_success(run) for run in swept)
    assert [r["published"]["counted"]["published"] for r in (small, large)] == [False, True]
    assert "epoch 0 is not at least 1" in small["published"]["counted"]["reason"]
    answer = asset_events(swept[0])
    assert [(e["name"], e["source_map_index"]) for e in answer] == [("counted", 1)]
    parent = large["latest_checkpoint"]["uri"]
    assert answer[0]["extra"]["checkpoint"] == parent
    before = objects_below(stack.s3, large["experiment"])
    for task_id, epochs in {"factory": 5, "script": 4}.items():
        run = TrainingRun(stack, swept[0].airflow, "warm_start_kinds", run_id, task_id)
        result = wait_for_success(run)
        lineage = run.lineage()
        assert result["warm_started_from"] == parent, task_id
        assert [c.metrics["epoch"] for c in lineage.checkpoints] == list(range(3, epochs)), task_id
        assert lineage.checkpoints[0].parent == parent, task_id
        assert [a.warm_started_from for a in lineage.attempts] == [parent], task_id
    assert objects_below(stack.s3, large["experiment"]) == before, "the parent's bytes"


REFUSED = {
    # task id: (failure kind, words a person must find in the log)
    "deleted": ("checkpoint", "nothing is there"),
    "foreign": ("config", "MLflow"),
    "event": ("config", "names no checkpoint"),
}


def test_a_parent_that_cannot_be_one_is_refused_before_a_job_is_sent(stack: Stack, airflow: AirflowClient) -> None:
    stack.s3.client().put_object(Bucket="models", Key="base/mlflow/MLmodel", Body=b"flavors:")
    run_id = airflow.run_dag("warm_start_refused", conf={"foreign": "s3://models/base/mlflow"})
    for task_id, (kind, words) in REFUSED.items():
        task = airflow.wait_for_task("warm_start_refused", run_id, task_id, timeout_s=LIMIT_S)
        log = airflow.log_text("warm_start_refused", run_id, task_id)
        assert (task["state"], task["try_number"]) == ("failed", 1), (task_id, log[-3000:])
        assert words in log, (task_id, log[-3000:])
        failure = airflow.xcom("warm_start_refused", run_id, task_id, key="ray_train_failure")
        assert (failure["kind"], failure["retryable"]) == (kind, False), (task_id, failure)
        assert airflow.xcom("warm_start_refused", run_id, task_id, key="ray_job_url") is None
