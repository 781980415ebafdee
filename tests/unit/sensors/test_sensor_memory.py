"""What a wait carries over its deferral, its tries and its pokes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowRescheduleException,
)

from airflow_provider.core.errors import StorePermissionDenied, StoreUnreachable
from airflow_provider.sensors.errors import (
    ConditionNotMet,
    ExperimentMissing,
    ExperimentNeverCame,
    TrainingFailed,
    WaitTimedOut,
)
from tests.support.sensor_world import World, train


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
