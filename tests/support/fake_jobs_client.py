"""Clients of the Jobs API without a socket: the real submit-or-find and the real waiter on top of scripted answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from airflow_provider.client.address import ClusterAddress
from airflow_provider.client.jobs_client import SyncJobsClient
from airflow_provider.client.log_reader import LogReader
from airflow_provider.client.values import (
    AlreadyExists,
    ClusterVersion,
    JobInfo,
    JobRequest,
    LogChunk,
    LogPart,
    Package,
    SubmitAccepted,
)
from airflow_provider.core.errors import ClusterUnreachable
from airflow_provider.core.job import JobStatus

if TYPE_CHECKING:
    from airflow_provider.client.log_tail import TailLimits

SESSION = "session_1"


async def until(is_true: Callable[[], object]) -> None:
    """Let the loop run until something has happened."""
    while not is_true():  # noqa: ASYNC110 - a test looks from outside
        await asyncio.sleep(0)


def job(submission_id: str, status: str, **changes: Any) -> JobInfo:
    return JobInfo(submission_id=submission_id, status=JobStatus(status), **changes)


class FakeJobsClient(SyncJobsClient):
    """A cluster in a dict. `log` holds what was asked in order; a test may share it with its store."""

    def __init__(self, log: list[tuple[str, str]] | None = None) -> None:
        super().__init__(ClusterAddress.parse("http://ray:8265"), sleep=lambda _: None)
        self.log: list[tuple[str, str]] = log if log is not None else []
        self.jobs: dict[str, JobInfo] = {}
        self.requests: list[JobRequest] = []
        self.packages: dict[str, Package] = {}
        self.session_name = SESSION
        self.before_post: Callable[[], None] = lambda: None
        self.after_post: Callable[[], None] = lambda: None
        """May raise: a POST whose answer is lost."""
        self.silence: Exception | None = None
        """Raised by every question."""
        self.ends_on_stop = True

    @property
    def posted(self) -> list[str]:
        return [request.submission_id for request in self.requests]

    def close(self) -> None:
        self.log.append(("close", ""))
        super().close()

    def version(self) -> ClusterVersion:
        self._ask("version", "")
        return ClusterVersion(ray_version="2.60.0", session_name=self.session_name)

    def get_job(self, submission_id: str) -> JobInfo | None:
        self._ask("get_job", submission_id)
        return self.jobs.get(submission_id)

    def has_package(self, uri: str) -> bool:
        return uri in self.packages

    def upload_package(self, package: Package) -> None:
        self.packages[package.uri] = package

    def submit(self, request: JobRequest) -> SubmitAccepted | AlreadyExists:
        self.before_post()
        self._ask("POST", request.submission_id)
        if request.submission_id in self.jobs:
            return AlreadyExists(500)
        self.requests.append(request)
        self.jobs[request.submission_id] = job(request.submission_id, "PENDING", metadata=request.metadata)
        self.after_post()
        return SubmitAccepted(request.submission_id)

    def stop(self, submission_id: str) -> bool:
        self._ask("stop", submission_id)
        if self.ends_on_stop and submission_id in self.jobs:
            self.jobs[submission_id] = job(submission_id, "STOPPED")
        return True

    def _ask(self, what: str, about: str) -> None:
        self.log.append((what, about))
        if self.silence is not None:
            raise self.silence


class FakeAsyncJobs:
    """Answers `get_job` from a script: a status, None (no such job) or an error; the last answer stays."""

    def __init__(self, answers: Iterable[str | Exception | None], *, session_name: str = SESSION) -> None:
        self._answers = deque(answers)
        self._last: str | Exception | None = None
        self.session_name = session_name
        self.lines: tuple[str, ...] = ()
        self.tail_error: Exception | None = None
        self.size_error: Exception | None = None
        self.ends_tail = True
        """Whether the log ends as soon as the job does."""
        self.stopped: list[str] = []
        self.num_polls = 0
        self.is_closed = False

    async def version(self) -> ClusterVersion:
        return ClusterVersion(ray_version="2.60.0", session_name=self.session_name)

    async def get_job(self, submission_id: str) -> JobInfo | None:
        self.num_polls += 1
        if self._answers:
            self._last = self._answers.popleft()
        if isinstance(self._last, Exception):
            raise self._last
        return job(submission_id, self._last) if self._last else None

    async def stop(self, submission_id: str) -> bool:
        self.stopped.append(submission_id)
        return True

    async def tail(
        self,
        submission_id: str,
        *,
        reader: LogReader | None = None,
        is_over: Callable[[], Awaitable[bool]] | None = None,
        limits: TailLimits | None = None,
    ) -> AsyncGenerator[LogChunk, None]:
        reader = reader or LogReader()  # its place is counted in lines here
        for line in self.lines[reader.position :]:
            reader.position += 1
            yield LogChunk((line,), reader.position)
        if self.tail_error is not None:
            raise self.tail_error
        while not self.ends_tail or (is_over is not None and not await is_over()):  # noqa: ASYNC110 - asked as in life
            await asyncio.sleep(0)

    async def log_size(self, submission_id: str) -> int | None:
        if self.size_error is not None:
            raise self.size_error
        return None

    async def logs(self, submission_id: str, *, position: int, max_chars: int) -> LogPart | None:
        raise ClusterUnreachable("this one has a tail only")

    async def close(self, *, is_broken: bool = False) -> None:
        self.is_closed, self.is_broken = True, is_broken

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
