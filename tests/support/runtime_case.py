"""The deterministic training as jobs of the runtime, and how its processes are found, signalled and compared."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from airflow_provider.core import layout
from airflow_provider.core.goodput import Goodput, goodput
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import TrainingSpec
from airflow_provider.core.spec import ScalingConfig
from airflow_provider.operators.collecting import read_experiment
from tests.stack.process import find_processes
from tests.stack.ray_cluster import RayCluster
from tests.stack.s3 import S3Server
from tests.support.job_package import Experiment, now
from tests.support.training_run import records_at

EPOCHS = 6
_CASE = (Path(__file__).parent / "deterministic_case.py").read_bytes()
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


def new_experiment(name: str, s3: S3Server, ray_cluster: RayCluster) -> Experiment:
    """An experiment under a prefix with characters that run ids hold."""
    files = {"case.py": _CASE, "factory.py": _FACTORY, "script.py": _SCRIPT, "plain.py": _PLAIN}
    return Experiment(s3, ray_cluster, f"team a/{name}/manual__2026-11-29T10:00:00+00:00", files)


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


def goodput_of(experiment: Experiment) -> Goodput:
    """Where the experiment's time went, by its records."""
    return goodput(read_experiment(records_at(experiment.s3, experiment.uri)), now=now())


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


def assert_no_workers(cluster: RayCluster) -> None:
    """Ray ends a job's workers within a second or two of its driver."""
    end = time.monotonic() + 15
    while processes(cluster, "ray::RayTrainWorker"):
        assert time.monotonic() < end, "workers outlive the driver"
        time.sleep(0.2)
