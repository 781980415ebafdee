"""The table of requests: what is sent and how each answer is read. Pure, shared by both clients."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import quote

from airflow_provider.client import replies
from airflow_provider.core.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.client.replies import Reply
    from airflow_provider.client.values import (
        AlreadyExists,
        ClusterVersion,
        JobInfo,
        JobRequest,
        Package,
        SubmitAccepted,
    )

T = TypeVar("T")

_PACKAGE_URI = re.compile(r"^(?P<protocol>gcs)://(?P<name>[A-Za-z0-9._-]+\.zip)$")


@dataclass(frozen=True)
class ApiRequest(Generic[T]):
    """One request and the reading of its answer."""

    method: str
    path: str
    parse: Callable[[Reply], T] = field(repr=False)
    content: bytes | None = field(default=None, repr=False)
    content_type: str | None = None
    is_bulk: bool = False
    """Whether it moves so much that the longer time limit counts."""


def get_version() -> ApiRequest[ClusterVersion]:
    """Which Ray answers, and which start of its head."""
    return ApiRequest("GET", "/api/version", replies.parse_version)


def get_job(submission_id: str) -> ApiRequest[JobInfo | None]:
    """One job; None when Ray says that it doesn't know it."""
    return ApiRequest("GET", _job_path(submission_id), partial(replies.parse_job, asked=submission_id))


def list_jobs() -> ApiRequest[list[JobInfo]]:
    """All jobs that Ray remembers. Slow on old clusters: for a person's command, never for a poll."""
    return ApiRequest("GET", "/api/jobs/", replies.parse_jobs, is_bulk=True)


def submit(request: JobRequest) -> ApiRequest[SubmitAccepted | AlreadyExists]:
    """One POST. It may have been accepted even if no answer comes."""
    try:
        content = json.dumps(request.to_json(), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidConfig(
            "the job can't be written as JSON", known=str(error), change="use plain values in runtime_env"
        ) from error
    return ApiRequest("POST", "/api/jobs/", replies.parse_submit, content, "application/json")


def stop(submission_id: str) -> ApiRequest[bool]:
    """Ask Ray to stop a job; True = a stop was begun, False = already ended or unknown.

    Known limitation: Ray answers true for a PENDING job and does nothing until it starts (ray issue 58353).
    """
    return ApiRequest("POST", f"{_job_path(submission_id)}/stop", replies.parse_stop)


def has_package(uri: str) -> ApiRequest[bool]:
    """Whether Ray holds a package; the question itself renews its 10 minutes of life."""
    return ApiRequest("GET", _package_path(uri), replies.parse_has_package)


def upload_package(package: Package) -> ApiRequest[None]:
    """Send a package's bytes."""
    size = len(package.content)
    return ApiRequest(
        "PUT",
        _package_path(package.uri),
        lambda reply: replies.parse_upload(reply, size=size),
        package.content,
        "application/zip",
        is_bulk=True,
    )


def logs(submission_id: str) -> ApiRequest[None]:
    """The whole log file as JSON; the body is read as a stream, `parse` judges only what isn't a log."""
    return ApiRequest("GET", f"{_job_path(submission_id)}/logs", replies.parse_no_log, is_bulk=True)


def log_size(submission_id: str) -> ApiRequest[None]:
    """The same without its body: Ray reads the file and says how long the answer would be."""
    return ApiRequest("HEAD", f"{_job_path(submission_id)}/logs", replies.parse_no_log, is_bulk=True)


def tail_path(submission_id: str) -> str:
    """Path of the log websocket."""
    return f"{_job_path(submission_id)}/logs/tail"


def _job_path(submission_id: str) -> str:
    return f"/api/jobs/{quote(submission_id, safe='')}"


def _package_path(uri: str) -> str:
    match = _PACKAGE_URI.match(uri)
    if match is None:
        raise InvalidConfig(f"package name {uri!r} can't be used", change="use gcs://_ray_pkg_<hash>.zip")
    return f"/api/packages/{match['protocol']}/{match['name']}"
