"""What `doctor`'s job is asked, and what it reports: both sides read the same models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from airflow_provider.core.field_types import Shown
from airflow_provider.core.spec import StorageConfig

REQUEST_FILE = "self_check.json"
"""Name of the request inside the `airflow_provider` folder of the job's package."""
MARK = "RAY_TRAIN_SELF_CHECK "
"""Begins the line of the job's log that holds the report."""


class SelfCheckRequest(BaseModel):
    """What the job looks at."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    storage_path: str | None = None
    storage: StorageConfig = StorageConfig()
    is_read_only: bool = False


class SelfCheckStep(BaseModel):
    """One verb on the bucket, as the cluster's own identity could carry it out."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    action: Shown
    error: Shown | None = None
    change: Shown = ""


class SelfCheckReport(BaseModel):
    """What the job found."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    versions: dict[str, Shown | None]
    """Of Python and packages; None where one is not installed."""
    missing_seams: tuple[Shown, ...] | None = None
    """Of Ray's internals; None where they could not be looked at."""
    bucket: tuple[SelfCheckStep, ...] = ()
