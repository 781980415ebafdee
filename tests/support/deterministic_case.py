"""A small deterministic torch training with two workers, for tests on real Ray: weights depend on every step taken."""

import os
import tempfile
import time

import ray.train
import torch


def seeded_step(model, optimizer, epoch, rank):
    generator = torch.Generator().manual_seed(1000 * epoch + rank)
    x = torch.randn(16, 8, generator=generator)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train_loop(config):
    from ray.train.torch import prepare_model

    torch.manual_seed(0)
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(torch.nn.Linear(8, 1))
    bare = model.module if hasattr(model, "module") else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start, poisoned = 0, False
    checkpoint = ray.train.get_checkpoint()
    if checkpoint and not config.get("ignore_checkpoint"):
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start, poisoned = state["epoch"] + 1, state["poisoned"]
    size = ray.train.get_context().get_world_size()
    print(f"LOOP starts at epoch {start} rank {rank} of {size}", flush=True)  # noqa: T201 the test reads it
    is_told = False
    for epoch in range(start, config["epochs"]):
        loss = seeded_step(model, optimizer, epoch, rank)
        time.sleep(config.get("epoch_s", 0.3))
        if poisoned:
            raise ValueError(f"loss is nan in epoch {epoch}")
        # Only the run from the start writes a bad state, so the same epoch done again is a good one.
        poisoned = start == 0 and epoch == config.get("poison_at")
        fail = config.get("raise_at")
        if fail is not None and epoch == fail and rank == 0:
            raise ValueError(f"bad batch in epoch {epoch}")
        is_due = (epoch + 1) % config.get("every", 1) == 0
        if config.get("watch_preemption") and not is_told and ray.train.get_preemption_info() is not None:
            is_due = is_told = True
            print(f"LOOP saves in time at epoch {epoch}", flush=True)  # noqa: T201 the test reads it
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if rank == 0 and is_due:
                state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                state["poisoned"] = poisoned
                torch.save(state, os.path.join(folder, "state.pt"))
                saved = ray.train.Checkpoint.from_directory(folder)
            metrics = {"epoch": epoch, "loss": loss}
            if config.get("numpy"):
                import numpy as np

                metrics |= {
                    "f32": np.float32(0.5),
                    "tensor": torch.tensor(1.5),
                    "nan": float("nan"),
                    "array": np.arange(3),
                }
            ray.train.report(
                metrics, checkpoint=saved, checkpoint_dir_name=config.get("dir_name") and f"checkpoint_{epoch:04d}"
            )
