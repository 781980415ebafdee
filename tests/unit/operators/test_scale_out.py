"""Many trainings of one DAG at once: mapped, in task groups, in overlapping and catch-up runs, with and without a date."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider.core.errors import ForeignExperiment
from airflow_provider.core.identity import TaskInstanceKey, experiment_uri
from tests.support.fake_airflow import FakeTask, FakeTaskInstance
from tests.support.memory_store import MemoryStore
from tests.support.operator_run import STORAGE, World, running_world
from tests.support.training_try import Bench

RUNS = (
    "scheduled__2026-11-28T00:00:00+00:00",  # catch-up makes many of these at once
    "scheduled__2026-11-29T00:00:00+00:00",
    "backfill__2026-11-28T00:00:00+00:00",
    "manual__2026-11-28T00:00:00+00:00",
    "manual__2026-11-28T00:00:00.000001+00:00_aB3x",  # no logical date: from run_after and a random part
    "asset_triggered__2026-11-28T00:00:00+00:00_Zz9k",
)
NewWorld = Callable[..., World]


@pytest.fixture
def new_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[NewWorld]:
    """A task instance on a cluster and a bucket that all of them share."""
    stores: dict[str, MemoryStore] = {}

    def store_of(uri: str, **_: Any) -> MemoryStore:
        return stores.setdefault(uri, MemoryStore(uri))

    with running_world(monkeypatch) as shared:
        for module in ("operators.session", "triggers.ray_train", "hooks.final_stop"):
            monkeypatch.setattr(f"airflow_provider.{module}.open_experiment", store_of)

        def new_world(*, name: str | None = None, **ti: Any) -> World:
            task = FakeTask(ti=FakeTaskInstance(**ti))
            key = TaskInstanceKey("d", task.ti.run_id, task.ti.task_id, task.ti.map_index)
            return World(shared.server, Bench(store_of(experiment_uri(STORAGE, key, experiment_name=name))), task)

        yield new_world


def finish(world: World, operator: Any = None) -> dict[str, Any]:
    trigger = world.defer(operator)
    world.succeed(trigger)
    result: dict[str, Any] = world.resume(trigger)
    return result


def test_runs_that_overlap_never_share_an_experiment_or_a_job(new_world: NewWorld) -> None:
    """Catch-up, backfill, by hand and by an asset, all live at once. None of them has a logical date in its context."""
    worlds = [new_world(run_id=run_id) for run_id in RUNS]
    assert not any("logical_date" in world.task.context for world in worlds)
    triggers = [world.defer() for world in worlds]
    assert len({trigger.experiment_uri for trigger in triggers}) == len(RUNS)
    assert len({trigger.submission_id for trigger in triggers}) == len(RUNS) == worlds[0].server.num_posts
    for world, trigger in zip(worlds, triggers, strict=True):
        world.succeed(trigger)
        assert world.resume(trigger)["experiment"] == trigger.experiment_uri


def test_map_indices_and_task_groups_have_experiments_of_their_own(new_world: NewWorld) -> None:
    """A mapped task, a task in two groups, and a task in a mapped group, where the index is the group's."""
    instances = [("train", i) for i in (-1, 0, 1, 2)] + [("a.train", -1), ("b.train", -1), ("a.train", 0)]
    triggers = [new_world(task_id=task, map_index=index).defer() for task, index in instances]
    assert len({trigger.experiment_uri for trigger in triggers}) == len(instances)
    assert len({trigger.submission_id for trigger in triggers}) == len(instances)


def test_clearing_one_index_touches_no_other(new_world: NewWorld) -> None:
    cleared, live, done = (new_world(map_index=index) for index in range(3))
    finish(cleared)
    finish(done)
    others = live.defer()
    live.server.set_status(others.submission_id, "RUNNING")  # a stop of it would show
    before = [(key, world.bench.store.read(key).body) for world in (live, done) for key in world.bench.written()]
    cleared.next_try(is_clear=True)
    again = cleared.defer()
    assert (again.generation, again.attempt) == (2, 1), "a clear after a success trains anew"
    after = [(key, world.bench.store.read(key).body) for world in (live, done) for key in world.bench.written()]
    assert after == before
    assert live.server.jobs[others.submission_id].status == "RUNNING"
    live.succeed(others)
    assert live.resume(others)["generation"] == 1


def test_a_shared_experiment_is_asked_for_and_still_has_one_owner(new_world: NewWorld) -> None:
    """Two overlapping runs with one `experiment_name`: the second is refused, whatever the first is doing."""
    first, second = (new_world(name="resnet", run_id=run_id) for run_id in RUNS[:2])
    first.defer(first.operator(experiment_name="resnet"))
    with pytest.raises(ForeignExperiment):
        second.operator(experiment_name="resnet").execute(second.task.context)
    assert first.server.num_posts == 1
