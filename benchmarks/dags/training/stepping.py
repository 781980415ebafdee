"""The training of the benchmarks: a chain of numbers that each step continues, with every step and commit told to a file.

A number is only right if every step before it was taken once, so a lost or repeated step shows in the last one.
"""

from __future__ import annotations

import json
import os
import tempfile
import time

import ray.train


def mark(path, what, step=None, **more):
    """One line with the time; all of it in one write, since an old worker may still live when the next one begins."""
    line = json.dumps({"at": time.time(), "what": what, "step": step, "pid": os.getpid(), **more}) + "\n"
    with open(path, "ab", buffering=0) as file:
        file.write(line.encode())


def next_number(number, step):
    """A number that depends on all steps before it."""
    return (number * 6364136223846793005 + step + 1) % 2**64


def train_loop(config):
    """Take `steps` steps of `step_s` seconds, with a checkpoint after every `every` and after the last."""
    is_first = ray.train.get_context().get_world_rank() == 0
    path, steps, every = config["marks"], config["steps"], config["every"]
    tell = mark if is_first else lambda *_, **__: None
    tell(path, "loop")
    number, first = 0, 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "state.json")) as file:
            state = json.load(file)
        number, first = int(state["number"]), state["step"] + 1
    tell(path, "restored", first - 1)
    for step in range(first, steps):
        time.sleep(config["step_s"])
        number = next_number(number, step)
        tell(path, "step", step, number=str(number))
        if (step + 1) % every and step + 1 < steps:
            continue
        tell(path, "reporting", step)
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if is_first:
                with open(os.path.join(folder, "state.json"), "w") as file:
                    json.dump({"step": step, "number": str(number)}, file)
                saved = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": step, "number": str(number)}, checkpoint=saved)
        tell(path, "reported", step)
