"""One finding of `doctor`: what was looked at, how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.redaction import redact


class Health(str, Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    """It works, with less than it could."""
    PROBLEM = "problem"
    """A training would fail, or be less safe than it says."""
    SKIPPED = "skipped"
    """Not looked at; the finding says how to."""


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    check: str
    """A name that scripts may rely on."""
    health: Health
    what: str
    known: str = ""
    change: str = ""

    @property
    def data(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "check": self.check,
            "health": self.health.value,
            "what": self.what,
            "known": self.known,
            "change": self.change,
        }


def ok(check: str, what: str, *, known: str = "") -> Finding:
    """All is well."""
    return Finding(check, Health.OK, what, known)


def warning(check: str, what: str, *, known: str = "", change: str) -> Finding:
    """It works, but."""
    return Finding(check, Health.WARNING, what, known, change)


def problem(check: str, what: str, *, known: str = "", change: str) -> Finding:
    """It doesn't work."""
    return Finding(check, Health.PROBLEM, what, known, change)


def skipped(check: str, what: str, *, change: str) -> Finding:
    """Not looked at."""
    return Finding(check, Health.SKIPPED, what, "", change)


def of_error(check: str, error: RayTrainError, *, change: str = "") -> Finding:
    """An error as a finding: it says by itself what to fix."""
    return problem(check, redact(error.what), known=redact(error.known), change=error.change or change)


def checked(check: str, look: Callable[[], Finding]) -> Finding:
    """The finding of a look, or of the error that ended it."""
    try:
        return look()
    except RayTrainError as error:
        return of_error(check, error)
