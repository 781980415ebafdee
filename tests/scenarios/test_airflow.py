"""Airflow's behaviours: XCom, clears, deadlines, templates, shared names, and what retries cost."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction
from jinja2 import TemplateSyntaxError

from airflow_provider.core import layout
from airflow_provider.core.errors import ForeignExperiment, RayJobFailed
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.manifest import Manifest, ManifestEntry, parse_manifest
from airflow_provider.core.record_parts import CheckpointFile
from airflow_provider.core.records import CheckpointEntry, RecordSegment
from airflow_provider.operators.parameters import build_request
from tests.support.case_files import CASES
from tests.support.decisions import is_retried
from tests.support.experiment import NOW
from tests.support.operator_run import World
from tests.support.records import outcome
from tests.support.tape import Tape
from tests.support.whole_try import failed_try

XCOM_BYTES = 49_152


def commit_with(world: World, metrics: dict[str, Any], *, num: int = 1) -> str:
    """Checkpoints of attempt 1 that all report these metrics, known to the manifest and to the records."""
    names = world.bench.commit(*(f"checkpoint_{n:06d}" for n in range(num)))
    entries = tuple(ManifestEntry(name, metrics) for name in names)
    body = Manifest(entries, entries[-1]).body(ray_version="2.60.0")
    world.bench.store.put_raw(layout.manifest(1, 1), body)
    files = (CheckpointFile(key="model.pt", size=8),)
    recorded = tuple(CheckpointEntry(checkpoint=n, files=files, metrics=metrics, reported_at=NOW) for n in names)
    world.bench.store.put_raw(
        layout.segment(1, 1, "000001"), RecordSegment(checkpoints=recorded, written_at=NOW).body()
    )
    return names[-1]


def strict(value: Any) -> str:
    """As a database with a JSON column takes it."""
    return json.dumps(value, allow_nan=False)


@pytest.mark.scenario("C52")
def test_huge_metrics_and_900_checkpoints_fit_into_xcom(world: World) -> None:
    """A confusion matrix of 500 x 500: the scalars stay, the matrix is cut, and the task succeeds."""
    trigger = world.defer()
    latest = commit_with(world, {"loss": 0.25, "epoch": 9, "confusion": [list(range(500))] * 500})
    record = outcome(latest_checkpoint=latest)
    world.end(world.server.jobs[trigger.submission_id], "SUCCEEDED", record=record)
    result = world.resume(trigger)
    shown = result["latest_checkpoint"]
    assert {name: shown["metrics"][name] for name in ("loss", "epoch")} == {"loss": 0.25, "epoch": 9}
    assert shown["truncated"] is True
    assert len(strict(result)) <= XCOM_BYTES


@pytest.mark.scenario("C52")
def test_a_long_message_and_900_checkpoints_fit_into_xcom(world: World) -> None:
    """The failing way: the message of 20,000 characters and the whole lineage are cut, and the record is named."""
    trigger = world.defer()
    commit_with(world, {"loss": 0.25}, num=900)
    failure = Failure(kind=FailureKind.USER, reason="x" * 20_000, detail="y" * 20_000)
    world.end(world.server.jobs[trigger.submission_id], "FAILED", record=outcome("failed", failure=failure))
    with pytest.raises(RayJobFailed):
        world.resume(trigger)
    lineage = world.task.ti.xcoms["checkpoint_lineage"]
    assert (lineage["truncated"], lineage["num_checkpoints"]) == (True, 900)
    assert lineage["full_record"] == lineage["experiment"]
    for value in world.task.ti.xcoms.values():
        assert len(strict(value)) <= XCOM_BYTES


@pytest.mark.scenario("C53")
@pytest.mark.parametrize("file", ["snapshot-a.json", "snapshot-b.json"])
def test_nan_in_either_dialect_reaches_xcom_as_strict_json(world: World, file: str) -> None:
    """null is what today's Ray writes for NaN, a bare NaN what an older one left."""
    trigger = world.defer()
    manifest = parse_manifest((CASES / "C53" / file).read_bytes(), key="k")
    assert manifest.latest is not None
    latest = commit_with(world, manifest.latest.metrics)
    record = outcome(latest_checkpoint=latest)
    world.end(world.server.jobs[trigger.submission_id], "SUCCEEDED", record=record)
    result = world.resume(trigger)
    strict(world.task.ti.xcoms)
    loss = json.loads(strict(result))["latest_checkpoint"]["metrics"]["loss"]
    assert loss == (None if file == "snapshot-a.json" else "NaN")


