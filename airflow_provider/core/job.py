"""What travels to the cluster: one JSON document inside the job's package, read by the driver."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from airflow_provider.core.field_types import UtcTime
from airflow_provider.core.record_parts import SCHEMA_VERSION, AttemptRef, RestorePolicy, WarmStartRecord
from airflow_provider.core.spec import CheckpointConfig, FailureConfig, ScalingConfig, StorageConfig

JOB_SPEC_FILE = "job_spec.json"
"""Name of the document inside the `airflow_provider` folder of the job's package."""
ATTEMPT_ENV = "RAY_TRAIN_AIRFLOW_ATTEMPT"
"""`g1/a2` in the job's environment: makes each runtime environment unique (Ray caches a failed one for 600 s)."""
EXIT_FAILED = 1
EXIT_CANCELLED = 76
"""A stop record, a final owner or the deadline ended the driver."""
EXIT_SUPERSEDED = 77
"""A newer claim exists; this driver may not commit any more."""


OnClear = Literal["auto", "restore", "fresh"]
"""The operator's parameter of that name: what a person's clear means."""


def meaning_of_clear(on_clear: OnClear, asked: RestorePolicy) -> OnClear:
    """Whoever names a checkpoint and clears wants to go on from it, after a success too: a fresh beginning has nothing of that name."""
    return "restore" if asked.mode == "explicit" else on_clear


class JobStatus(str, Enum):
    """Ray's job states."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended."""
        return self not in (JobStatus.PENDING, JobStatus.RUNNING)


class TrainingKind(str, Enum):
    """The ways to say what to train."""

    TRAIN_LOOP = "train_loop"
    """`target` is the training loop; the driver builds the TorchTrainer."""
    TRAINER = "trainer"
    """`target` is a factory that takes the run config and returns a Ray Train trainer."""
    ENTRYPOINT = "entrypoint"
    """`command` is a user's script, run under our driver; it asks `airflow_provider.runtime` for its run config."""


class TrainVersion(str, Enum):
    """Ray Train V1 (`restore`) or V2 (same name and path)."""

    V1 = "v1"
    V2 = "v2"


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
