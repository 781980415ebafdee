"""The runtime on a real Ray cluster and a real S3 server, without Airflow: claims and jobs are made by hand.

Slow: each job costs Ray's start-up (14 s on two quiet cores). Faults are aimed at single processes and their firing is proven.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psutil
import pytest
import torch

from airflow_provider.core import layout
from airflow_provider.core.job import EXIT_CANCELLED, EXIT_SUPERSEDED, TrainingKind, TrainingSpec
from airflow_provider.core.spec import CheckpointConfig, FailureConfig, ScalingConfig
from tests.stack.process import find_processes
from tests.stack.ray_cluster import RayCluster
from tests.stack.s3 import S3Server
from tests.support.job_package import Experiment

if TYPE_CHECKING:
    from collections.abc import Iterator

# Longer than one test's usual minute: each job costs Ray's start-up, and a shared machine may be busy.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
EPOCHS = 6
_CASE = (Path(__file__).parents[1] / "support" / "deterministic_case.py").read_bytes()
_FACTORY = b"""
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
import case

def make(run_config):
    return TorchTrainer(case.train_loop, train_loop_config={"epochs": 2}, scaling_config=ScalingConfig(num_workers=1), run_config=run_config)

def forgets(run_config):
    return TorchTrainer(case.train_loop, train_loop_config={"epochs": 2}, scaling_config=ScalingConfig(num_workers=1))
"""
_SCRIPT = b"""
import sys
import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
import airflow_provider.runtime
import case

run_config = airflow_provider.runtime.run_config()
config = {"epochs": int(sys.argv[1])}
TorchTrainer(case.train_loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=1), run_config=run_config).fit()
print("SCRIPT done")
"""
_PLAIN = b"""
import os, sys
import pyarrow.fs
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
import case

config = RunConfig(name="g000001", storage_path=sys.argv[1])
result = TorchTrainer(case.train_loop, train_loop_config={"epochs": 7}, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()
print("PLAIN ended at", result.metrics["epoch"])
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server for the module."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[RayCluster]:
    """One Ray cluster for the module."""
    with RayCluster(tmp_path_factory.mktemp("ray"), env=s3.env()) as cluster:
        yield cluster


@pytest.fixture
def experiment(request: pytest.FixtureRequest, s3: S3Server, ray_cluster: RayCluster) -> Iterator[Experiment]:
    """An experiment of its own, under a prefix with characters that run ids hold. No job outlives its test."""
    yield _experiment(request.node.name, s3, ray_cluster)
    for process in processes(ray_cluster, "airflow_provider.runtime.driver"):
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)


def _experiment(name: str, s3: S3Server, ray_cluster: RayCluster) -> Experiment:
    files = {"case.py": _CASE, "factory.py": _FACTORY, "script.py": _SCRIPT, "plain.py": _PLAIN}
    return Experiment(s3, ray_cluster, f"team a/{name}/manual__2026-11-29T10:00:00+00:00", files)


@pytest.fixture(scope="module")
def healthy(s3: S3Server, ray_cluster: RayCluster) -> Experiment:
    """An unharmed run: what every harmed one must equal."""
    experiment = _experiment("healthy", s3, ray_cluster)
    job = experiment.start(loop(numpy=True), 1)
    assert experiment.wait(job)["status"] == "SUCCEEDED", experiment.log(job)
    return experiment


def loop(**config: Any) -> TrainingSpec:
    """The deterministic training with two workers."""
    fields = {k: config.pop(k) for k in ("failure", "checkpoint", "target") if k in config}
    num_workers = config.pop("num_workers", 2)
    return TrainingSpec(
        kind=TrainingKind.TRAIN_LOOP,
        target=fields.pop("target", "case:train_loop"),
        train_loop_config={"epochs": EPOCHS, "epoch_s": 0.5, **config},
        scaling=ScalingConfig(num_workers=num_workers),
        progress_metric="epoch",
        **fields,
    )


def weights(experiment: Experiment, n: int) -> dict[str, Any]:
    """The state in the last checkpoint of an attempt."""
    outcome = experiment.json(layout.outcome(1, n))
    body = experiment.read(f"g000001/{outcome['latest_checkpoint']}/state.pt")
    assert body is not None
    state: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True)
    return state


