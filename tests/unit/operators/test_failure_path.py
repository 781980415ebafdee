"""Whatever else breaks while a failed training is concluded, the task fails with the training's own kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import (
    RayJobFailed,
    RayTrainError,
    RecordUnreadable,
    StorePermissionDenied,
    StoreUnreachable,
)
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.operators.collecting import has_commit
from airflow_provider.triggers.ray_train import RayTrainTrigger
from tests.support.experiment import ref
from tests.support.fake_airflow import refused
from tests.support.operator_run import World, running_world
from tests.support.training_try import job_id

Match = Callable[[str, str], bool]
FAULTS: dict[str, Match] = {
    "what records lie there": lambda verb, key: verb == "list_folder" and key.endswith("/records/"),
    "the files of a checkpoint": lambda verb, key: verb == "list" and "checkpoint_" in key,
    "the late records": lambda verb, key: verb == "create_if_absent" and "late-owner" in key,
    "the conclusion": lambda verb, key: verb == "create_if_absent" and key.endswith("collected.json"),
    "the owners for the lineage": lambda verb, key: (verb, key) == ("list_folder", "owners/"),
    "the quarantine for the lineage": lambda verb, key: verb == "list_folder" and "quarantine" in key,
}
ERRORS: list[RayTrainError] = [
    StoreUnreachable("away"),
    StorePermissionDenied("no PutObject"),
    RecordUnreadable("torn"),
]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_world(monkeypatch) as world:
        yield world


def failed_job(world: World) -> RayTrainTrigger:
    """The driver left neither outcome nor records; Ray says that its command does not exist."""
    trigger = world.defer()
    world.bench.commit("checkpoint_0")
    world.bench.store.delete(layout.segment(1, 1, "000001"))
    world.server.set_status(trigger.submission_id, "FAILED", exit_code=127, error_type="JOB_ENTRYPOINT_COMMAND_ERROR")
    return trigger


def failure_of(world: World, trigger: RayTrainTrigger) -> Failure:
    with pytest.raises(RayJobFailed) as caught:
        world.resume(trigger)
    return caught.value.failure


def break_store(world: World, match: Match, error: Exception) -> list[str]:
    hit: list[str] = []

    def interfere(verb: str, key: str) -> None:
        if match(verb, key):
            hit.append(key)
            raise error

    world.bench.interfere = interfere
    return hit


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_store_that_breaks_does_not_replace_the_kind(world: World, fault: str, error: RayTrainError) -> None:
    trigger = failed_job(world)
    hit = break_store(world, FAULTS[fault], error)
    failure = failure_of(world, trigger)
    assert hit, "the fault was never met"
    assert (failure.kind, failure.is_retryable) == (FailureKind.CONFIG, False)
    assert "127" in failure.reason
    assert world.task.ti.xcoms["ray_train_failure"]["kind"] == "config"


@pytest.mark.parametrize("broken", ["checkpoint_lineage", "ray_train_failure"])
@pytest.mark.parametrize("error", [refused(500), TypeError("not JSON")])
def test_an_xcom_that_is_refused_does_not_replace_the_kind(
    world: World, monkeypatch: pytest.MonkeyPatch, broken: str, error: Exception
) -> None:
    trigger = failed_job(world)
    refusals: list[str] = []
    push = world.task.ti.xcom_push

    def refuse(key: str, value: object) -> None:
        if key == broken:
            refusals.append(key)
            raise error
        push(key, value)

    monkeypatch.setattr(world.task.ti, "xcom_push", refuse)
    assert failure_of(world, trigger).kind is FailureKind.CONFIG
    assert refusals
    other = {"checkpoint_lineage", "ray_train_failure"} - {broken}
    assert other <= set(world.task.ti.xcoms), "what can be shown is shown"


def test_without_faults_all_of_it_is_written(world: World) -> None:
    """What the tests above break is really there."""
    trigger = failed_job(world)
    assert failure_of(world, trigger).kind is FailureKind.CONFIG
    assert "late-owner-000001" in world.records.segments(ref(1, 1))
    assert world.records.collected(ref(1, 1)) is not None


@pytest.mark.parametrize(
    ("commits", "what_next"),
    [
        (1, "it goes on from the last committed checkpoint"),
        (0, "it begins again, since nothing is committed yet"),
    ],
)
def test_the_advice_promises_no_checkpoint_that_is_not_there(world: World, commits: int, what_next: str) -> None:
    trigger = world.defer()
    world.bench.commit(*[f"checkpoint_{i}" for i in range(commits)])
    world.server.set_status(trigger.submission_id, "STOPPED")
    with pytest.raises(RayJobFailed) as caught:
        world.resume(trigger)
    assert caught.value.failure.kind is FailureKind.STOPPED
    assert caught.value.change == f"clear the task: {what_next}"


def test_where_nobody_could_look_the_advice_says_if(world: World) -> None:
    trigger = world.defer()
    world.bench.commit("checkpoint_0")
    world.server.set_status(trigger.submission_id, "STOPPED")
    assert break_store(world, FAULTS["the owners for the lineage"], StoreUnreachable("away")) == []
    with pytest.raises(RayJobFailed) as caught:
        world.resume(trigger)
    assert caught.value.change == "clear the task: it goes on from the last committed checkpoint, if there is one"


def test_a_checkpoint_of_an_older_generation_is_none_to_go_on_from() -> None:
    old = {"state": "committed", "attempt": "g1/a1"}
    attempts = [{"ref": "g1/a1"}, {"ref": "g2/a1"}]
    assert not has_commit({"attempts": attempts, "checkpoints": [old]})
    assert not has_commit({"attempts": attempts, "checkpoints": [{"state": "pruned", "attempt": "g2/a1"}]})
    assert has_commit({"attempts": attempts, "checkpoints": [old, {"state": "committed", "attempt": "g2/a1"}]})
    assert not has_commit({"attempts": [], "checkpoints": []})


# --- decided again -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED"])
def test_an_attempt_that_is_not_the_newest_any_more_is_not_concluded(world: World, state: str) -> None:
    """Another process of this try went on to attempt 2: judging attempt 1 would publish an old result, or fail a live one."""
    trigger = world.defer()
    if state == "SUCCEEDED":
        world.succeed(trigger)
    else:
        world.server.set_status(trigger.submission_id, "FAILED", exit_code=127)
    second = world.job_id(2)
    claim = world.records.claim(ref(1, 1))
    assert claim is not None
    world.bench.claim(2, k=1, submission_id=second, session_name=claim.session_name)
    world.server.add_job(second, status="RUNNING")
    again = world.defer_again(trigger)
    assert (again.attempt, again.submission_id) == (2, second)
    assert second != job_id(1, 1)
    assert world.records.collected(ref(1, 1)) is None
    assert world.server.num_posts == 1
    assert not {"checkpoint_lineage", "ray_train_failure"} & set(world.task.ti.xcoms)
