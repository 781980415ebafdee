"""The sensor's trigger: one event whatever happens, a row without secrets, a deadline that holds, and never a blocked loop."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from structlog.testing import capture_logs

from airflow_provider.core.errors import (
    BucketNotFound,
    InvalidConfig,
    RayTrainError,
    RecordUnreadable,
    StoreCredentialsExpired,
    StorePermissionDenied,
    StoreThrottled,
    StoreUnreachable,
)
from airflow_provider.core.sensor_event import DAMAGED_LOOKS, SensorEnd, SensorEvent
from airflow_provider.triggers.ray_train_sensor import RayTrainSensorTrigger
from tests.support.damage import SECRET
from tests.support.fake_jobs_client import until
from tests.support.watched_experiment import URI, WatchedExperiment, failure


class Scene:
    def __init__(self) -> None:
        self.watched = WatchedExperiment()
        self.looks = 0
        self.before_look: Callable[[int], None] = lambda _: None
        """Called with the number of the look, from 1; may raise."""
        self.threads: set[int] = set()

    def trigger(self, until: str = "end", **changes: Any) -> RayTrainSensorTrigger:
        spec = {"until": until, **changes.pop("spec", {})}
        known: dict[str, Any] = {
            "experiment_uri": URI,
            "aws_conn_id": "aws_test",
            "storage_path": None,
            "spec": spec,
            "deadline": None,
            "poke_interval": 0.0,
            "unreachable_timeout_s": 60.0,
        }
        return RayTrainSensorTrigger(**{**known, **changes})


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()
    monkeypatch.setattr("airflow_provider.triggers.ray_train_sensor._LEAST_PAUSE_S", 0.001)

    def note(verb: str, key: str, _: int) -> None:
        if (verb, key) == ("list_folder", "g"):  # each look begins with it
            scene.looks += 1
            scene.threads.add(threading.get_ident())
            scene.before_look(scene.looks)

    scene.watched.store.before_call = note
    monkeypatch.setattr(
        "airflow_provider.triggers.experiment_waiter.open_experiment", lambda *_, **__: scene.watched.store
    )
    return scene


async def events(trigger: RayTrainSensorTrigger) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [event.payload async for event in trigger.run()]

    return await asyncio.wait_for(collect(), 20)


async def only_event(trigger: RayTrainSensorTrigger) -> SensorEvent:
    (found,) = await events(trigger)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return SensorEvent.parse(found)


def soon(seconds: float = 0.05) -> str:
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat()


@pytest.mark.scenario("C67")
def test_the_row_is_small_json_without_secrets_and_makes_the_same_trigger_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AWS_TEST", json.dumps({"conn_type": "aws", "password": SECRET}))
    trigger = scene.trigger("loss < 0.3", deadline=soon(), storage_path="/shared")
    path, row = trigger.serialize()
    text = json.dumps(row, allow_nan=False)
    assert SECRET not in text
    assert len(text) < 2_000
    again = import_string(path)(**json.loads(text))
    assert again.serialize() == (path, row)


async def test_it_follows_a_training_to_its_end_and_tells_changes_only(scene: Scene) -> None:
    def train(look: int) -> None:
        if look == 3:
            scene.watched.claim()
        if look in (5, 7):
            scene.watched.commit({"epoch": look})
        if look == 9:
            scene.watched.succeed()

    scene.before_look = train
    with capture_logs() as logs:
        event = await only_event(scene.trigger())
    assert event.end is SensorEnd.DONE
    assert event.result is not None
    assert event.result["checkpoint"]["metrics"] == {"epoch": 7}
    told = [entry["event"] for entry in logs if entry["event"].startswith("waiting")]
    assert [t.partition(":")[2].strip()[:16] for t in told] == [
        "there is no expe",
        "g1/a1 trains; 0 ",
        "g1/a1 trains; 1 ",
        "g1/a1 trains; 2 ",
    ]


async def test_a_condition_ends_it_while_the_training_goes_on(scene: Scene) -> None:
    scene.before_look = lambda look: None if look == 1 else _commit(scene, 1.0 / look)
    event = await only_event(scene.trigger("loss < 0.3"))
    assert event.result is not None
    assert (event.result["state"], event.result["checkpoint"]["metrics"]["loss"]) == ("running", 0.25)


def _commit(scene: Scene, loss: float) -> None:
    scene.watched.claim()
    scene.watched.commit({"loss": loss})


async def test_a_failed_training_is_an_event_with_its_failure(scene: Scene) -> None:
    scene.watched.claim()
    scene.watched.end("failed", failure=failure("user", "KeyError: labels"))
    event = await only_event(scene.trigger())
    assert (event.end, event.why, event.failure) == (
        SensorEnd.FAILED,
        "training_failed",
        failure("user", "KeyError: labels"),
    )


async def test_the_first_look_is_the_baseline_where_the_row_has_none(scene: Scene) -> None:
    """The worker could not read the store when the wait began."""
    _commit(scene, 1.0)
    scene.before_look = lambda look: _commit(scene, 0.5) if look == 3 else None
    event = await only_event(scene.trigger("checkpoint"))
    assert scene.looks == 3
    assert event.result is not None
    assert event.result["checkpoint"]["metrics"]["loss"] == 0.5


async def test_the_deadline_ends_the_wait_with_what_was_seen_last(scene: Scene) -> None:
    _commit(scene, 0.5)
    event = await only_event(scene.trigger("loss < 0.1", deadline=soon()))
    assert (event.end, event.is_absent) == (SensorEnd.TIMEOUT, False)
    assert "lowest 0.5" in event.reason


async def test_an_experiment_that_never_came_is_said_so(scene: Scene) -> None:
    event = await only_event(scene.trigger(deadline=soon()))
    assert (event.end, event.is_absent) == (SensorEnd.TIMEOUT, True)


async def test_the_last_look_comes_at_the_deadline_and_may_still_find_it(scene: Scene) -> None:
    """A long interval must not make the wait end early, nor miss what came meanwhile."""
    begin = time.monotonic()
    scene.before_look = lambda look: None if look == 1 else (_commit(scene, 0.05), scene.watched.succeed())[0]
    event = await only_event(scene.trigger(deadline=soon(0.3), poke_interval=3600.0))
    assert event.end is SensorEnd.DONE
    assert time.monotonic() - begin > 0.2


async def test_a_deadline_that_passed_while_no_triggerer_ran_still_looks_once(scene: Scene) -> None:
    _commit(scene, 0.05)
    scene.watched.succeed()
    assert (await only_event(scene.trigger(deadline=soon(-3600)))).end is SensorEnd.DONE


# --- a store that can't be read ------------------------------------------------------------------------------------------


def failing(error: Exception, *, looks: int) -> Callable[[int], None]:
    def fail(look: int) -> None:
        if look <= looks:
            raise error

    return fail


AIRFLOW_AWAY = AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))
PASSING = [
    StoreUnreachable("away"),
    StoreThrottled("slow down"),
    StoreCredentialsExpired("expired"),
    AIRFLOW_AWAY,
    OSError("broken pipe"),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda e: type(e).__name__)
async def test_trouble_that_passes_is_borne(scene: Scene, error: Exception) -> None:
    _commit(scene, 0.05)
    scene.watched.succeed()
    scene.before_look = failing(error, looks=5)
    with capture_logs() as logs:
        assert (await only_event(scene.trigger())).end is SensorEnd.DONE
    assert scene.looks == 6
    told = [entry["event"] for entry in logs if "can't be read" in entry["event"]]
    assert len(told) == 1, "once, not at each look"


@pytest.mark.parametrize("error", [*PASSING[:3]], ids=lambda e: type(e).__name__)
async def test_trouble_that_lasts_ends_typed_and_is_never_a_missing_experiment(
    scene: Scene, error: RayTrainError
) -> None:
    scene.before_look = failing(error, looks=10**6)
    event = await only_event(scene.trigger(unreachable_timeout_s=0.05, spec={"missing": "fail"}))
    assert event.end is SensorEnd.ERROR
    assert event.error is not None
    again = event.error.rebuilt()
    assert type(again) is type(error)
    assert again.failure.is_retryable


@pytest.mark.parametrize(
    "error", [StorePermissionDenied("403", change="allow it"), BucketNotFound("gone"), InvalidConfig("no")]
)
async def test_a_refusal_ends_the_wait_at_once_with_its_type(scene: Scene, error: RayTrainError) -> None:
    scene.before_look = failing(error, looks=10**6)
    event = await only_event(scene.trigger())
    assert scene.looks == 1
    assert event.error is not None
    again = event.error.rebuilt()
    assert (type(again), str(again)) == (type(error), str(error))
    assert not again.failure.is_retryable


async def test_a_damaged_record_is_looked_at_again_before_it_ends_the_wait(scene: Scene) -> None:
    """On a shared directory Ray writes its manifest in place: a reader can meet half of it."""
    _commit(scene, 0.05)
    scene.watched.succeed()
    scene.before_look = failing(RecordUnreadable("torn"), looks=DAMAGED_LOOKS - 1)
    assert (await only_event(scene.trigger())).end is SensorEnd.DONE
    scene.looks, scene.before_look = 0, failing(RecordUnreadable("torn"), looks=10**6)
    event = await only_event(scene.trigger())
    assert scene.looks == DAMAGED_LOOKS
    assert event.error is not None
    assert isinstance(event.error.rebuilt(), RecordUnreadable)


async def test_without_a_limit_everything_is_borne_until_the_deadline(scene: Scene) -> None:
    """`silent_fail`."""
    scene.before_look = failing(StorePermissionDenied("403"), looks=10**6)
    event = await only_event(scene.trigger(unreachable_timeout_s=None, deadline=soon()))
    assert (event.end, event.is_absent) == (SensorEnd.TIMEOUT, False), "not read is not absent"
    assert "403" in event.reason


async def test_what_was_absent_and_then_could_not_be_read_is_no_missing_experiment(scene: Scene) -> None:
    scene.before_look = lambda look: failing(StoreUnreachable("away"), looks=10**6)(look) if look > 1 else None
    event = await only_event(scene.trigger(deadline=soon()))
    assert (event.end, event.is_absent) == (SensorEnd.TIMEOUT, False)
    assert "away" in event.reason


# --- the process edge ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError(f"a bug with password={SECRET}"), KeyError("x")])
async def test_a_bug_is_one_event_without_secrets(scene: Scene, error: Exception) -> None:
    scene.before_look = failing(error, looks=1)
    event = await only_event(scene.trigger())
    assert event.end is SensorEnd.ERROR
    assert SECRET not in event.model_dump_json()
    assert event.error is not None
    assert type(error).__name__ in str(event.error.rebuilt())


@pytest.mark.parametrize(
    "changes",
    [{"spec": {"unknown": 1}}, {"deadline": "soon"}, {"spec": {"missing": "maybe"}}, {"spec": {"until": "a <"}}],
)
async def test_a_row_of_another_release_is_an_event_too(scene: Scene, changes: dict[str, Any]) -> None:
    assert (await only_event(scene.trigger(**changes))).end is SensorEnd.ERROR


async def test_the_store_is_never_read_in_the_triggerers_loop(scene: Scene) -> None:
    """A store that hangs holds a thread; a thousand other triggers go on."""
    release = threading.Event()
    scene.before_look = lambda _: release.wait(10) and None
    task = asyncio.create_task(only_event(scene.trigger(deadline=soon())))
    ticks = 0
    for _ in range(20):
        await asyncio.sleep(0.01)
        ticks += 1
    assert (ticks, task.done()) == (20, False)
    release.set()
    assert (await task).end is SensorEnd.TIMEOUT
    assert threading.get_ident() not in scene.threads


async def test_a_triggerer_that_stops_fires_nothing(scene: Scene) -> None:
    task = asyncio.create_task(events(scene.trigger(poke_interval=0.01)))
    await until(lambda: scene.looks >= 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
