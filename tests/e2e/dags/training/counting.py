"""Small deterministic trainings: a weight that each epoch changes in a way that only the epoch decides."""

from __future__ import annotations

import os
import tempfile
import time

import ray.train
import ray.train.torch
import torch


def train_loop(config: dict) -> None:
    """Count epochs; `break_in_epoch` raises there, the first time and every time."""
    weight, first = torch.zeros(4), 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            state = torch.load(os.path.join(directory, "state.pt"), weights_only=True)
        weight, first = state["weight"], state["epoch"] + 1
    shard = ray.train.get_dataset_shard("train") if config.get("has_rows") else None
    for epoch in range(first, config.get("epochs", 3)):
        if shard is not None:
            assert sum(len(batch["id"]) for batch in shard.iter_batches()) > 0
        if config.get("break_in_epoch") == epoch:
            raise KeyError("labels")
        weight = weight * 0.9 + torch.rand(4, generator=torch.Generator().manual_seed(epoch))
        time.sleep(config.get("epoch_seconds") or 0)
        with tempfile.TemporaryDirectory() as directory:
            mine = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save({"weight": weight, "epoch": epoch}, os.path.join(directory, "state.pt"))
                mine = ray.train.Checkpoint.from_directory(directory)
            ray.train.report({"epoch": epoch, "loss": float(weight.sum())}, checkpoint=mine)


def datasets():
    """Eight rows, made anew on each attempt."""
    import ray.data

    return {"train": ray.data.range(8)}


def make_trainer(run_config, train_loop_config):
    """A factory, as a project has it that builds its trainer itself."""
    return ray.train.torch.TorchTrainer(
        train_loop,
        train_loop_config=train_loop_config,
        scaling_config=ray.train.ScalingConfig(num_workers=1),
        run_config=run_config,
    )
