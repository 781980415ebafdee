"""A training as people wrote it for Ray Train V1: restores by itself, knows nothing of this provider."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray.data
from ray import train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

HELD_EPOCH = 2


def datasets() -> dict[str, Any]:
    """Built again on each attempt."""
    return {"train": ray.data.range(8)}


def train_loop(config: dict[str, Any]) -> None:
    """Count epochs; the third waits for the gate, so that a test can kill the driver between two commits."""
    first = 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            first = json.loads(Path(folder, "state.json").read_text())["epoch"] + 1
    shard = train.get_dataset_shard("train")
    rows = sum(1 for _ in shard.iter_rows()) if shard is not None else 0
    for epoch in range(first, config["epochs"]):
        gate = os.environ["V1_GATE"]
        while epoch == HELD_EPOCH and not Path(gate).exists():
            time.sleep(0.1)
        if epoch == config.get("bug_in"):
            raise KeyError("labels")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"epoch": epoch}))
            metrics = {"epoch": epoch, "first": first, "rows": rows, "epochs": config["epochs"]}
            train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def make_trainer(run_config: RunConfig) -> TorchTrainer:
    """A factory, for the `trainer` way of saying what to train."""
    return TorchTrainer(
        train_loop,
        train_loop_config={"epochs": 4},
        run_config=run_config,
        scaling_config=ScalingConfig(num_workers=1),
        datasets=datasets(),
    )
