"""Read one answer of a dashboard, or of whatever stands in front of it: a typed value or a typed error. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider.client.values import (
    AlreadyExists,
    ClusterVersion,
    JobInfo,
    SubmitAccepted,
    from_millis,
)
from airflow_provider.core.errors import (
    ClusterAuthFailed,
    ClusterRefused,
    ClusterUnreachable,
    InvalidConfig,
    NotARayDashboard,
)
from airflow_provider.core.job import JobStatus
from airflow_provider.core.json_input import UnreadableJson, read_json
from airflow_provider.core.strict_json import shortened

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_TEXT = 500
"""Characters of a server's text that an error repeats."""
_MAX_NAME = 300
"""Characters of a name, a version or a type."""
_MAX_MESSAGE = 24_000
"""Characters of a job's message; Ray's own have at most 20,000."""
_UNKNOWN_JOB = re.compile(r"\bjob\b.{0,300}\bdoes not exist\b", re.IGNORECASE | re.DOTALL)
_UNKNOWN_PACKAGE = re.compile(r"\bdoes not exist\b", re.IGNORECASE)
_ALREADY_EXISTS = re.compile(r"\balready exists\b", re.IGNORECASE)
_TOO_LARGE = re.compile(r"request entity too large|maximum request body size|HTTPRequestEntityTooLarge", re.IGNORECASE)
_BODY_LIMIT = re.compile(r"maximum request body size (\d{1,18})\b", re.IGNORECASE)
_TRY_AGAIN = frozenset({408, 425, 429})
"""4xx by which a server or gateway asks for the same request later; nothing has to change."""

_OK, _REDIRECT, _CLIENT_ERROR, _SERVER_ERROR, _END = 200, 300, 400, 500, 600
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_LARGE_STATUS = 401, 403, 404, 413


@dataclass(frozen=True)
class Reply:
    """An HTTP answer with what an error message needs; `header_name` is where our token was sent."""

    status: int
    content_type: str
    body: bytes = field(repr=False)
    url: str = ""
    header_name: str = "Authorization"
    has_token: bool = False
    location: str = ""
    redact: Callable[[str], str] = field(default=lambda text: text, repr=False)

    @property
    def text(self) -> str:
        """The body as text without our secrets; bytes that aren't UTF-8 are replaced."""
        return self.redact(self.body.decode("utf-8", errors="replace"))

    @property
    def is_markup(self) -> bool:
        """Whether this is a page (HTML, XML) rather than anything Ray's API sends.

        By its body: gateways and small servers label plain texts, Ray's passed on among them, as HTML.
        """
        return self.body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def parse_version(reply: Reply) -> ClusterVersion:
    """Read `/api/version`."""
    data = _json_object(reply)
    ray_version = data.get("ray_version")
    if not isinstance(ray_version, str):
        raise _not_ray(reply, "the answer names no ray_version")
    return ClusterVersion(
        ray_version=shortened(reply.redact(ray_version), limit=_MAX_NAME),
        session_name=_text(reply, data.get("session_name")),
        version=_text(reply, data.get("version")),
    )


def parse_job(reply: Reply, *, asked: str) -> JobInfo | None:
    """Read one job, asked for by either of its ids; None only if Ray itself says that it doesn't exist."""
    if reply.status == _NOT_FOUND:
        _demand_ray_404(reply, _UNKNOWN_JOB)
        return None
    job = _job_info(reply, _json_object(reply))
    if asked not in {job.submission_id, job.ray_job_id}:
        # An answer that came late on a kept connection, or that a gateway took from its cache, must not end another job's wait.
        raise NotARayDashboard(
            f"asked about job {asked[:_MAX_NAME]}, {reply.url} answered about another one",
            known=f"it described {shortened(reply.redact(job.submission_id), limit=_MAX_NAME)}",
            change="check what stands between Airflow and the dashboard",
            status=reply.status,
        )
    return job


def parse_jobs(reply: Reply) -> list[JobInfo]:
    """Read the list of all jobs; drivers that nobody submitted (an interactive `ray.init`) are left out."""
    data = _json(reply)
    if not isinstance(data, list):
        raise _not_ray(reply, "the list of jobs is no list")
    submitted = (one for one in data if isinstance(one, dict) and isinstance(one.get("submission_id"), str))
    return [_job_info(reply, one) for one in submitted]