def assert_equal_weights(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Bit for bit."""
    assert one["epoch"] == other["epoch"]
    assert one["model"].keys() == other["model"].keys()
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name]), name


def processes(cluster: RayCluster, matching: str) -> list[psutil.Process]:
    """Processes of the cluster by command line."""
    return list(find_processes([cluster], matching))


def drivers(cluster: RayCluster) -> list[psutil.Process]:
    """The Python processes of drivers, without the shells around them."""
    return [p for p in processes(cluster, "airflow_provider.runtime.driver") if "python" in p.name()]


def kill(found: list[psutil.Process], number: int = signal.SIGKILL) -> None:
    """Signal, and prove that there was somebody to signal."""
    assert found, "nobody to signal"
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, number)


def when_committed(experiment: Experiment, job: str, n: int, count: int) -> None:
    """Wait until the attempt's own commits number `count`."""
    own = f"attempts/{n:06d}/"
    experiment.until(
        lambda: sum(name.startswith(own) for name in experiment.committed(n)) >= count, job=job, what=f"{count} commits"
    )


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
    assert_no_workers(experiment.ray)


def assert_no_workers(cluster: RayCluster) -> None:
    """Ray ends a job's workers within a second or two of its driver."""
    end = time.monotonic() + 15
    while processes(cluster, "ray::RayTrainWorker"):
        assert time.monotonic() < end, "workers outlive the driver"
        time.sleep(0.2)


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


def test_dead_controller_is_refitted_within_the_job(experiment: Experiment, healthy: Experiment) -> None:
    """Ray gives a dead controller no retry; the driver fits again from the last commit."""
    job = experiment.start(loop(), 1)
    when_committed(experiment, job, 1, 2)
    kill(processes(experiment.ray, "ray::TrainController"))
    assert experiment.wait(job)["status"] == "SUCCEEDED", experiment.log(job)
    outcome = experiment.json(layout.outcome(1, 1))
    assert (outcome["state"], outcome["num_fits"]) == ("success", 2)
    assert_equal_weights(weights(experiment, 1), weights(healthy, 1))


def test_same_user_error_twice_ends_the_fit(experiment: Experiment) -> None:
    """G6: GPU time isn't burnt on a deterministic error, whatever max_failures says."""
    job = experiment.start(loop(raise_at=1, num_workers=1, failure=FailureConfig(max_failures=20)), 1)
    assert experiment.wait(job)["driver_exit_code"] == 1
    outcome = experiment.json(layout.outcome(1, 1))
    failure = outcome["failure"]
    assert (outcome["state"], failure["kind"], outcome["num_commits"]) == ("failed", "user", 1)
    assert "bad batch in epoch 1" in failure["reason"]
    assert failure["exception_type"] == "ValueError"
    assert outcome["num_restarts"] == 1


def test_loop_that_ignores_the_checkpoint_fails(experiment: Experiment) -> None:
    """G8: a restore is proven, or the run fails at its first report."""
    first = experiment.start(loop(epochs=500, num_workers=1), 1)
    when_committed(experiment, first, 1, 3)
    kill(drivers(experiment.ray))
    experiment.wait(first)
    second = experiment.start(loop(ignore_checkpoint=True, num_workers=1), 2)
    assert experiment.wait(second)["driver_exit_code"] == 1
    outcome = experiment.json(layout.outcome(1, 2))
    assert (outcome["restore_proven"], outcome["failure"]["kind"]) == ("no", "user")
    assert "began again" in outcome["failure"]["reason"]


@pytest.mark.parametrize(
    ("training", "says"),
    [
        (loop(target="case:no_such"), "has no 'no_such'"),
        (loop(target="not_there:train"), "no module named 'not_there'"),
        (TrainingSpec(kind=TrainingKind.TRAINER, target="factory:forgets"), "doesn't use the run config"),
    ],
    ids=["no function", "no module", "run config forgotten"],
)
def test_wrong_code_path_is_a_config_error(experiment: Experiment, training: TrainingSpec, says: str) -> None:
    """Bad input ends retries at once, before any worker starts."""
    job = experiment.start(training, 1)
    assert experiment.wait(job)["driver_exit_code"] == 1
    failure = experiment.json(layout.outcome(1, 1))["failure"]
    assert failure["kind"] == "config"
    assert says in failure["reason"]


def test_trainer_factory(experiment: Experiment) -> None:
    """The factory's trainer is fenced and recorded like ours."""
    job = experiment.start(TrainingSpec(kind=TrainingKind.TRAINER, target="factory:make"), 1)
    assert experiment.wait(job)["status"] == "SUCCEEDED", experiment.log(job)
    assert experiment.json(layout.outcome(1, 1))["num_commits"] == 2
    assert len(experiment.committed(1)) == 2


def script(command: str) -> TrainingSpec:
    """A user's own script."""
    return TrainingSpec(kind=TrainingKind.ENTRYPOINT, command=command, progress_metric="epoch")


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
