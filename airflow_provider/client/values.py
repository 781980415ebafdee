"""What we send to and read from Ray's Jobs API, as values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any

from airflow_provider.core.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.core.job import JobStatus

_SUBMISSION_ID = re.compile(r"^[A-Za-z0-9_-]{1,200}$")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class JobInfo:
    """One job as Ray describes it. Fields Ray adds later are ignored, absent ones are None.

    The runtime environment is left out on purpose: Ray returns its variables in clear, and nothing of ours needs it.
    """

    submission_id: str
    status: JobStatus
    entrypoint: str = field(default="", repr=False)
    message: str | None = None
    """Ray's text; for a failed job the last 10 log lines, at most 20,000 characters."""
    error_type: str | None = None
    driver_exit_code: int | None = None
    """None while running and for a stopped job; negative = killed by that signal; 137 = killed under a shell."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    start_time: datetime | None = None
    end_time: datetime | None = None
    driver_node_id: str | None = None
    driver_node_ip: str | None = None
    ray_job_id: str | None = None
    """Ray's internal id; None until the driver called `ray.init`."""

    def has_metadata(self, wanted: Mapping[str, str]) -> bool:
        """Whether Ray holds exactly these values for these keys."""
        return all(self.metadata.get(key) == value for key, value in wanted.items())


@dataclass(frozen=True)
class ClusterVersion:
    """Answer of `/api/version`. A new `session_name` means that the head was replaced."""

    ray_version: str
    session_name: str | None = None
    version: str | None = None
    """Version of the Jobs protocol ("4" in Ray 2.60)."""


@dataclass(frozen=True)
class JobRequest:
    """A job to submit under a deterministic id.

    Raises:
        InvalidConfig: an id outside `[A-Za-z0-9_-]{1,200}` (one with "/" leaves a job pending forever), an empty
            entrypoint, or metadata that isn't text.

    """

    submission_id: str
    entrypoint: str = field(repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict, repr=False)
    entrypoint_num_cpus: float | None = None
    entrypoint_num_gpus: float | None = None
    entrypoint_memory: int | None = None
    """Bytes."""
    entrypoint_resources: Mapping[str, float] | None = None
    entrypoint_label_selector: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Refuse what Ray would accept and then fail on, or refuse less clearly."""
        if not _SUBMISSION_ID.match(self.submission_id):
            raise InvalidConfig(
                f"submission id {self.submission_id!r} can't be used", change="use 1 to 200 of A-Z a-z 0-9 _ -"
            )
        if not self.entrypoint.strip():
            raise InvalidConfig("the job has no entrypoint", change="give a command")
        if not all(_is_text(key) and _is_text(value) for key, value in self.metadata.items()):
            raise InvalidConfig("job metadata must map text to text", change="convert the values to str")

    def to_json(self) -> dict[str, Any]:
        """Body of the POST. Ray refuses fields it doesn't know, so what isn't set isn't sent."""
        body: dict[str, Any] = {
            "submission_id": self.submission_id,
            "entrypoint": self.entrypoint,
            "metadata": dict(self.metadata),
            "runtime_env": dict(self.runtime_env),
        }
        optional = {
            "entrypoint_num_cpus": self.entrypoint_num_cpus,
            "entrypoint_num_gpus": self.entrypoint_num_gpus,
            "entrypoint_memory": self.entrypoint_memory,
            "entrypoint_resources": None if self.entrypoint_resources is None else dict(self.entrypoint_resources),
            "entrypoint_label_selector": (
                None if self.entrypoint_label_selector is None else dict(self.entrypoint_label_selector)
            ),
        }
        return body | {name: value for name, value in optional.items() if value is not None}


@dataclass(frozen=True)
class SubmitAccepted:
    """Ray took the POST."""

    submission_id: str


@dataclass(frozen=True)
class AlreadyExists:
    """Ray refused the POST because the id is known, in whichever status code it wrapped that."""

    status: int


@dataclass(frozen=True)
class Package:
    """A zip for the cluster, named by its content."""

    uri: str
    """`gcs://_ray_pkg_<hash>.zip`, as it stands in `working_dir` or `py_modules`."""
    content: bytes = field(repr=False)
    num_files: int = 0
    left_out: tuple[str, ...] = ()
    """Links that lead out of the tree or nowhere, relative to it."""


class SubmitOrigin(str, Enum):
    """How we come to have a job under the id."""

    POSTED = "posted"
    FOUND = "found"


@dataclass(frozen=True)
class SubmitOutcome:
    """Result of a submit-or-find."""

    submission_id: str
    origin: SubmitOrigin
    num_posts: int
    reason: str
    """One sentence with numbers, for the task log."""
    job: JobInfo | None = None
    """The job as it was found; None after a plain POST."""


@dataclass(frozen=True)
class LogChunk:
    """Lines that appear for the first time."""

    lines: tuple[str, ...]
    """Cleaned lines without line ends."""
    position: int
    """Characters of Ray's log consumed so far; give it back to go on behind these lines."""
    note: str | None = None
    """A remark of ours: what was skipped, or why the live log stopped."""


@dataclass(frozen=True)
class LogPart:
    """A piece of a job's log file, read at once."""

    text: str = field(repr=False)
    position: int
    """Characters from the start of the file to the end of `text`."""
    num_in_lines: int
    """Those of them that are no line ends; see `log_place`."""
    num_dropped: int = 0
    """Characters between the wanted start and `text` that were over the limit."""
    is_complete: bool = True
    """False where the file was longer than we were ready to read."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def from_millis(value: object) -> datetime | None:
    """Ray's Unix milliseconds as an aware datetime; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return None