def _job_info(reply: Reply, data: dict[str, Any]) -> JobInfo:
    submission_id = data.get("submission_id")
    try:
        status = JobStatus(data.get("status"))
    except ValueError:
        seen = reply.redact(str(data.get("status")))[:40]
        raise _not_ray(reply, f"job status {seen!r} is not one of Ray's") from None
    if not isinstance(submission_id, str):
        raise _not_ray(reply, "the answer describes no submitted job")
    driver = data.get("driver_info")
    metadata = data.get("metadata")
    return JobInfo(
        submission_id=submission_id,
        status=status,
        entrypoint=_text(reply, data.get("entrypoint")) or "",
        message=_text(reply, data.get("message"), limit=_MAX_MESSAGE),
        error_type=_text(reply, data.get("error_type")),
        driver_exit_code=_integer(data.get("driver_exit_code")),
        metadata={k: v for k, v in metadata.items() if isinstance(v, str)} if isinstance(metadata, dict) else {},
        start_time=from_millis(data.get("start_time")),
        end_time=from_millis(data.get("end_time")),
        driver_node_id=_text(reply, data.get("driver_node_id")),
        driver_node_ip=_text(reply, driver.get("node_ip_address")) if isinstance(driver, dict) else None,
        ray_job_id=_text(reply, data.get("job_id")),
    )


def parse_submit(reply: Reply) -> SubmitAccepted | AlreadyExists:
    """Read the answer to a POST. "already exists" is a value: older dashboards wrap the agent's 400 into a 500."""
    refused = reply.status >= _CLIENT_ERROR and reply.status not in {_UNAUTHORIZED, _FORBIDDEN}
    if refused and not reply.is_markup and _ALREADY_EXISTS.search(reply.text):
        return AlreadyExists(status=reply.status)
    data = _json_object(reply)
    submission_id = data.get("submission_id") or data.get("job_id")
    if not isinstance(submission_id, str):
        raise _not_ray(reply, "the answer to a submit names no job")
    return SubmitAccepted(submission_id=submission_id)


def parse_stop(reply: Reply) -> bool:
    """Read the answer to a stop; False for a job that had ended or is unknown."""
    if reply.status == _NOT_FOUND:
        _demand_ray_404(reply, _UNKNOWN_JOB)
        return False
    stopped = _json_object(reply).get("stopped")
    if not isinstance(stopped, bool):
        raise _not_ray(reply, "the answer to a stop doesn't say whether it stopped")
    return stopped


def parse_has_package(reply: Reply) -> bool:
    """Read whether a package is there; Ray's yes is an empty 200."""
    if reply.status == _NOT_FOUND:
        _demand_ray_404(reply, _UNKNOWN_PACKAGE)
        return False
    _demand_success(reply)
    if reply.body and "html" in reply.content_type.lower():
        raise _not_ray(reply, "it answered with text where Ray's answer is empty")
    return True


def parse_upload(reply: Reply, *, size: int) -> None:
    """Read the answer to an upload of `size` bytes.

    Raises:
        InvalidConfig: too large, whether said by 413 or (older Ray, gateways) inside another status.

    """
    too_large = reply.status == _TOO_LARGE_STATUS or (reply.status >= _CLIENT_ERROR and _TOO_LARGE.search(reply.text))
    if too_large:
        limit = _BODY_LIMIT.search(reply.text)
        known = f"the limit is {int(limit[1]):,} bytes" if limit else "Ray's usual limit is 104,857,600 bytes (100 MiB)"
        raise InvalidConfig(
            f"the package of {size:,} bytes is too large for the dashboard (status {reply.status})",
            known=f"{known}; a gateway in front may allow less",
            change="leave data out with .rayignore, .gitignore or excludes, and read it from storage instead",
            size=size,
            status=reply.status,
        )
    if reply.status == _NOT_FOUND:
        raise _not_ray(reply, "it has no package upload")
    _demand_success(reply)