@pytest.mark.scenario("C58")
@pytest.mark.parametrize("does_number_move", [False, True])
def test_a_clear_while_deferred_leaves_exactly_one_live_job(world: World, does_number_move: bool) -> None:
    """on_kill did not run and the job lives: it is stopped, and the new one has an id of its own."""
    trigger = world.defer()
    world.server.set_status(trigger.submission_id, "RUNNING")
    world.next_try(is_clear=does_number_move)
    if not does_number_move:
        world.task.ti.try_number -= 1
    again = world.defer()
    assert again.submission_id != trigger.submission_id
    live = [name for name, job in world.server.jobs.items() if job.status in ("PENDING", "RUNNING")]
    assert live == [again.submission_id]
    assert world.server.num_posts == 2


@pytest.mark.scenario("C63")
def test_a_deadline_travels_through_deferrals_and_a_triggerer_restart(world: World) -> None:
    """Two hours are two hours after the submit, whatever resumes and restarts in between; then it ends for good."""
    operator = world.operator(timeout_s=timedelta(hours=2))
    trigger = world.defer(operator)
    world.server.set_status(trigger.submission_id, "RUNNING")
    assert trigger.deadline is not None
    away = datetime.fromisoformat(trigger.deadline) - datetime.now(timezone.utc)
    assert timedelta(hours=1, minutes=59) < away <= timedelta(hours=2)
    again = world.defer_again(trigger, "lost")
    assert again.deadline == trigger.deadline
    _, row = again.serialize()
    restarted = type(again)(**json.loads(json.dumps(row)))
    restarted.deadline = (datetime.now(timezone.utc) - timedelta(minutes=1)).isoformat()
    event = world.follow(restarted)
    assert event["end"] == "timeout"
    assert world.server.jobs[trigger.submission_id].status == "STOPPED"
    with pytest.raises(RayJobFailed) as caught:
        world.complete(event)
    assert (caught.value.failure.kind, is_retried(caught.value)) == (FailureKind.TIMEOUT, False)


KEY = TaskInstanceKey("d", "r", "train")


@pytest.mark.scenario("C65")
def test_templates_are_values_at_any_depth_and_everything_else_stays(world: World) -> None:
    """Literal braces are no template, numbers and None are not touched, keys are names."""
    operator = world.operator(
        runtime_env={"env_vars": {"DS": "{{ ds }}", "{{ x }}": "1"}, "pip": ["torch=={{ params.v }}"], "eager": None},
        train_loop=None,
        entrypoint="python x.py --config '{\"lr\": 1e-3}' --day {{ ds }}",
    )
    context: Any = {"ds": "2026-11-29", "x": "never", "params": {"v": "2.4"}}
    operator.render_template_fields(context)
    assert operator.runtime_env == {
        "env_vars": {"DS": "2026-11-29", "{{ x }}": "1"},
        "pip": ["torch==2.4"],
        "eager": None,
    }
    command = build_request(operator, KEY).training.command
    assert command == "python x.py --config '{\"lr\": 1e-3}' --day 2026-11-29"


@pytest.mark.scenario("C65")
def test_a_broken_template_names_its_field(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """`{%` opens a statement that never ends: the person must learn where."""
    operator = world.operator(train_loop=None, entrypoint="python x.py --fmt '{%'")
    context: Any = {}
    with pytest.raises(TemplateSyntaxError):
        operator.render_template_fields(context)
    assert "field 'entrypoint'" in caplog.text


@pytest.mark.scenario("C69")
def test_a_second_run_refuses_a_shared_name_and_names_both(world: World) -> None:
    """Catch-up started three days at once under the name `resnet`: no run may restore another's weights."""
    first = world.defer(world.operator(experiment_name="resnet"))
    before = world.bench.written()
    runs = [world.task.ti.run_id, "scheduled__2026-11-30T00:00:00+00:00"]
    world.task.ti.run_id = runs[1]
    with pytest.raises(ForeignExperiment) as caught:
        world.operator(experiment_name="resnet").execute(world.task.context)
    assert all(run in str(caught.value) for run in runs)
    assert not is_retried(caught.value)
    assert world.bench.written() == before
    assert list(world.server.jobs) == [first.submission_id]


@pytest.mark.scenario("C72")
@pytest.mark.parametrize(("case", "action"), [("C38", RetryAction.FAIL), ("C44", RetryAction.RETRY)])
def test_retries_are_for_what_can_get_better(world: World, case: str, action: RetryAction) -> None:
    """Five retries of a KeyError cost five times the GPU hours; a lost spot node costs a restore."""
    operator = world.operator(retries=5)
    (committed,) = world.bench.commit("checkpoint_0")
    error = failed_try(world, Tape.load(case))
    policy = operator.retry_policy
    assert policy is not None
    assert policy.evaluate(error, 1, operator.retries).action is action
    assert world.task.ti.xcoms["ray_train_failure"]["retryable"] is (action is RetryAction.RETRY)
    if action is RetryAction.RETRY:
        world.next_try()
        world.defer()
        claim = world.records.newest_claim()
        assert claim is not None
        assert claim.checkpoint_seen == committed
