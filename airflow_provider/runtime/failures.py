"""An exception of a fit as a classified failure, with our own verdicts seen through Ray's wrappers."""

from __future__ import annotations

from airflow_provider.core.errors import RayJobFailed
from airflow_provider.core.failure import Failure
from airflow_provider.runtime.exceptions import classify_exception


def ended_by_rule(error: BaseException) -> Failure | None:
    """The failure with which our rule ended a fit inside Ray's controller, if it did."""
    inner = getattr(error, "controller_failure", None)
    return inner.failure if isinstance(inner, RayJobFailed) else None


def failure_of(error: BaseException) -> Failure:
    """What ended the fit."""
    ended = ended_by_rule(error)
    return ended if ended is not None else classify_exception(error)
