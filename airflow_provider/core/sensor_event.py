"""How a sensor's wait ends: the event from the triggerer to the task, and how long a store that can't be read is borne. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from typing_extensions import Self

from airflow_provider.core import errors
from airflow_provider.core.errors import RayTrainError, RecordUnreadable
from airflow_provider.core.experiment_wait import WaitDone, WaitFailed, WaitFailure
from airflow_provider.core.failure import Failure
from airflow_provider.core.field_types import Shown
from airflow_provider.core.redaction import redact
from airflow_provider.core.waiting import TriggerMessage

DAMAGED_LOOKS = 3
"""Looks in a row that must find a record damaged: on a shared directory, a manifest can be read while it is written."""


class SensorEnd(str, Enum):
    """Why a wait ended."""

    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    ERROR = "error"


class SensorError(BaseModel):
    """A typed error on its way from the triggerer: an exception raised in a trigger would lose its type and kind."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    name: Shown
    what: Shown
    known: Shown = ""
    change: Shown = ""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Any exception; only texts without credentials leave."""
        if isinstance(error, RayTrainError):
            name = type(error).__name__
            return cls(name=name, what=redact(error.what), known=redact(error.known), change=redact(error.change))
        return cls(name="", what=redact(f"The sensor failed: {type(error).__name__}: {error}"))

    def rebuilt(self) -> RayTrainError:
        """The error again; one of an unknown type is infrastructure."""
        found = getattr(errors, self.name, None) if self.name.isidentifier() else None
        cls: type[RayTrainError] = RayTrainError
        # A failed job's error needs its failure, and no reading of a bucket raises one.
        if isinstance(found, type) and issubclass(found, RayTrainError) and found is not errors.RayJobFailed:
            cls = found
        return cls(self.what or "The sensor failed", known=self.known, change=self.change)


class SensorEvent(TriggerMessage):
    """What a wait hands to the task that resumes."""

    end: SensorEnd
    reason: Shown
    result: dict[str, Any] | None = None
    """Of a wait that is done."""
    why: WaitFailure | None = None
    failure: Failure | None = None
    """Both of a wait that failed."""
    error: SensorError | None = None
    is_absent: bool = False
    """Of a time-out: whether the experiment was never there."""

    @model_validator(mode="after")
    def _has_all(self) -> Self:
        needed = {
            SensorEnd.DONE: self.result,
            SensorEnd.FAILED: self.why and self.failure,
            SensorEnd.ERROR: self.error,
            SensorEnd.TIMEOUT: self.reason,
        }
        if needed[self.end] is None:
            raise ValueError("what this end needs is not there")
        return self

    @classmethod
    def of(cls, verdict: WaitDone | WaitFailed, *, result: dict[str, Any] | None = None) -> Self:
        """A verdict as an event."""
        if isinstance(verdict, WaitDone):
            return cls(end=SensorEnd.DONE, reason=verdict.reason, result=result)
        return cls(end=SensorEnd.FAILED, reason=verdict.reason, why=verdict.why, failure=verdict.failure)

    @classmethod
    def of_error(cls, error: BaseException) -> Self:
        """An exception as an event."""
        found = SensorError.of(error)
        return cls(end=SensorEnd.ERROR, reason=found.what, error=found)


@dataclass(frozen=True)
class ReadTrouble:
    """Looks in a row that could not read the store."""

    since: datetime
    looks: int
    what: str


def next_trouble(
    before: ReadTrouble | None, error: Exception, *, now: datetime, limit_s: float | None
) -> ReadTrouble | None:
    """The trouble to bear on, or None when the wait must end with this error.

    "Could not read" is never "nothing there". What passes by itself (network, throttling, expired credentials, Airflow's API) is borne
    for `limit_s` (None: until the wait's own end); a refusal or a wrong bucket ends the wait at once.
    """
    looks = before.looks + 1 if before is not None else 1
    since = before.since if before is not None else now
    what = redact(error.what if isinstance(error, RayTrainError) else f"{type(error).__name__}: {error}")[:300]
    trouble = ReadTrouble(since, looks, what)
    if limit_s is None:
        return trouble
    if isinstance(error, RecordUnreadable):
        return trouble if looks < DAMAGED_LOOKS else None
    if isinstance(error, RayTrainError) and not error.failure.is_retryable:
        return None
    return trouble if (now - since).total_seconds() < limit_s else None
