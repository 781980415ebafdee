"""Attempts on a real Ray cluster and a real S3 server: kill, freeze, stop, carry over, restore."""

from __future__ import annotations

import json
import signal
from urllib.parse import quote

import pytest

from airflow_provider.core import layout
from airflow_provider.core.goodput import Cause
from airflow_provider.core.job import EXIT_CANCELLED, EXIT_SUPERSEDED, TrainingKind
from airflow_provider.core.job_spec import TrainingSpec
from airflow_provider.core.spec import CheckpointConfig
from tests.support.job_package import Experiment
from tests.support.runtime_case import (
    EPOCHS,
    assert_equal_weights,
    assert_no_workers,
    drivers,
    goodput_of,
    kill,
    loop,
    processes,
    weights,
    when_committed,
)

# Longer than one test's usual minute: each job costs Ray's start-up, and a shared machine may be busy.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_a_run_leaves_records_outcome_and_a_manifest_that_plain_ray_restores(healthy: Experiment) -> None:
    """G7: everything a later try needs lies beside the checkpoints, and Ray alone can use it too."""
    outcome = healthy.json(layout.outcome(1, 1))
    assert (outcome["state"], outcome["num_commits"], outcome["fenced"]) == ("success", EPOCHS, True)
    segment = healthy.json(layout.segment(1, 1, "000001"))
    entries = segment["checkpoints"]
    assert [e["metrics"]["epoch"] for e in entries] == list(range(EPOCHS))
    assert all(e["files"][0]["key"] == "state.pt" and e["files"][0]["etag"] for e in entries)
    assert [e["parent"] for e in entries] == [None, *[e["checkpoint"] for e in entries[:-1]]]
    assert entries[0]["metrics"]["f32"] == 0.5, "numpy scalars survive"
    phases = [p["phase"] for p in segment["phases"]]
    assert phases == ["starting", "restoring", "starting", "waiting", "training", "finishing"]
    spent = goodput_of(healthy).total
    assert spent.productive_s > EPOCHS * 0.5, "each epoch takes at least that"
    assert spent.productive_s + sum(spent.lost_s.values()) == pytest.approx(spent.wall_s)
    lost = {cause for cause, seconds in spent.lost_s.items() if seconds}
    assert lost == {Cause.QUEUEING, Cause.START_UP, Cause.WAITING}, "and nothing else: it was an unharmed run"
    uri = f"s3://{healthy.bucket}/{quote(healthy.prefix)}"  # pyarrow reads a URI here, not a key
    body = {
        "entrypoint": f"python plain.py {json.dumps(uri)}",
        "runtime_env": {"working_dir": healthy._upload(_zip(healthy)), "env_vars": {"RAY_TRAIN_V2_ENABLED": "1"}},
    }
    job = json.loads(healthy._request("POST", "/api/jobs/", json.dumps(body).encode()))["submission_id"]
    assert healthy.wait(job)["status"] == "SUCCEEDED", healthy.log(job)
    assert f"LOOP starts at epoch {EPOCHS}" in healthy.log(job)
    assert "PLAIN ended at 6" in healthy.log(job)


def _zip(experiment: Experiment) -> bytes:
    from tests.support.job_package import zipped

    return zipped(experiment.files)


@pytest.mark.slow
def test_dead_worker_is_recovered_and_dead_driver_restored_bit_for_bit(
    experiment: Experiment, healthy: Experiment
) -> None:
    """G2: no committed checkpoint is lost, and the result is that of an unharmed run."""
    first = experiment.start(loop(), 1)
    when_committed(experiment, first, 1, 1)
    kill(processes(experiment.ray, "ray::RayTrainWorker")[:1])
    experiment.until(lambda: "failure:" in experiment.log(first), job=first, what="Ray's recovery")
    when_committed(experiment, first, 1, 3)
    kill(drivers(experiment.ray))
    assert experiment.wait(first)["status"] == "FAILED"
    committed = experiment.committed(1)
    assert experiment.read(layout.outcome(1, 1)) is None
    second = experiment.start(loop(), 2)
    assert experiment.wait(second)["status"] == "SUCCEEDED", experiment.log(second)
    restored = experiment.json(layout.restored(1, 2))
    assert restored["checkpoint"] == committed[-1]
    assert set(committed) <= set(experiment.committed(2))
    outcome = experiment.json(layout.outcome(1, 2))
    assert (outcome["state"], outcome["restore_proven"]) == ("success", "yes")
    assert_equal_weights(weights(experiment, 2), weights(healthy, 1))
    recorded = {
        e["checkpoint"]
        for key in experiment.keys("g000001/attempts/000001/records/")
        for e in experiment.json(key)["checkpoints"]
    }
    assert set(committed) <= recorded, "what the dead driver could not record was completed"
    first_spent, second_spent = (one.spent for one in goodput_of(experiment).attempts)
    assert first_spent.lost_s[Cause.DETECTION] > 0, "Ray noticed the worker, and nobody the driver until the next claim"
    assert first_spent.lost_s[Cause.REWORK] > 0
    assert first_spent.productive_s > 1
    assert second_spent.lost_s[Cause.REWORK] == 0
    for spent in (first_spent, second_spent):
        assert spent.productive_s + sum(spent.lost_s.values()) == pytest.approx(spent.wall_s)


