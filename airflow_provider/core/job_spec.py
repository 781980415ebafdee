"""What travels to the cluster: one JSON document inside the job's package, read by the driver."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from airflow_provider.core.field_types import UtcTime
from airflow_provider.core.job import TrainingKind, TrainVersion
from airflow_provider.core.record_parts import SCHEMA_VERSION, AttemptRef, WarmStartRecord
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.core.spec import CheckpointConfig, FailureConfig, ScalingConfig, StorageConfig


class TrainingSpec(BaseModel):
    """What to train: independent of try and attempt, its digest tells whether the same thing is asked again."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: TrainingKind
    target: str | None = None
    """Import path `package.module:function` for train_loop and trainer."""
    command: str | None = None
    """Shell command for entrypoint."""
    train_loop_config: dict[str, Any] | None = None
    datasets: str | None = None
    """Import path of a factory `() -> dict[str, ray.data.Dataset]`, called on each attempt."""
    scaling: ScalingConfig = ScalingConfig()
    failure: FailureConfig = FailureConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    train_version: TrainVersion = TrainVersion.V2
    progress_metric: str | None = None
    """A reported metric that never falls in a training that really continued (epoch, step)."""


class Timings(BaseModel):
    """Periods and limits of the driver, in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    claim_poll_s: float = Field(default=2.0, gt=0)
    alive_s: float = Field(default=15.0, gt=0)
    stall_timeout_s: float | None = None
    """Longest time without a new committed checkpoint while training; None switches it off."""
    resource_timeout_s: float | None = 3600.0
    """Longest time waiting for nodes; None waits for ever."""
    refit_backoff_s: float = Field(default=5.0, ge=0)


class JobSpec(BaseModel):
    """Everything one driver needs to know. Holds no secret: packages can be read by anyone on the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: int = SCHEMA_VERSION
    experiment_uri: str
    """`s3://bucket/prefix/...` or an absolute local path: the experiment folder, without generation."""
    storage: StorageConfig = StorageConfig()
    ref: AttemptRef
    k: int
    """Owner number behind the claim."""
    submission_id: str
    restore: RestorePolicy = RestorePolicy()
    warm_start: WarmStartRecord | None = None
    """As the claim has it: where to begin while nothing of this generation is committed."""
    deadline: UtcTime | None = None
    """Absolute, UTC: the driver ends itself then, whether Airflow lives or not."""
    training: TrainingSpec
    timings: Timings = Timings()

    def body(self) -> bytes:
        """The document as bytes."""
        return self.model_dump_json(indent=1).encode()
