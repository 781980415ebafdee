"""The sensor as a worker runs it: defers or blocks, returns a result, and ends differently for different reasons."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider.core.errors import RayTrainError, StorePermissionDenied, StoreUnreachable
from airflow_provider.core.failure import FailureKind
from airflow_provider.sensors.errors import (
    ConditionNotMet,
    ExperimentMissing,
    ExperimentNeverCame,
    MetricMissing,
    TrainingFailed,
    WaitTimedOut,
)
from airflow_provider.sensors.ray_train import RayTrainSensor
from airflow_provider.triggers.ray_train_sensor import RayTrainSensorTrigger
from tests.support.decisions import decided
from tests.support.fake_airflow import FakeTask
from tests.support.watched_experiment import WatchedExperiment, failure

URI = "s3://models/churn"
Ends = Callable[[WatchedExperiment], None]


class World:
    def __init__(self) -> None:
        self.watched = WatchedExperiment(URI)
        self.task = FakeTask()
        self.opened: list[str] = []
        self.before_look: Callable[[int], None] = lambda _: None
        self.looks = 0

    def sensor(self, **changes: Any) -> RayTrainSensor:
        known: dict[str, Any] = {"task_id": "wait", "poke_interval": 0.01, "timeout": 5}
        if "external_task_id" not in changes:
            known["experiment"] = URI
        return RayTrainSensor(**{**known, **changes})

    def execute(self, **changes: Any) -> Any:
        return self.sensor(**changes).execute(self.task.context)

    def defer(self, **changes: Any) -> RayTrainSensorTrigger:
        with pytest.raises(TaskDeferred) as deferred:
            self.execute(**changes)
        assert deferred.value.method_name == "execute_complete"
        trigger = deferred.value.trigger
        assert isinstance(trigger, RayTrainSensorTrigger)
        return trigger

    def run(self, *, deferrable: bool = True, **changes: Any) -> Any:
        """To the end, as Airflow does: deferred over the trigger and its event, or blocking."""
        if not deferrable:
            return self.execute(deferrable=False, **changes)
        with pytest.raises(TaskDeferred) as deferred:
            self.execute(**changes)
        path, row = deferred.value.trigger.serialize()
        assert path.endswith("RayTrainSensorTrigger")

        async def fire() -> Any:
            return [event.payload async for event in RayTrainSensorTrigger(**json.loads(json.dumps(row))).run()]

        (payload,) = asyncio.run(asyncio.wait_for(fire(), 20))
        kwargs = {"event": json.loads(json.dumps(payload))}
        return self.sensor(**changes).resume_execution("execute_complete", kwargs, self.task.context)

    def later(self, change: Ends, *, at_look: int = 2) -> None:
        """What happens to the training right before a look."""

        def before(look: int) -> None:
            if look == at_look:
                change(self.watched)

        self.before_look = before


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr("airflow_provider.triggers.ray_train_sensor._LEAST_PAUSE_S", 0.01)

    def opened(uri: str, **_: Any) -> Any:
        world.opened.append(uri)
        return world.watched.store

    def note(verb: str, key: str, _: int) -> None:
        if (verb, key) == ("list_folder", "g"):
            world.looks += 1
            world.before_look(world.looks)

    world.watched.store.before_call = note
    monkeypatch.setattr("airflow_provider.triggers.experiment_waiter.open_experiment", opened)
    return world


def train(watched: WatchedExperiment) -> None:
    watched.claim()
    watched.commit({"epoch": 0, "loss": 0.5}, {"epoch": 1, "loss": 0.4})


def fail(watched: WatchedExperiment) -> None:
    train(watched)
    watched.end("failed", failure=failure("user", "KeyError: labels"))


def succeed(watched: WatchedExperiment) -> None:
    train(watched)
    watched.succeed()


both_modes = pytest.mark.parametrize("deferrable", [True, False])


# --- results -----------------------------------------------------------------------------------------------------------


def test_what_is_there_already_needs_no_deferral(world: World) -> None:
    succeed(world.watched)
    result = world.execute()
    assert (result["state"], result["latest_checkpoint"]["metrics"]["epoch"]) == ("success", 1)
    assert world.looks == 1


@both_modes
def test_it_waits_for_the_end(world: World, deferrable: bool) -> None:
    world.later(succeed)
    result = world.run(deferrable=deferrable)
    assert (result["state"], result["experiment"], result["checkpoint"]["metrics"]["epoch"]) == ("success", URI, 1)


@both_modes
def test_it_waits_for_a_condition(world: World, deferrable: bool) -> None:
    train(world.watched)
    world.later(lambda watched: watched.commit({"epoch": 2, "loss": 0.2}))
    result = world.run(deferrable=deferrable, until="loss < 0.3")
    assert (result["state"], result["checkpoint"]["metrics"]["loss"], result["progress"]) == (
        "running",
        0.2,
        {"epoch": 2},
    )


@both_modes
def test_it_waits_for_the_next_checkpoint(world: World, deferrable: bool) -> None:
    train(world.watched)
    world.later(lambda watched: watched.commit({"epoch": 2, "loss": 0.45}))
    result = world.run(deferrable=deferrable, until="checkpoint")
    assert result["checkpoint"]["metrics"]["epoch"] == 2


def test_the_next_checkpoint_since_a_result(world: World) -> None:
    train(world.watched)
    first = world.execute(until="loss < 1")
    assert world.execute(until="checkpoint", since="g000001/attempts/000001/checkpoint_000000")["progress"] == {
        "epoch": 1
    }
    assert world.defer(until="checkpoint", since=first).spec["baseline"]["checkpoint"] == first["checkpoint"]["name"]


def test_it_never_writes_to_the_bucket(world: World) -> None:
    succeed(world.watched)
    verbs: set[str] = set()
    world.watched.store.before_call = lambda verb, _key, _number: verbs.add(verb)
    world.execute()
    assert verbs <= {"read", "list", "list_folder"}


# --- what is waited for ----------------------------------------------------------------------------------------------------


def test_a_task_of_another_dag_has_the_operators_path(world: World) -> None:
    from airflow_provider.core.identity import TaskInstanceKey, experiment_uri

    where = {"storage_path": "s3://models/x", "external_task_id": "train"}
    world.defer(**where, external_dag_id="nightly", external_run_id="r1", external_map_index="2")
    world.defer(**where)
    ti = world.task.ti
    assert world.opened == [
        experiment_uri("s3://models/x", TaskInstanceKey("nightly", "r1", "train", 2)),
        experiment_uri("s3://models/x", TaskInstanceKey(ti.dag_id, ti.run_id, "train")),
    ]


@pytest.mark.parametrize("given", [{"experiment": URI, "state": "success"}, f"{URI}/", URI])
def test_an_xcom_or_a_path_names_the_experiment(world: World, given: Any) -> None:
    world.defer(experiment=given)
    assert world.opened == [URI]


def test_a_result_of_a_training_on_a_shared_disk_names_it_too(world: World) -> None:
    assert world.defer(experiment={"experiment": "file:///shared/models/x"}).storage_path == "/shared"
    assert world.opened == ["/shared/models/x"]


# --- ends -------------------------------------------------------------------------------------------------------------------

ENDS: dict[str, tuple[Ends, dict[str, Any], type[RayTrainError], str, str]] = {
    "failed": (fail, {}, TrainingFailed, "training_failed", "KeyError: labels"),
    "not met": (succeed, {"until": "loss < 0.1"}, ConditionNotMet, "not_met", "lowest 0.4"),
    "no metric": (succeed, {"until": "los < 0.1"}, MetricMissing, "no_metric", "epoch, loss"),
    "time-out": (train, {"timeout": 0.1}, WaitTimedOut, "timeout", "g1/a1 trains"),
    "never came": (lambda _: None, {"timeout": 0.1}, ExperimentNeverCame, "never_came", "no experiment"),
}
each_end = pytest.mark.parametrize("end", ENDS)


@both_modes
@each_end
def test_each_end_has_a_type_of_its_own_a_reason_and_an_xcom(world: World, end: str, deferrable: bool) -> None:
    change, options, error, name, words = ENDS[end]
    world.later(change)
    with pytest.raises(error) as caught:
        world.run(deferrable=deferrable, **options)
    assert type(caught.value) is error
    assert words in str(caught.value)
    assert world.task.ti.xcoms["ray_train_wait"]["end"] == name
    assert words in world.task.ti.xcoms["ray_train_wait"]["reason"]
    assert world.task.ti.xcoms["ray_train_wait"]["experiment"] == URI
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (type(again), str(again)) == (error, str(caught.value))


@both_modes
def test_a_missing_experiment_may_fail_at_once(world: World, deferrable: bool) -> None:
    with pytest.raises(ExperimentMissing, match="no experiment"):
        world.execute(deferrable=deferrable, missing="fail")
    assert (world.looks, world.task.ti.xcoms["ray_train_wait"]["end"]) == (1, "missing")


def test_a_failed_training_carries_its_kind(world: World) -> None:
    fail(world.watched)
    with pytest.raises(TrainingFailed) as caught:
        world.execute()
    assert caught.value.failure.kind is FailureKind.USER
    assert world.task.ti.xcoms["ray_train_failure"]["kind"] == "user"


def test_airflow_knows_these_ends(world: World) -> None:
    """No retry would read anything else: Airflow fails at once on these, and counts a time-out as a sensor's."""
    for error in (TrainingFailed, ExperimentMissing, ConditionNotMet, MetricMissing):
        assert issubclass(error, AirflowFailException)
    for error in (WaitTimedOut, ExperimentNeverCame):
        assert issubclass(error, AirflowSensorTimeout)