def test_thawed_driver_harms_nothing_and_ends_as_superseded(experiment: Experiment, healthy: Experiment) -> None:
    """G12: a zombie neither mixes into nor deletes what a later attempt has committed."""
    training = loop(dir_name=True, checkpoint=CheckpointConfig(num_to_keep=2))
    first = experiment.start(training, 1)
    when_committed(experiment, first, 1, 2)
    frozen = [*processes(experiment.ray, "ray::TrainController"), *processes(experiment.ray, "ray::RayTrainWorker")]
    frozen += processes(experiment.ray, "airflow_provider.runtime.driver")
    kill(frozen, signal.SIGSTOP)
    seen = experiment.committed(1)
    second = experiment.start(training, 2)
    when_committed(experiment, second, 2, 1)
    kill(frozen, signal.SIGCONT)
    ended = experiment.wait(first)
    assert ended["driver_exit_code"] == EXIT_SUPERSEDED, experiment.log(first)
    assert experiment.wait(second)["status"] == "SUCCEEDED", experiment.log(second)
    assert experiment.json(layout.restored(1, 2))["checkpoint"] == seen[-1]
    assert experiment.read(layout.outcome(1, 1)) is None
    assert_equal_weights(weights(experiment, 2), weights(healthy, 1))


def test_stop_record_ends_the_driver_and_its_workers(experiment: Experiment) -> None:
    """G4: a stop that Ray ignored while the job was pending is obeyed from the bucket."""
    job = experiment.start(loop(epochs=500, num_workers=1), 1)
    when_committed(experiment, job, 1, 1)
    experiment.stop(1, k=1)
    ended = experiment.wait(job)
    assert ended["driver_exit_code"] == EXIT_CANCELLED, experiment.log(job)
    outcome = experiment.json(layout.outcome(1, 1))
    assert (outcome["state"], outcome["failure"]["kind"]) == ("cancelled", "stopped")
    spent = goodput_of(experiment).total
    assert spent.productive_s > 0
    assert spent.lost_s[Cause.REWORK] > 0, "training after the last commit was stopped"
    assert_no_workers(experiment.ray)


@pytest.mark.slow
def test_stopped_job_leaves_an_outcome(experiment: Experiment) -> None:
    """From inside, Ray's stop and a node that shuts down look alike; the job's status STOPPED tells Airflow's side."""
    job = experiment.start(loop(epochs=500, num_workers=1), 1)
    when_committed(experiment, job, 1, 1)
    experiment.stop_job(job)
    assert experiment.wait(job)["status"] == "STOPPED"
    outcome = experiment.json(layout.outcome(1, 1))
    assert (outcome["state"], outcome["failure"]["kind"]) == ("cancelled", "infrastructure")


def test_finished_earlier_attempt_is_carried_over(healthy: Experiment) -> None:
    """PROTOCOL 3.2: finished work is never trained again."""
    job = healthy.start(loop(), 2)
    assert healthy.wait(job)["status"] == "SUCCEEDED", healthy.log(job)
    outcome = healthy.json(layout.outcome(1, 2))
    assert outcome["carried_from"] == {"generation": 1, "attempt": 1}
    assert healthy.committed(2) == []


@pytest.mark.slow
def test_dead_controller_is_refitted_within_the_job(experiment: Experiment, healthy: Experiment) -> None:
    """Ray gives a dead controller no retry; the driver fits again from the last commit."""
    job = experiment.start(loop(), 1)
    when_committed(experiment, job, 1, 2)
    kill(processes(experiment.ray, "ray::TrainController"))
    assert experiment.wait(job)["status"] == "SUCCEEDED", experiment.log(job)
    outcome = experiment.json(layout.outcome(1, 1))
    assert (outcome["state"], outcome["num_fits"]) == ("success", 2)
    assert_equal_weights(weights(experiment, 1), weights(healthy, 1))


@pytest.mark.slow
def test_trainer_factory(experiment: Experiment) -> None:
    """The factory's trainer is fenced and recorded like ours."""
    job = experiment.start(TrainingSpec(kind=TrainingKind.TRAINER, target="factory:make"), 1)
    assert experiment.wait(job)["status"] == "SUCCEEDED", experiment.log(job)
    assert experiment.json(layout.outcome(1, 1))["num_commits"] == 2
    assert len(experiment.committed(1)) == 2


def script(command: str) -> TrainingSpec:
    """A user's own script."""
    return TrainingSpec(kind=TrainingKind.ENTRYPOINT, command=command, progress_metric="epoch")


@pytest.mark.slow
def test_entrypoint_script_is_restored_and_dies_with_its_driver(experiment: Experiment) -> None:
    """A script that asks for its run config in one line has the same guarantees."""
    first = experiment.start(script("python script.py 500"), 1)
    when_committed(experiment, first, 1, 2)
    kill(drivers(experiment.ray))
    assert experiment.wait(first)["status"] == "FAILED"
    assert_no_workers(experiment.ray)
    assert not processes(experiment.ray, "script.py")
    done = len(experiment.committed(1))
    second = experiment.start(script(f"python script.py {done + 2}"), 2)
    assert experiment.wait(second)["status"] == "SUCCEEDED", experiment.log(second)
    outcome = experiment.json(layout.outcome(1, 2))
    assert (outcome["state"], outcome["num_commits"], outcome["restore_proven"]) == ("success", 2, "yes")
