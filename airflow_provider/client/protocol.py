"""What the operators, triggers and hooks need of a client; a fake has to offer no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from airflow_provider.client.log_tail import TailLimits
    from airflow_provider.client.values import (
        ClusterVersion,
        JobInfo,
        JobRequest,
        LogChunk,
        LogPart,
        Package,
        SubmitOutcome,
    )


@runtime_checkable
class JobsClient(Protocol):
    """Blocking: the worker's side. Runtime-checkable, so that a renamed method fails in a test."""

    def version(self) -> ClusterVersion:
        """Ray's version and head session."""
        ...

    def get_job(self, submission_id: str) -> JobInfo | None:
        """One job, None if unknown."""
        ...

    def submit_or_find(
        self,
        request: JobRequest,
        *,
        packages: Sequence[Package] = (),
        before_post: Callable[[], None] | None = None,
    ) -> SubmitOutcome:
        """Submit under the request's id or find it there; `before_post` runs before every POST."""
        ...

    def stop(self, submission_id: str) -> bool:
        """Ask Ray to stop a job."""
        ...

    def logs(self, submission_id: str, *, position: int = 0, max_chars: int = ...) -> LogPart | None:
        """The log behind `position`."""
        ...

    def close(self) -> None:
        """Close the connection pool."""
        ...


@runtime_checkable
class AsyncJobs(Protocol):
    """Asyncio: the triggerer's side."""

    async def version(self) -> ClusterVersion:
        """Ray's version and head session."""
        ...

    async def get_job(self, submission_id: str) -> JobInfo | None:
        """One job, None if unknown."""
        ...

    async def stop(self, submission_id: str) -> bool:
        """Ask Ray to stop a job."""
        ...

    async def logs(self, submission_id: str, *, position: int = 0, max_chars: int = ...) -> LogPart | None:
        """The log behind `position`."""
        ...

    def tail(
        self,
        submission_id: str,
        *,
        position: int = 0,
        is_over: Callable[[], Awaitable[bool]] | None = None,
        limits: TailLimits | None = None,
    ) -> AsyncGenerator[LogChunk, None]:
        """Follow a log, each line once."""
        ...

    async def close(self) -> None:
        """Close the connection pool."""
        ...