@both_modes
@each_end
def test_soft_fail_skips_on_each_end(world: World, end: str, deferrable: bool) -> None:
    change, options, _, name, _ = ENDS[end]
    world.later(change)
    with pytest.raises(AirflowSkipException):
        world.run(deferrable=deferrable, soft_fail=True, **options)
    assert world.task.ti.xcoms["ray_train_wait"]["end"] == name


@both_modes
def test_soft_fail_does_not_hide_a_refusal_but_never_fail_does(world: World, deferrable: bool) -> None:
    def refuse(_: int) -> None:
        raise StorePermissionDenied("403")

    world.before_look = refuse
    with pytest.raises(StorePermissionDenied) as caught:
        world.execute(deferrable=deferrable, soft_fail=True)
    assert decided(caught.value).action.value == "fail", "not retried"
    assert world.task.ti.xcoms["ray_train_wait"]["end"] == "error"
    with pytest.raises(AirflowSkipException):
        world.execute(deferrable=deferrable, never_fail=True)


@both_modes
def test_a_refusal_during_the_wait_keeps_its_type(world: World, deferrable: bool) -> None:
    def refuse(look: int) -> None:
        if look > 1:
            raise StorePermissionDenied("403")

    world.before_look = refuse
    with pytest.raises(StorePermissionDenied):
        world.run(deferrable=deferrable, soft_fail=True)


