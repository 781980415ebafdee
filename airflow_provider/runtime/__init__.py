"""Runs on the cluster: travels with the job, needs ray, torch, pyarrow and pydantic there and nothing installed.

A script that is submitted as `entrypoint` asks for its run config in one line:

    trainer = TorchTrainer(train_loop, run_config=airflow_provider.runtime.run_config(), ...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.train import RunConfig

__all__ = ["run_config"]


def run_config() -> RunConfig:
    """The Ray Train run config of this attempt: fenced storage, retention and failure settings of the operator.

    Raises InvalidConfig outside a job that our driver started.
    """
    # Ray is imported on call only: the driver's first checks need neither Ray nor torch.
    from airflow_provider.runtime.entrypoint_side import run_config_of_this_attempt

    return run_config_of_this_attempt()
