"""A training script as projects have them: options, a trainer, `fit`. Its run config is the one line that the operator needs.

Before, the trainer had `run_config=ray.train.RunConfig(name="digits", storage_path="s3://models")`.
"""

from __future__ import annotations

import argparse

import ray.train
from digits import train_loop
from ray.train.torch import TorchTrainer

from airflow_provider.runtime import run_config

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--epoch-seconds", type=float, default=0.0)
parser.add_argument("--lr", type=float, default=0.05)
options = parser.parse_args()

trainer = TorchTrainer(
    train_loop,
    train_loop_config={**vars(options), "seed": 7},
    scaling_config=ray.train.ScalingConfig(num_workers=1),
    run_config=run_config(),
)
result = trainer.fit()
print("trained:", result.metrics)  # noqa: T201 - as a script does
