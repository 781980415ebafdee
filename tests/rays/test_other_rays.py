"""What is promised on the newest Ray holds on an older one too, and between the two."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest

from airflow_provider.core import layout
from airflow_provider.core.job import EXIT_SUPERSEDED
from airflow_provider.core.spec import CheckpointConfig
from tests.stack.ray_cluster import RayCluster
from tests.stack.s3 import S3Server
from tests.support.job_package import Experiment
from tests.support.runtime_case import (
    EPOCHS,
    assert_equal_weights,
    drivers,
    kill,
    loop,
    new_experiment,
    processes,
    weights,
    when_committed,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def healthy(s3: S3Server, older: RayCluster) -> Experiment:
    """An unharmed run on the older Ray."""
    experiment = new_experiment("healthy", s3, older)
    job = experiment.start(loop(), 1)
    assert experiment.wait(job)["status"] == "SUCCEEDED", experiment.log(job)
    return experiment


def test_an_older_ray_trains_fenced_and_records_everything(healthy: Experiment, newest: RayCluster) -> None:
    ours, theirs = (json.loads(c.get("/api/version"))["ray_version"] for c in (newest, healthy.ray))
    assert ours != theirs, "OLDER_RAY_BIN names the same Ray: this proves nothing"
    outcome = healthy.json(layout.outcome(1, 1))
    assert (outcome["state"], outcome["num_commits"], outcome["fenced"]) == ("success", EPOCHS, True)
    entries = healthy.json(layout.segment(1, 1, "000001"))["checkpoints"]
    assert [e["metrics"]["epoch"] for e in entries] == list(range(EPOCHS))
    assert all(e["files"] for e in entries)


def test_a_thawed_driver_of_an_older_ray_harms_nothing(s3: S3Server, older: RayCluster, healthy: Experiment) -> None:
    """The seams of fencing are Ray's internals: each release has to show that they hold."""
    experiment = new_experiment("thawed", s3, older)
    training = loop(checkpoint=CheckpointConfig(num_to_keep=2))
    first = experiment.start(training, 1)
    when_committed(experiment, first, 1, 2)
    frozen = [*processes(older, "ray::TrainController"), *processes(older, "ray::RayTrainWorker")]
    frozen += processes(older, "airflow_provider.runtime.driver")
    kill(frozen, signal.SIGSTOP)
    seen = experiment.committed(1)
    second = experiment.start(training, 2)
    when_committed(experiment, second, 2, 1)
    kill(frozen, signal.SIGCONT)
    assert experiment.wait(first)["driver_exit_code"] == EXIT_SUPERSEDED, experiment.log(first)
    assert experiment.wait(second)["status"] == "SUCCEEDED", experiment.log(second)
    assert experiment.json(layout.restored(1, 2))["checkpoint"] == seen[-1]
    assert_equal_weights(weights(experiment, 2), weights(healthy, 1))


def test_an_upgrade_between_two_tries_does_not_block_the_restore(
    s3: S3Server, older: RayCluster, newest: RayCluster, healthy: Experiment
) -> None:
    experiment = new_experiment("upgrade", s3, older)
    first = experiment.start(loop(), 1)
    when_committed(experiment, first, 1, 2)
    kill(drivers(older))
    assert experiment.wait(first)["status"] == "FAILED"
    committed = experiment.committed(1)
    upgraded = replace(experiment, ray=newest)
    second = upgraded.start(loop(), 2)
    assert upgraded.wait(second)["status"] == "SUCCEEDED", upgraded.log(second)
    assert upgraded.json(layout.restored(1, 2))["checkpoint"] == committed[-1]
    assert upgraded.json(layout.outcome(1, 2))["restore_proven"] == "yes"
    assert set(committed) <= set(upgraded.committed(2))
    assert_equal_weights(weights(upgraded, 2), weights(healthy, 1))
