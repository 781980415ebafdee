"""Words of a job that both sides know: kinds, states, exit codes, names of its document. `core/job_spec.py` is the document."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from airflow_provider.core.restore_policy import RestorePolicy

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
