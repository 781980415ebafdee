"""Retraining as most projects do it: each run trains a few more epochs on the weights of the run before.

An ordinary Ray Train loop, the digits of `digits.py`. What `ray.train.get_checkpoint()` gives is either this run's own
checkpoint (after a failure: go on with its epoch) or, in a new run, the parent that the DAG names as warm start (take its
weights, count epochs from 0). The run's name in the checkpoint tells them apart; a loop that should simply go on counting
needs no such line.
"""

from __future__ import annotations

import os
import tempfile
import time

import ray.train
import ray.train.torch
import torch
from digits import build_model, load_data, train_epoch


def train_loop(config: dict) -> None:
    """Train `config["epochs"]` epochs as run `config["run"]`, from the newest weights there are."""
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    torch.set_num_threads(1)
    model = ray.train.torch.prepare_model(build_model(config["seed"]), move_to_device=False)
    bare = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    first_epoch = epochs_before = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            state = torch.load(os.path.join(directory, "state.pt"), weights_only=True)
        bare.load_state_dict(state["model"])
        epochs_before = state["total_epochs"]
        if state["run"] == config["run"]:
            optimizer.load_state_dict(state["optimizer"])
            first_epoch = state["epoch"] + 1
    if rank == 0:
        print(f"begins at epoch {first_epoch} with {epochs_before} epochs behind it")  # noqa: T201 - for the task log
    images, labels, test_images, test_labels = load_data()
    for epoch in range(first_epoch, config["epochs"]):
        began = time.monotonic()
        loss = train_epoch(model, optimizer, images, labels, order=(config["seed"], epochs_before, rank, world))
        with torch.no_grad():
            accuracy = (bare(test_images).argmax(1) == test_labels).float().mean().item()
        time.sleep(max(0.0, config.get("epoch_seconds", 0) - (time.monotonic() - began)))
        epochs_before += 1
        metrics = {"epoch": epoch, "total_epochs": epochs_before, "loss": loss, "accuracy": accuracy}
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = None
            if rank == 0:
                state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "run": config["run"]}
                state |= {"epoch": epoch, "total_epochs": epochs_before}
                torch.save(state, os.path.join(directory, "state.pt"))
                checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report(metrics, checkpoint=checkpoint)
