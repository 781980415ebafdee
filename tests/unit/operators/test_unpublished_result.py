"""A training that was accepted in a try that failed before its result was out: a clear publishes it, and trains nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, TaskDeferred

from airflow_provider.core import layout
from airflow_provider.core.errors import StoreUnreachable, Superseded
from tests.support.experiment import ref
from tests.support.fake_airflow import refused
from tests.support.operator_run import World, running_world
from tests.support.records import collected


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_world(monkeypatch) as world:
        yield world


def finished_training(world: World) -> Any:
    trigger = world.defer()
    world.succeed(trigger)
    return trigger


def is_published(world: World) -> bool | None:
    stored = world.records.collected(ref(1, 1))
    assert stored is not None
    assert stored.record.accepted
    return stored.record.published


def xcoms_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(key: str, value: Any) -> None:
        if key == "checkpoint_lineage":
            raise refused(500)

    monkeypatch.setattr(world.task.ti, "xcom_push", refuse)


def airflow_has_replaced_the_process(world: World, _: pytest.MonkeyPatch) -> None:
    world.task.store.refusal = refused(404)


def the_bucket_is_away_at_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreUnreachable("The bucket is away")

    monkeypatch.setattr("airflow_provider.operators.session.mark_published", away)


@pytest.mark.parametrize(
    ("breaks", "error"),
    [
        (xcoms_are_refused, AirflowRuntimeError),
        (airflow_has_replaced_the_process, Superseded),
        (the_bucket_is_away_at_the_end, StoreUnreachable),
    ],
)
def test_a_clear_publishes_what_a_failed_try_had_only_accepted(
    world: World, breaks: Callable[[World, pytest.MonkeyPatch], None], error: type[Exception]
) -> None:
    """The task failed in its last try: who clears it wants the result of the days of training, not as many days again."""
    trigger = finished_training(world)
    with pytest.MonkeyPatch.context() as patches:
        breaks(world, patches)
        with pytest.raises(error):
            world.resume(trigger)
    assert is_published(world) is False
    world.task.store.refusal = None
    world.next_try(is_clear=True)
    result = world.operator().execute(world.task.context)
    assert (result["state"], result["generation"], world.server.num_posts) == ("success", 1, 1)
    assert is_published(world) is True


def test_the_next_clear_trains_anew(world: World) -> None:
    """Once the result is out, a clear is the wish for another training."""
    world.resume(finished_training(world))
    assert is_published(world) is True
    world.next_try(is_clear=True)
    with pytest.raises(TaskDeferred) as deferred:
        world.operator().execute(world.task.context)
    assert deferred.value.trigger.generation == 2  # type: ignore[attr-defined]


def test_what_an_older_release_accepted_counts_as_published(world: World) -> None:
    finished_training(world)
    world.bench.store.put_raw(layout.collected(1, 1), collected(accepted=True).body())
    world.next_try(is_clear=True)
    with pytest.raises(TaskDeferred) as deferred:
        world.operator().execute(world.task.context)
    assert deferred.value.trigger.generation == 2  # type: ignore[attr-defined]
