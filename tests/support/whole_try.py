"""A whole try over HTTP whose job behaves as a tape says: execute, defer, the trigger, the resume, and its error."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.core.errors import RayJobFailed
from airflow_provider.triggers.ray_train import RayTrainTrigger
from tests.support.operator_run import World
from tests.support.tape import Tape


def try_by(world: World, tape: Tape, **parameters: Any) -> RayTrainTrigger:
    """A try up to its deferral; from the POST on, the cluster answers as the tape does."""
    world.server.driver = lambda job: tape.follow(world.server, job)
    return world.defer(world.operator(**parameters))


def failed_try(world: World, tape: Tape) -> RayJobFailed:
    """The error that ends the try."""
    event = world.follow(try_by(world, tape))
    with pytest.raises(RayJobFailed) as caught:
        world.complete(event)
    return caught.value


def succeeded_try(world: World, tape: Tape) -> dict[str, Any]:
    """The result of the try."""
    result: dict[str, Any] = world.complete(world.follow(try_by(world, tape)))
    return result
