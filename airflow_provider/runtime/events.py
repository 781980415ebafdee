"""What the Ray Train controller tells the driver: lines in a file on the node that both run on.

Ray pins the controller to the driver's node. A line costs microseconds, blocks on no network, and what was written
survives the controller's death; the driver's threads do the slow work (listing files, writing records).
"""

from __future__ import annotations

import contextlib
import os
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from airflow_provider.core.failure import Failure
from airflow_provider.core.field_types import Shown, UtcTime
from airflow_provider.core.records import Phase


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")
    at: UtcTime


class StartEvent(_Event):
    """A controller began a fit; `train_run_id` is Ray's, by which its reservation of nodes can be released."""

    type: Literal["start"] = "start"
    train_run_id: str


class PhaseEvent(_Event):
    """The controller's state changed to one of another phase."""

    type: Literal["phase"] = "phase"
    phase: Phase


class ReportEvent(_Event):
    """First report of the workers after they started: what proves a restore."""

    type: Literal["report"] = "report"
    metrics: dict[str, Any]


class CommitEvent(_Event):
    """A checkpoint is in the manifest."""

    type: Literal["commit"] = "commit"
    checkpoint: str
    metrics: dict[str, Any]


class FailureEvent(_Event):
    """A worker group or its start failed, and what Ray (or our rule) decided."""

    type: Literal["failure"] = "failure"
    failure: Failure
    decision: Shown
    is_final: bool = False
    """The fit ends with it: no restart follows."""


Event = Annotated[StartEvent | PhaseEvent | ReportEvent | CommitEvent | FailureEvent, Field(discriminator="type")]
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def append_event(path: str, event: _Event) -> None:
    """Add one line, whole or not at all for readers that split at the newline."""
    line = event.model_dump_json().encode() + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)


class EventReader:
    """Reads the lines that were added since the last call."""

    def __init__(self, path: str) -> None:
        """The file may not exist yet."""
        self.path = path
        self._offset = 0

    def read_new(self) -> list[Event]:
        """New whole lines; a damaged one is skipped, since the manifest completes what it would have said."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                body = file.read()
        except FileNotFoundError:
            return []
        whole = body[: body.rfind(b"\n") + 1]
        self._offset += len(whole)
        found: list[Event] = []
        for line in whole.splitlines():
            with contextlib.suppress(ValidationError):
                found.append(_EVENT.validate_json(line))
        return found
