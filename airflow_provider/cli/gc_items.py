"""What `gc` found: each thing with a verdict and its reason, and the deed that removes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from airflow_provider.core.errors import RayTrainError

Deed = Callable[[], str]
"""Removes what was found after looking once more; the answer is what was done, or why nothing was."""


class Scope(str, Enum):
    """Kinds of garbage."""

    JOB = "job"
    LEFTOVER = "leftover"
    EXPERIMENT = "experiment"


class NotDone(RayTrainError):
    """The last look before the deed saw something else: nothing was removed."""


@dataclass(frozen=True)
class Item:
    """One thing that was looked at."""

    scope: Scope
    name: str
    why: str
    deed: Deed | None = None
    """None: it stays, because of `why`."""
    num_bytes: int | None = None
    done: str | None = None
    """What was done, once it was."""
    failed: str | None = None
    """Why it could not be done."""

    @property
    def data(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "scope": self.scope.value,
            "name": self.name,
            "verdict": "keep" if self.deed is None else "collect",
            "why": self.why,
            "num_bytes": self.num_bytes,
            "done": self.done,
            "failed": self.failed,
        }

    def carried_out(self) -> Item:
        """The item after its deed. An error is kept: the others are still to be done."""
        if self.deed is None:
            return self
        try:
            return replace(self, done=self.deed())
        except RayTrainError as error:
            return replace(self, failed=str(error))
