"""What went wrong with a training, and whether trying again can help."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from airflow_provider.core.field_types import Shown
from airflow_provider.core.strict_json import storable


class FailureKind(str, Enum):
    """Why an attempt ended. The kind alone decides whether Airflow tries again."""

    USER = "user"
    """Deterministic error in the training code."""
    CONFIG = "config"
    """The request itself is wrong: bad address, unknown module, runtime environment that can't be built."""
    PERMISSION = "permission"
    """The object store or the cluster refused the identity we use."""
    AUTH = "auth"
    """The Ray dashboard refused our token (401 or 403)."""
    CAPACITY = "capacity"
    """The cluster could not place the job or its workers in time."""
    INFRASTRUCTURE = "infrastructure"
    """A process, node or service died under a healthy training."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel or Ray's memory monitor killed a process for host memory."""
    PREEMPTION = "preemption"
    """A node was taken away with notice (spot, drain)."""
    THROTTLING = "throttling"
    """The object store asked us to slow down."""
    CREDENTIALS_EXPIRED = "credentials_expired"
    """Temporary credentials ran out; a new job gets new ones."""
    NETWORK = "network"
    """The dashboard or the object store could not be reached."""
    HANG = "hang"
    """Workers are alive but a collective or a health check never returned."""
    LOST = "lost"
    """The cluster no longer knows the job: its head was replaced."""
    STALLED = "stalled"
    """No committed checkpoint within `stall_timeout_s`."""
    TIMEOUT = "timeout"
    """The absolute deadline of the training passed."""
    SUPERSEDED = "superseded"
    """A newer try or attempt owns the experiment."""
    STOPPED = "stopped"
    """Somebody stopped the job outside Airflow, or the task was marked by hand."""
    CHECKPOINT = "checkpoint"
    """A checkpoint or manifest can't be used and policy forbids going on without it."""

    @property
    def is_retryable(self) -> bool:
        """Whether the same request can succeed later without anybody changing it."""
        return self not in _FINAL_KINDS


_FINAL_KINDS = frozenset(
    {
        FailureKind.USER,
        FailureKind.CONFIG,
        FailureKind.PERMISSION,
        FailureKind.AUTH,
        FailureKind.SUPERSEDED,
        FailureKind.STOPPED,
        FailureKind.TIMEOUT,
        FailureKind.CHECKPOINT,
    }
)


MAX_DETAIL = 8_000


def _cut(detail: Any) -> Any:
    return storable(detail)[-MAX_DETAIL:] if isinstance(detail, str) else detail


class Failure(BaseModel):
    """One classified failure: the kind, one sentence with numbers, and what was seen."""

    model_config = ConfigDict(frozen=True)

    kind: FailureKind
    reason: Shown
    """One sentence: what happened, with the numbers that led to the kind."""
    exception_type: Shown | None = None
    """Qualified name of the innermost exception, where there is one."""
    detail: Annotated[str, BeforeValidator(_cut)] = ""
    """Traceback or log tail; only the last 8,000 characters are kept."""
    repeats: int = Field(default=1, ge=1, le=999_999)
    """How often the same error came in a row from one checkpoint, without a commit in between."""

    @property
    def is_retryable(self) -> bool:
        """Whether Airflow should try again."""
        return self.kind.is_retryable
