"""An existing training script; the run config is its only line that knows of Airflow."""

from __future__ import annotations

import argparse

import ray.train
from counting import train_loop
from ray.train.torch import TorchTrainer

from airflow_provider.runtime import run_config

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()
trainer = TorchTrainer(
    train_loop,
    train_loop_config={"epochs": options.epochs},
    scaling_config=ray.train.ScalingConfig(num_workers=1),
    run_config=run_config(),
)
result = trainer.fit()
print("script saw", result.metrics)  # noqa: T201 - as a script does
