"""The sensor as a worker runs it: defers or blocks, returns a result, and ends differently for different reasons."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
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
from tests.support.decisions import decided
from tests.support.sensor_world import URI, Ends, World, fail, succeed, train

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


@pytest.mark.parametrize("timeout", [1e12, timedelta(days=4_000_000)])
def test_a_time_out_that_no_date_reaches_is_as_good_as_none(world: World, timeout: Any) -> None:
    deadline = world.defer(timeout=timeout).deadline
    assert deadline is not None
    assert datetime.fromisoformat(deadline) > datetime.now(timezone.utc) + timedelta(days=3000)
