"""A sensor that reads an experiment in memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sensor_world import World


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
