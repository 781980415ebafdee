"""An experiment that a sensor waits for."""

from __future__ import annotations

import pytest

from tests.support.watched_experiment import WatchedExperiment


@pytest.fixture
def watched() -> WatchedExperiment:
    """Nothing is there yet."""
    return WatchedExperiment()


@pytest.fixture
def training(watched: WatchedExperiment) -> WatchedExperiment:
    """One that runs, with three checkpoints."""
    watched.claim()
    watched.commit(*({"epoch": i, "loss": 1.0 - i / 10} for i in range(3)))
    return watched
