"""The half of the runtime that a user's script calls: its run config, and what it leaves behind when it fails."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.job import TrainVersion
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.runtime.child import ChildContext
from airflow_provider.runtime.spec_file import read_spec

if TYPE_CHECKING:
    from ray.train import RunConfig

_is_hooked = False


def run_config_of_this_attempt() -> RunConfig:
    """Build the run config from the job's spec, and leave the script's last exception to the driver."""
    context = ChildContext.from_env()
    spec: JobSpec = read_spec(context.spec_path)
    _leave_failure(context.failure_path)
    if spec.training.train_version is TrainVersion.V1:
        raise InvalidConfig(
            "run_config() needs Ray Train V2", change="use train_loop or trainer with train_version='v1'"
        )
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    from airflow_provider.runtime.train_v2 import build_run_config

    return build_run_config(spec, events_path=context.events_path, is_fenced=context.is_fenced)


def _leave_failure(path: str) -> None:
    global _is_hooked  # noqa: PLW0603 once per process
    if _is_hooked:
        return
    _is_hooked = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        from airflow_provider.runtime.failures import failure_of

        with open(path, "w") as file:
            file.write(failure_of(error).model_dump_json())

    sys.excepthook = hook
