"""What one task instance asks for, after rendering: plain values that the steps of a try work with."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.job import OnClear
from airflow_provider.core.job_spec import Timings, TrainingSpec
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.core.spec import StorageConfig
from airflow_provider.core.warm_start import WarmStart


@dataclass(frozen=True)
class TrainingRequest:
    """One training of one task instance."""

    key: TaskInstanceKey
    uri: str
    """The experiment's URI."""
    conn_id: str
    aws_conn_id: str | None
    training: TrainingSpec
    storage: StorageConfig
    restore: RestorePolicy
    on_clear: OnClear
    timings: Timings
    dag_folder: Path
    function_files: Mapping[str, bytes] = field(default_factory=dict)
    """A decorated function as a module, by path inside the job's package."""
    working_dir: str | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    entrypoint_num_cpus: float | None = None
    entrypoint_num_gpus: float | None = None
    entrypoint_resources: Mapping[str, float] | None = None
    python: str = "python"
    """Interpreter of the driver on the cluster."""
    require_new_checkpoint: bool = False
    storage_path: str = ""
    """Where the experiments of the task's runs lie."""
    warm_start: WarmStart | None = None
    """Where a new experiment begins. No part of the digest: the claim carries what was decided."""
    timeout_s: float | None = None
    """Seconds from an attempt's claim to its absolute deadline; None: no deadline."""

    @property
    def spec_digest(self) -> str:
        """Digest of what is trained and where the cluster finds the bucket."""
        text = self.training.model_dump_json() + self.storage.model_dump_json()
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def command(self) -> str:
        """The job's entrypoint. Nothing of the author's goes through the shell here: the spec travels as JSON."""
        return f"{shlex.quote(self.python)} -m airflow_provider.runtime.driver"