@both_modes
def test_a_store_that_is_away_for_a_while_is_borne(world: World, deferrable: bool) -> None:
    def away(look: int) -> None:
        if look <= 3:
            raise StoreUnreachable("away")

    world.before_look = away
    succeed(world.watched)
    assert world.run(deferrable=deferrable)["state"] == "success"


def test_an_event_that_airflow_mangled_is_a_typed_error(world: World) -> None:
    with pytest.raises(RayTrainError, match="event can't be read"):
        world.sensor().execute_complete(world.task.context, {"end": "odd"})


def test_a_trigger_that_was_cut_off_by_airflow_is_a_time_out(world: World) -> None:
    """No triggerer ran: the scheduler ends the deferral, and no event ever comes."""
    kwargs = {"error": "Trigger timeout"}
    with pytest.raises(AirflowSensorTimeout):
        world.sensor().resume_execution("__fail__", kwargs, world.task.context)


# --- deferral and memory ----------------------------------------------------------------------------------------------------


def test_the_deadline_is_absolute_and_the_execution_timeout_holds_while_deferred(world: World) -> None:
    for options, limit in (({"timeout": 600}, 600), ({"timeout": 600, "execution_timeout": timedelta(seconds=60)}, 60)):
        trigger = world.defer(**options)
        assert trigger.deadline is not None
        left = datetime.fromisoformat(trigger.deadline) - datetime.now(timezone.utc)
        assert limit - 5 < left.total_seconds() <= limit
        event = {"end": "timeout", "reason": "g1/a1 trains"}
        with pytest.raises(WaitTimedOut, match=rf"within {limit} s \({list(options)[-1]}\)"):
            world.sensor(**options).execute_complete(world.task.context, event)


