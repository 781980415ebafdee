"""An ordinary Ray Train loop: scikit-learn's handwritten digits, two layers, a checkpoint each epoch.

It knows nothing of Airflow. It is deterministic: the same seed gives the same weights, also over any number of restarts,
because each epoch's order depends on the epoch alone and the optimiser's state is in the checkpoint.
"""

from __future__ import annotations

import os
import tempfile
import time

import ray.train
import ray.train.torch
import torch
from sklearn.datasets import load_digits
from torch import nn


def build_model(seed: int) -> nn.Module:
    """64 pixels in, 10 digits out."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training and test images (n x 64, scaled to 0..1) with their labels."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target, dtype=torch.long)
    is_test = torch.arange(len(labels)) % 5 == 0
    return images[~is_test], labels[~is_test], images[is_test], labels[is_test]


def train_loop(config: dict) -> None:
    """Train for `config["epochs"]` epochs, from the restored checkpoint if there is one."""
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
    for epoch in range(first_epoch, config["epochs"]):
        began = time.monotonic()
        loss = train_epoch(model, optimizer, images, labels, order=(config["seed"], epoch, rank, world))
        with torch.no_grad():
            accuracy = (bare(test_images).argmax(1) == test_labels).float().mean().item()
        # Digits are learnt in milliseconds; a longer epoch leaves time to break something.
        time.sleep(max(0.0, config.get("epoch_seconds", 0) - (time.monotonic() - began)))
        metrics = {"epoch": epoch, "loss": loss, "accuracy": accuracy}
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = None
            if rank == 0:
                state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, os.path.join(directory, "state.pt"))
                checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report(metrics, checkpoint=checkpoint)


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    order: tuple[int, int, int, int],
) -> float:
    """One epoch over this worker's share, in an order that depends on seed and epoch alone. Returns the mean loss."""
    seed, epoch, rank, world = order
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed * 1000 + epoch))
    share = shuffled[rank : len(shuffled) - len(shuffled) % world : world]
    losses = []
    for batch in share.split(64):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)
