"""The trigger: one event whatever happens, a row without secrets, and a stop only by who owns the experiment."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk._shared.module_loading import import_string
from structlog.testing import capture_logs

from airflow_provider.core import layout
from airflow_provider.core.errors import (
    ClusterAuthFailed,
    ClusterRefused,
    ClusterUnreachable,
    InvalidConfig,
    NotARayDashboard,
    StoreUnreachable,
)
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.waiting import WaitLimits
from airflow_provider.hooks.ray import RayHook
from airflow_provider.triggers.ray_train import RayTrainTrigger
from tests.support.experiment import ref
from tests.support.fake_jobs_client import SESSION, FakeAsyncJobs, until
from tests.support.training_try import Bench

QUICK = WaitLimits(
    poll_interval_s=0.001,
    unreachable_timeout_s=0,
    unreachable_polls=2,
    lost_after_s=0,
    lost_polls=2,
    deadline_grace_s=0,
)
REFUSALS = [
    ClusterAuthFailed("403"),
    InvalidConfig("the certificate is unknown"),
    ClusterRefused("400"),
    NotARayDashboard("a page"),
    ClusterUnreachable("refused"),
]


class Scene:
    def __init__(self) -> None:
        self.bench = Bench()
        self.bench.own(1)
        self.bench.claim(1)
        self.jobs = FakeAsyncJobs(["RUNNING", "SUCCEEDED"])
        self.open_error: Exception | None = None
        self.task_state: Any = "failed"

    def trigger(self, **changes: Any) -> RayTrainTrigger:
        known: dict[str, Any] = {
            "conn_id": "ray_test",
            "aws_conn_id": "aws_test",
            "experiment_uri": "s3://models/x",
            "generation": 1,
            "attempt": 1,
            "k": 1,
            "submission_id": "job-1",
            "session_name": SESSION,
            "deadline": None,
            "limits": QUICK.model_dump(),
            "stream_logs": False,
        }
        return RayTrainTrigger(**{**known, **changes})

    @property
    def is_recorded(self) -> bool:
        return layout.stop(1, 1, 1) in self.bench.written()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()

    async def aclient(_: RayHook) -> FakeAsyncJobs:
        if scene.open_error is not None:
            raise scene.open_error
        return scene.jobs

    monkeypatch.setattr(RayHook, "aclient", aclient)

    async def task_state(_: object) -> str | None:
        if isinstance(scene.task_state, BaseException):
            raise scene.task_state
        return None if scene.task_state is None else str(scene.task_state)

    monkeypatch.setattr("airflow_provider.triggers.ray_train.read_task_state", task_state)
    monkeypatch.setattr("airflow_provider.triggers.ray_train.open_experiment", lambda *_, **__: scene.bench.store)
    return scene


async def events(trigger: RayTrainTrigger) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [event.payload async for event in trigger.run()]

    return await asyncio.wait_for(collect(), 20)


async def only_event(trigger: RayTrainTrigger) -> dict[str, Any]:
    found = await events(trigger)
    assert len(found) == 1
    assert json.loads(json.dumps(found[0])) == found[0]
    return found[0]


@pytest.mark.scenario("C67")
def test_the_row_is_json_without_secrets_and_makes_the_same_trigger_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_TEST", '{"conn_type": "ray", "host": "h", "password": "s3cret"}')
    deadline = datetime(2026, 12, 1, tzinfo=timezone.utc).isoformat()
    trigger = scene.trigger(deadline=deadline, log_position=7, stop_on_kill=False, stream_logs=True)
    path, row = trigger.serialize()
    text = json.dumps(row, allow_nan=False)
    assert "s3cret" not in text
    again = import_string(path)(**json.loads(text))
    assert again.serialize() == (path, row)
    assert (row["deadline"], row["log_position"], row["stop_on_kill"], row["k"]) == (deadline, 7, False, 1)


async def test_the_end_of_the_job_is_one_event_with_all_that_resuming_needs(scene: Scene) -> None:
    assert await only_event(scene.trigger()) == {
        "end": "ended",
        "reason": "the job is SUCCEEDED",
        "generation": 1,
        "attempt": 1,
        "k": 1,
        "submission_id": "job-1",
    }


@pytest.mark.parametrize(
    ("answers", "end"), [([None], "lost"), ([ClusterUnreachable("away")], "unreachable"), (["FAILED"], "ended")]
)
async def test_every_other_end_is_one_event_too(scene: Scene, answers: list[Any], end: str) -> None:
    scene.jobs = FakeAsyncJobs(answers)
    event = await only_event(scene.trigger())
    assert (event["end"], event["k"]) == (end, 1)
    assert not scene.is_recorded
    assert scene.jobs.stopped == []


async def test_a_deadline_stops_the_job_before_the_task_resumes(scene: Scene) -> None:
    scene.jobs = FakeAsyncJobs(["RUNNING"])
    past = datetime.now(timezone.utc) - timedelta(hours=1)
    event = await only_event(scene.trigger(deadline=past.isoformat()))
    assert event["end"] == "timeout"
    assert scene.bench.records.stops(ref(1, 1))[1].ends is FailureKind.TIMEOUT
    assert scene.jobs.stopped == ["job-1"]


@pytest.mark.parametrize("error", [StoreUnreachable("away"), RuntimeError("odd")])
async def test_a_stop_that_fails_does_not_hide_why_the_wait_ended(
    scene: Scene, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("airflow_provider.triggers.ray_train.record_stop", refuse)
    scene.jobs = FakeAsyncJobs(["RUNNING"])
    past = datetime.now(timezone.utc) - timedelta(hours=1)
    assert (await only_event(scene.trigger(deadline=past.isoformat())))["end"] == "timeout"


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("conn")])
async def test_an_exception_is_an_event_that_keeps_its_kind(scene: Scene, error: Exception) -> None:
    """Airflow would make a TaskDeferralError of it, which no retry policy can tell apart."""
    scene.open_error = error
    event = await only_event(scene.trigger())
    assert (event["end"], event["kind"], event["submission_id"]) == ("error", "infrastructure", "job-1")
    assert type(error).__name__ in event["reason"]


async def test_a_typed_error_beside_the_wait_keeps_its_own_kind(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidConfig("no such store")

    monkeypatch.setattr("airflow_provider.triggers.ray_train.open_experiment", refuse)
    event = await only_event(scene.trigger())
    assert (event["end"], event["kind"]) == ("error", "config")
    assert event["reason"] == "InvalidConfig: no such store."


@pytest.mark.parametrize("error", REFUSALS)
async def test_a_refusal_while_waiting_is_silence_and_only_the_rule_of_silence_ends_it(
    scene: Scene, error: Exception
) -> None:
    """A connection being edited, a token being rotated: the training behind them goes on."""
    scene.open_error = error
    event = await only_event(scene.trigger())
    assert (event["end"], event["submission_id"]) == ("unreachable", "job-1")
    assert "no answer in 2 polls" in event["reason"]
    assert "kind" not in event
    assert not scene.is_recorded
    assert scene.jobs.stopped == []


@pytest.mark.parametrize("changes", [{"limits": {"unknown": 1}}, {"deadline": "soon"}, {"generation": 0}])
async def test_a_row_of_another_release_is_an_event_too(scene: Scene, changes: dict[str, Any]) -> None:
    assert (await only_event(scene.trigger(**changes)))["end"] == "error"


@pytest.mark.parametrize("error", REFUSALS)
async def test_a_token_that_stays_refused_ends_as_unreachable_after_all_polls(scene: Scene, error: Exception) -> None:
    scene.jobs = FakeAsyncJobs([error])
    patient = QUICK.model_copy(update={"unreachable_polls": 10})
    event = await only_event(scene.trigger(limits=patient.model_dump()))
    assert (event["end"], scene.jobs.num_polls) == ("unreachable", 10)
    assert scene.jobs.is_closed


@pytest.mark.scenario("C61")
async def test_a_triggerer_that_stops_leaves_the_job_and_fires_nothing(scene: Scene) -> None:
    """Another triggerer starts the same row again."""
    scene.jobs = FakeAsyncJobs(["RUNNING"])
    task = asyncio.create_task(events(scene.trigger()))
    await until(lambda: scene.jobs.num_polls >= 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not scene.is_recorded
    assert scene.jobs.stopped == []
    assert scene.jobs.is_closed


async def test_a_cancellation_keeps_its_message_whatever_the_libraries_below_make_of_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow calls `on_kill` for one message only; a request under way raised a cancellation of its own in 2 of 100."""
    trigger, ended = scene.trigger(), asyncio.Event()

    async def wait() -> dict[str, Any]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise asyncio.CancelledError from None
        raise AssertionError

    async def follow() -> None:
        async for _ in trigger.run():
            raise AssertionError

    monkeypatch.setattr(trigger, "_wait", wait)
    task = asyncio.create_task(follow())
    await asyncio.sleep(0.01)
    task.cancel("a person's wish")
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.args == ("a person's wish",)
    assert ended.is_set(), "the wait is over before the trigger is"