def test_a_retry_goes_on_with_what_was_old_when_the_wait_began(world: World) -> None:
    """A checkpoint committed while the sensor's worker was lost must not count as old."""
    train(world.watched)
    before = world.defer(until="checkpoint").spec["baseline"]
    world.watched.commit({"epoch": 2})
    world.task.ti.try_number += 1
    assert world.execute(until="checkpoint")["progress"] == {"epoch": 2}
    world.task.ti.max_tries += 1  # a clear
    after = world.defer(until="checkpoint").spec["baseline"]
    assert (before["checkpoint"][-1], after["checkpoint"][-1]) == ("1", "2")


def test_a_memory_of_another_experiment_or_release_is_none(world: World) -> None:
    train(world.watched)
    world.defer(until="checkpoint")
    kept = dict(world.task.store.values["ray_train_wait"])
    world.watched.commit({"epoch": 2})
    for changes in ({"experiment": "s3://models/other"}, {"wait": "odd"}, {"baseline": {"k": 1}}):
        world.task.store.values["ray_train_wait"] = kept | changes
        assert world.defer(until="checkpoint").spec["baseline"]["checkpoint"].endswith("2")


def test_nothing_is_remembered_where_nothing_needs_it(world: World) -> None:
    world.defer()
    assert world.task.store.sets == []


def test_rescheduled_pokes_keep_baseline_and_trouble_over_processes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = datetime.now(timezone.utc)
    monkeypatch.setattr(type(world.task.ti), "get_first_reschedule_date", lambda *_: first, raising=False)
    options = {"deferrable": False, "mode": "reschedule", "until": "checkpoint", "timeout": 60}

    def poke() -> Any:
        with pytest.raises(AirflowRescheduleException):
            world.execute(**options)

    train(world.watched)
    poke()
    world.before_look = lambda _: (_ for _ in ()).throw(StoreUnreachable("away"))  # type: ignore[assignment]
    poke()
    poke()
    assert world.task.store.values["ray_train_wait"]["unreadable_looks"] == 2
    with pytest.raises(StoreUnreachable):
        world.execute(**options, unreachable_timeout_s=1e-6)
    world.before_look = lambda _: None
    poke()
    assert world.task.store.values["ray_train_wait"]["unreadable_since"] is None
    world.watched.commit({"epoch": 2})
    assert world.execute(**options)["progress"] == {"epoch": 2}


@pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
def test_a_poke_that_comes_later_is_no_failure_to_skip(
    world: World, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    first = datetime.now(timezone.utc)
    monkeypatch.setattr(type(world.task.ti), "get_first_reschedule_date", lambda *_: first, raising=False)
    with pytest.raises(AirflowRescheduleException):
        world.execute(deferrable=False, mode="reschedule", timeout=60, **{option: True})
    assert "ray_train_wait" not in world.task.ti.xcoms


def test_reschedule_times_out_by_airflows_own_clock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = datetime.now(timezone.utc) - timedelta(hours=1)
    monkeypatch.setattr(type(world.task.ti), "get_first_reschedule_date", lambda *_: first, raising=False)
    with pytest.raises(ExperimentNeverCame):
        world.execute(deferrable=False, mode="reschedule", timeout=60)


def test_silent_fail_bears_everything_until_the_time_out(world: World) -> None:
    def refuse(_: int) -> None:
        raise StorePermissionDenied("403")

    world.before_look = refuse
    assert world.defer(silent_fail=True).unreachable_timeout_s is None
    with pytest.raises(WaitTimedOut, match="403"):
        world.execute(deferrable=False, silent_fail=True, timeout=0.1)


def test_a_missing_baseline_comes_from_the_triggers_first_look(world: World) -> None:
    def away(look: int) -> None:
        if look == 1:
            raise StoreUnreachable("away")

    train(world.watched)
    world.before_look = away
    assert world.defer(until="checkpoint").spec["baseline"] is None
    assert world.task.store.sets == []


def test_every_error_is_known_to_airflow_or_typed(world: World) -> None:
    """`soft_fail` of Airflow's own code looks for AirflowException."""
    assert all(
        issubclass(e, AirflowException) for e in (TrainingFailed, WaitTimedOut, ExperimentMissing, ConditionNotMet)
    )
