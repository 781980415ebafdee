"""A segment of records that can't be read costs what it told, not the training: the manifest is the log of what was committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from tests.support.experiment import ref
from tests.support.operator_run import World, running_world
from tests.support.records import outcome

TORN = [b"", b'{"schema_version": 1, "checkpoi', b'{"schema_version": 99}']
LOST = Failure(kind=FailureKind.INFRASTRUCTURE, reason="a node died")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_world(monkeypatch) as world:
        yield world


def tear(world: World, body: bytes, *, attempt: int = 1) -> None:
    key = layout.segment(1, attempt, "000001")
    assert world.bench.store.read(key) is not None
    world.bench.store.put_raw(key, body)


@pytest.mark.parametrize("body", TORN)
def test_a_retry_restores_beside_it(world: World, body: bytes) -> None:
    """The driver verifies without it too, and less closely."""
    trigger = world.defer()
    (name,) = world.bench.commit("checkpoint_0")
    failed = outcome("failed", failure=LOST, latest_checkpoint=name)
    world.end(world.server.jobs[trigger.submission_id], "FAILED", record=failed)
    tear(world, body)
    world.next_try()
    again = world.defer()
    assert again.attempt == 2
    claim = world.records.claim(ref(1, 2))
    assert claim is not None
    assert claim.checkpoint_seen == name


@pytest.mark.parametrize("body", TORN)
def test_a_finished_training_is_published_beside_it(world: World, body: bytes) -> None:
    trigger = world.defer()
    world.succeed(trigger, num_checkpoints=2)
    tear(world, body)
    result: dict[str, Any] = world.resume(trigger)
    assert (result["state"], result["new_checkpoints"]) == ("success", 2)
    assert result["latest_checkpoint"]["name"] == "g000001/attempts/000001/checkpoint_1"
    assert world.task.ti.xcoms["checkpoint_lineage"]["num_checkpoints"] == 2


def test_what_the_manifest_lists_is_recorded_again(world: World) -> None:
    """The late record stands in for the torn one."""
    trigger = world.defer()
    world.succeed(trigger)
    tear(world, b"")
    world.resume(trigger)
    late = world.records.segments_newest_first(ref(1, 1))
    assert [entry.checkpoint for entry in next(late).checkpoints] == ["attempts/000001/checkpoint_0"]