@pytest.mark.scenario("C61")
async def test_cleanup_leaves_the_job_too(scene: Scene) -> None:
    await scene.trigger().cleanup()
    assert not scene.is_recorded
    assert scene.jobs.stopped == []


@pytest.mark.scenario("C60")
@pytest.mark.parametrize("state", ["failed", "success", None, "scheduled", "running"])
async def test_on_kill_stops_the_job_of_the_newest_owner(scene: Scene, state: str | None) -> None:
    """None: cleared, and no next try yet that could stop it."""
    scene.task_state = state
    await scene.trigger().on_kill()
    assert scene.is_recorded
    assert scene.jobs.stopped == ["job-1"]
    assert scene.jobs.is_closed


@pytest.mark.scenario("C37")
async def test_on_kill_of_an_older_try_stops_nothing(scene: Scene) -> None:
    """After a clear the new try's `execute` runs before the old trigger's `on_kill`: 6 times of 6 on a real Airflow."""
    scene.bench.own(2)
    await scene.trigger().on_kill()
    assert not scene.is_recorded
    assert scene.jobs.stopped == []


@pytest.mark.scenario("C61")
@pytest.mark.parametrize("state", ["deferred", LookupError("no task instance"), OSError("away")])
async def test_on_kill_of_a_trigger_that_another_triggerer_took_over_stops_nothing(scene: Scene, state: Any) -> None:
    """A triggerer that thaws ends the triggers that were taken from it, as if a person had wished it: the job is healthy."""
    scene.task_state = state
    await scene.trigger().on_kill()
    assert not scene.is_recorded
    assert scene.jobs.stopped == []


