"""A loop for nodes that come and go: it saves by the clock, and trains on with any number of workers.

The digits of `digits.py`. Metrics are reported each epoch; a checkpoint only when the last one is old enough, and at the end.
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
    """Train for `config["epochs"]` epochs, with a checkpoint every `config["checkpoint_every_s"]` seconds."""
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    torch.set_num_threads(1)
    model = ray.train.torch.prepare_model(build_model(config["seed"]), move_to_device=False)
    bare = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    first_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            state = torch.load(os.path.join(directory, "state.pt"), weights_only=True)
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1
    images, labels, test_images, test_labels = load_data()
    saved_at = time.monotonic()
    for epoch in range(first_epoch, config["epochs"]):
        began = time.monotonic()
        loss = train_epoch(model, optimizer, images, labels, order=(config["seed"], epoch, rank, world))
        with torch.no_grad():
            accuracy = (bare(test_images).argmax(1) == test_labels).float().mean().item()
        # Digits are learnt in milliseconds; a longer epoch leaves time to break something.
        time.sleep(max(0.0, config.get("epoch_seconds", 0) - (time.monotonic() - began)))
        metrics = {"epoch": epoch, "loss": loss, "accuracy": accuracy, "workers": world}
        is_due = time.monotonic() - saved_at >= config["checkpoint_every_s"] or epoch == config["epochs"] - 1
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = None
            # One worker decides by its own clock: the others report without a checkpoint anyway.
            if rank == 0 and is_due:
                state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, os.path.join(directory, "state.pt"))
                checkpoint = ray.train.Checkpoint.from_directory(directory)
                saved_at = time.monotonic()
            ray.train.report(metrics, checkpoint=checkpoint)
