"""What trains no more, or never begins, ends by the driver's own watchdogs: with the kind, and a sentence with the limit."""

from __future__ import annotations

import re

import pytest

from airflow_provider.core import layout
from airflow_provider.core.job import EXIT_FAILED, TrainingKind
from airflow_provider.core.job_spec import Timings, TrainingSpec
from airflow_provider.core.spec import ScalingConfig
from tests.support.job_package import Experiment
from tests.support.runtime_case import assert_no_workers, goodput_of, loop

# Longer than one test's usual minute: each job costs Ray's start-up, and a shared machine may be busy.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
STALL_S, WAIT_S = 30, 10
"""The first is longer than what a busy machine needs from the start of the loop to its first commit."""
_HANGS = b"""
import time
import ray.train
import case

def train_loop(config):
    case.train_loop(config)
    while True:  # as in a collective that one rank never joins: alive, and it reports nothing any more
        time.sleep(1)
"""


def timings(**limits: float) -> Timings:
    return Timings(claim_poll_s=0.5, alive_s=2.0, refit_backoff_s=0.5, **limits)


@pytest.mark.slow
def test_a_loop_that_stops_reporting_is_ended_as_stalled(experiment: Experiment) -> None:
    """What it had committed stays; the driver goes by itself, and its workers with it."""
    experiment.files["hangs.py"] = _HANGS
    training = loop(target="hangs:train_loop", epochs=2, num_workers=1)
    job = experiment.start(training, 1, timings=timings(stall_timeout_s=STALL_S))
    assert experiment.wait(job)["driver_exit_code"] == EXIT_FAILED, experiment.log(job)
    outcome = experiment.json(layout.outcome(1, 1))
    assert (outcome["state"], outcome["failure"]["kind"]) == ("failed", "stalled")
    said = outcome["failure"]["reason"]
    found = re.fullmatch(r"no commit in (\d+) s of training \(stall_timeout_s=30\), 2 commits before", said)
    assert found, said
    assert int(found[1]) >= STALL_S
    assert f"ending: {said} [stalled]" in experiment.log(job)
    assert outcome["latest_checkpoint"] == experiment.committed(1)[-1]
    assert (outcome["num_commits"], outcome["num_fits"]) == (2, 1), "a hang is nothing to fit again for"
    assert_no_workers(experiment.ray)


@pytest.mark.slow
def test_a_resource_that_never_comes_is_ended_as_capacity(experiment: Experiment) -> None:
    """Ray alone would wait for ever; nothing began, so nothing is lost."""
    training = TrainingSpec(
        kind=TrainingKind.TRAIN_LOOP,
        target="case:train_loop",
        train_loop_config={"epochs": 1},
        scaling=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1, "no_such_accelerator": 1}),
    )
    job = experiment.start(training, 1, timings=timings(resource_timeout_s=WAIT_S))
    assert experiment.wait(job)["driver_exit_code"] == EXIT_FAILED, experiment.log(job)
    outcome = experiment.json(layout.outcome(1, 1))
    assert (outcome["state"], outcome["failure"]["kind"]) == ("failed", "capacity")
    said = outcome["failure"]["reason"]
    found = re.fullmatch(r"waited (\d+) s for nodes \(resource_timeout_s=10\)", said)
    assert found, said
    assert int(found[1]) >= WAIT_S
    assert f"ending: {said} [capacity]" in experiment.log(job)
    assert experiment.json(layout.alive(1, 1))["phase"] == "waiting"
    assert (outcome["num_commits"], experiment.committed(1)) == (0, [])
    assert goodput_of(experiment).total.productive_s == 0
    assert_no_workers(experiment.ray)