async def test_on_kill_with_unreadable_owners_stops_nothing(scene: Scene) -> None:
    scene.bench.store.fail_call(1)
    await scene.trigger().on_kill()
    assert scene.bench.store.fired
    assert scene.jobs.stopped == []


async def test_on_kill_after_the_event_does_nothing(scene: Scene) -> None:
    """The event is on its way: what the job did is for the task to collect."""
    trigger = scene.trigger()
    await only_event(trigger)
    await trigger.on_kill()
    assert not scene.is_recorded
    assert scene.jobs.stopped == []


async def test_on_kill_can_be_switched_off(scene: Scene) -> None:
    await scene.trigger(stop_on_kill=False).on_kill()
    assert not scene.is_recorded


async def test_a_cluster_that_is_away_leaves_the_record_for_the_driver(scene: Scene) -> None:
    scene.open_error = ClusterUnreachable("away")
    await scene.trigger().on_kill()
    assert scene.is_recorded


@pytest.mark.parametrize("stream_logs", [True, False])
async def test_each_log_line_reaches_the_task_log_once(scene: Scene, stream_logs: bool) -> None:
    scene.jobs = FakeAsyncJobs(["RUNNING", "RUNNING", "SUCCEEDED"])
    scene.jobs.lines = ("epoch 0", "epoch 1")
    with capture_logs() as logs:
        await only_event(scene.trigger(stream_logs=stream_logs))
    lines = [entry["event"] for entry in logs if entry["event"].startswith("epoch")]
    assert lines == (["epoch 0", "epoch 1"] if stream_logs else [])


def test_the_trigger_runs_in_airflows_own_classes(scene: Scene) -> None:
    from airflow.triggers.base import BaseTrigger

    assert isinstance(scene.trigger(), BaseTrigger)
    assert RayTrainTrigger.on_kill is not BaseTrigger.on_kill