def parse_no_log(reply: Reply) -> None:
    """Judge an answer that is not a log; None for a job that Ray doesn't know."""
    if reply.status == _NOT_FOUND:
        _demand_ray_404(reply, _UNKNOWN_JOB)
        return
    if not isinstance(_json_object(reply).get("logs"), str):
        raise _not_ray(reply, "the answer holds no log")


def _demand_ray_404(reply: Reply, wording: re.Pattern[str]) -> None:
    # A proxy without a route answers 404 too; taking that for "job gone" would declare a healthy job lost.
    if reply.is_markup or not wording.search(reply.text[:2000]):
        raise _not_ray(reply, "the 404 is not Ray's")


def _demand_success(reply: Reply) -> None:
    if not _OK <= reply.status < _REDIRECT:
        _raise_refusal(reply)
    if reply.is_markup:
        raise _not_ray(reply, "it answered with a page instead of JSON")


def _json_object(reply: Reply) -> dict[str, Any]:
    data = _json(reply)
    if not isinstance(data, dict):
        raise _not_ray(reply, "it answered with JSON that is not an object")
    return data


def _json(reply: Reply) -> object:
    _demand_success(reply)
    try:
        return read_json(reply.body)
    except UnreadableJson:
        head = reply.body.lstrip()[:1]
        if head in {b"{", b"["} or "json" in reply.content_type.lower():
            raise ClusterUnreachable(
                f"the answer of {reply.url} is cut or torn JSON",
                known=f"status {reply.status}, {len(reply.body):,} bytes arrived",
                change="nothing if it passes; else check the gateway's buffering",
                status=reply.status,
            ) from None
        raise _not_ray(reply, "it answered with text instead of JSON") from None


def _raise_refusal(reply: Reply) -> NoReturn:
    status = reply.status
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        sent = f"our token was sent in header {reply.header_name}" if reply.has_token else "no token was sent"
        raise ClusterAuthFailed(
            f"the Ray dashboard at {reply.url} refused our identity (status {status})",
            known=f"{sent}; answer: {last_line(reply)}",
            change="correct the connection's token, or its header name (Authorization or X-Ray-Authorization)",
            status=status,
            header_name=reply.header_name,
        )
    if _REDIRECT <= status < _CLIENT_ERROR:
        raise _not_ray(
            reply, f"it redirects to {reply.redact(reply.location) or 'another address'}, which isn't followed"
        )
    if status in _TRY_AGAIN or _SERVER_ERROR <= status < _END:
        raise ClusterUnreachable(
            f"the dashboard gave no usable answer to {reply.url} (status {status})",
            known=last_line(reply),
            change="nothing if it passes; else look at the dashboard and at the gateway before it",
            status=status,
        )
    if status == _NOT_FOUND:
        raise _not_ray(reply, "the 404 is not Ray's")
    if _CLIENT_ERROR <= status < _SERVER_ERROR:
        raise ClusterRefused(
            f"Ray refused the request to {reply.url} (status {status})",
            known=last_line(reply),
            change="correct what the message names; the same request will be refused again",
            status=status,
        )
    raise _not_ray(reply, f"status {status} has no meaning for the Jobs API")


def _not_ray(reply: Reply, why: str) -> NotARayDashboard:
    return NotARayDashboard(
        f"{reply.url or 'the address'} doesn't answer like Ray's dashboard: {why}",
        known=f"status {reply.status}, content type {reply.redact(reply.content_type)[:80] or 'none'}",
        change="check host, port and path prefix of the connection, and what a proxy before it answers",
        status=reply.status,
    )


def last_line(reply: Reply) -> str:
    """Last line of a server's text: of Ray's traceback the one with the exception; of a page only that it is one."""
    if reply.is_markup:
        return f"a page of {len(reply.body):,} bytes, not Ray's"
    lines = [line.strip() for line in reply.text[-20_000:].splitlines() if line.strip()]
    if not lines:
        return "an empty answer"
    line = lines[-1]
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}... ({len(line):,} characters)"


def _text(reply: Reply, value: object, *, limit: int = _MAX_NAME) -> str | None:
    """A text of the answer as far as we keep it: a gateway may echo what it was sent, our token too."""
    return shortened(reply.redact(value), limit=limit) if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
