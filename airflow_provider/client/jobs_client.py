"""The two clients of Ray's Jobs API. Both only carry out what `requests` and `submitting` say."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from airflow_provider.client import requests
from airflow_provider.client.credentials import ClusterCredentials
from airflow_provider.client.endpoint import Endpoint, Timeouts, tls_context
from airflow_provider.client.log_body import LogBody, NotALog
from airflow_provider.client.log_tail import Clock, TailLimits, follow
from airflow_provider.client.submitting import (
    Answer,
    EnsurePackage,
    Post,
    Step,
    SubmitLimits,
    Wait,
    submit_or_find_steps,
)
from airflow_provider.client.sync_transport import SyncTransport
from airflow_provider.client.websocket import open_tail
from airflow_provider.core.errors import RayTrainError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from airflow_provider.client.address import ClusterAddress
    from airflow_provider.client.log_reader import LogReader
    from airflow_provider.client.pool import Pool
    from airflow_provider.client.requests import ApiRequest
    from airflow_provider.client.values import (
        AlreadyExists,
        ClusterVersion,
        JobInfo,
        JobRequest,
        LogChunk,
        LogPart,
        Package,
        SubmitAccepted,
        SubmitOutcome,
    )

T = TypeVar("T")

DEFAULT_LOG_CHARS = 1_000_000
"""Characters of a log that are kept when it is read at once."""


class SyncJobsClient:
    """Blocking client with one connection pool; use it as a context manager.

    Every method raises the typed errors of `core.errors` (ClusterUnreachable, ClusterTimeout, ClusterAuthFailed,
    ClusterRefused, NotARayDashboard, InvalidConfig) and never repeats a request by itself, `submit_or_find` excepted.
    """

    def __init__(
        self,
        address: ClusterAddress,
        *,
        credentials: ClusterCredentials | None = None,
        timeouts: Timeouts | None = None,
        submit_limits: SubmitLimits | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open no connection yet; `sleep` (seconds) is for tests."""
        self.address = address
        self._endpoint = Endpoint(address, credentials or ClusterCredentials(), timeouts or Timeouts())
        self._limits = submit_limits or SubmitLimits()
        self._sleep = sleep
        self._transport = SyncTransport(self._endpoint, tls_context(address, self._endpoint.credentials))

    def __enter__(self) -> Self:
        """Give the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection pool."""
        self.close()

    def close(self) -> None:
        """Close the connection pool."""
        self._transport.close()

    def version(self) -> ClusterVersion:
        """Ray's version and the session of its head; needs the token too."""
        return self._call(requests.get_version())

    def get_job(self, submission_id: str) -> JobInfo | None:
        """One job, or None if Ray says that it doesn't know it."""
        return self._call(requests.get_job(submission_id))

    def list_jobs(self) -> list[JobInfo]:
        """All jobs that Ray remembers; for a person's command only, since Ray's list is slow on old clusters."""
        return self._call(requests.list_jobs())

    def submit(self, request: JobRequest) -> SubmitAccepted | AlreadyExists:
        """One POST and nothing else; prefer `submit_or_find`."""
        return self._call(requests.submit(request))

    def stop(self, submission_id: str) -> bool:
        """Ask Ray to stop a job; False if it had ended or is unknown. True for a pending job promises nothing."""
        return self._call(requests.stop(submission_id))

    def has_package(self, uri: str) -> bool:
        """Whether Ray holds a package; asking renews its 10 minutes of life."""
        return self._call(requests.has_package(uri))

    def upload_package(self, package: Package) -> None:
        """Upload a package, whether or not it is there."""
        self._call(requests.upload_package(package))

    def ensure_package(self, package: Package) -> bool:
        """Renew a package, uploading it if needed; True if it was uploaded."""
        if self.has_package(package.uri):
            return False
        self.upload_package(package)
        return True

    def submit_or_find(
        self,
        request: JobRequest,
        *,
        packages: Sequence[Package] = (),
        before_post: Callable[[], None] | None = None,
    ) -> SubmitOutcome:
        """Submit under the request's id or find it there; see `submitting`.

        `before_post` runs before every POST; what it raises ends the submit.
        """
        steps = submit_or_find_steps(request, packages=packages, limits=self._limits)
        answer: Answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                outcome: SubmitOutcome = end.value
                return outcome
            if before_post is not None and isinstance(step, Post):
                before_post()
            answer = self._perform(step)

    def logs(self, submission_id: str, *, position: int = 0, max_chars: int = DEFAULT_LOG_CHARS) -> LogPart | None:
        """The log behind `position` (characters), at most its last `max_chars`; None for an unknown job.

        A 500 here (ClusterUnreachable) with a job that has ended means that the driver's node is gone, and the log with it.
        """
        request = requests.logs(submission_id)
        body = LogBody(position=position, max_chars=max_chars)
        with self._transport.stream(request) as response:
            if not response.is_success:
                body_of_error = self._transport.read(response, request)
                request.parse(self._endpoint.reply(response.status_code, response.headers, body_of_error))
                return None
            try:
                for data in self._transport.pieces(response, request):
                    body.feed(data)
                return body.finish()
            except NotALog as error:
                request.parse(self._endpoint.reply(response.status_code, response.headers, error.head))
                return None

    def _call(self, request: ApiRequest[T]) -> T:
        return request.parse(self._transport.send(request))

    def _perform(self, step: Step) -> Answer:
        try:
            if isinstance(step, Wait):
                self._sleep(step.seconds)
                return None
            if isinstance(step, EnsurePackage):
                self.ensure_package(step.package)
                return None
            return self.submit(step.request) if isinstance(step, Post) else self.get_job(step.submission_id)
        except RayTrainError as error:
            return error


class AsyncJobsClient:
    """Asyncio client; use it as an async context manager.

    The same methods and errors as `SyncJobsClient`, and the log tail; a GET, HEAD or PUT whose connection ends without an answer is sent
    once more. Clients of one event loop with the same address and
    credentials share one connection pool.
    """

    def __init__(
        self,
        address: ClusterAddress,
        *,
        credentials: ClusterCredentials | None = None,
        timeouts: Timeouts | None = None,
        submit_limits: SubmitLimits | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Open no connection yet; `sleep` (seconds) is for tests."""
        self.address = address
        self._endpoint = Endpoint(address, credentials or ClusterCredentials(), timeouts or Timeouts())
        self._limits = submit_limits or SubmitLimits()
        self._sleep = sleep
        self._pool: Pool | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Give the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the connection pool."""
        await self.close()

    async def close(self, *, is_broken: bool = False) -> None:
        """Leave the connection pool; its last user closes it. `is_broken`: whoever connects next gets a new one.

        A client that is open when its event loop ends is complained about by aiohttp, in the log.
        """
        pool, self._pool, self._is_closed = self._pool, None, True
        if pool is not None:
            from airflow_provider.client.pool import release

            await release(pool, is_broken=is_broken)

    async def version(self) -> ClusterVersion:
        """Ray's version and the session of its head; needs the token too."""
        return await self._call(requests.get_version())

    async def get_job(self, submission_id: str) -> JobInfo | None:
        """One job, or None if Ray says that it doesn't know it."""
        return await self._call(requests.get_job(submission_id))

    async def submit(self, request: JobRequest) -> SubmitAccepted | AlreadyExists:
        """One POST and nothing else; prefer `submit_or_find`."""
        return await self._call(requests.submit(request))

    async def stop(self, submission_id: str) -> bool:
        """Ask Ray to stop a job; False if it had ended or is unknown. True for a pending job promises nothing."""
        return await self._call(requests.stop(submission_id))

    async def has_package(self, uri: str) -> bool:
        """Whether Ray holds a package; asking renews its 10 minutes of life."""
        return await self._call(requests.has_package(uri))

    async def upload_package(self, package: Package) -> None:
        """Upload a package, whether or not it is there."""
        await self._call(requests.upload_package(package))

    async def ensure_package(self, package: Package) -> bool:
        """Renew a package, uploading it if needed; True if it was uploaded."""
        if await self.has_package(package.uri):
            return False
        await self.upload_package(package)
        return True

    async def submit_or_find(self, request: JobRequest, *, packages: Sequence[Package] = ()) -> SubmitOutcome:
        """Submit under the request's id or find it there; see `submitting`."""
        steps = submit_or_find_steps(request, packages=packages, limits=self._limits)
        answer: Answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                outcome: SubmitOutcome = end.value
                return outcome
            answer = await self._perform(step)

    async def logs(
        self, submission_id: str, *, position: int = 0, max_chars: int = DEFAULT_LOG_CHARS
    ) -> LogPart | None:
        """The log behind `position` (characters), at most its last `max_chars`; None for an unknown job.

        A 500 here (ClusterUnreachable) with a job that has ended means that the driver's node is gone, and the log with it.
        """
        request = requests.logs(submission_id)
        body = LogBody(position=position, max_chars=max_chars)
        async with self._shared.transport.stream(request) as response:
            if not 200 <= response.status < 300:
                body_of_error = await self._shared.transport.read(response, request)
                request.parse(self._endpoint.reply(response.status, response.headers, body_of_error))
                return None
            try:
                async for data in self._shared.transport.pieces(response, request):
                    body.feed(data)
                return body.finish()
            except NotALog as error:
                request.parse(self._endpoint.reply(response.status, response.headers, error.head))
                return None

    async def log_size(self, submission_id: str) -> int | None:
        """Bytes of the answer with the whole log, which isn't fetched; None where Ray or what is before it doesn't say."""
        async with self._shared.transport.stream(requests.log_size(submission_id)) as response:
            length = response.headers.get("Content-Length", "")
            is_said = response.status == 200 and "Content-Encoding" not in response.headers and length.isdecimal()
            return int(length) if is_said else None

    def open_tail(self, submission_id: str) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        """One websocket session on a job's log, from its start; see `websocket.open_tail`."""
        return open_tail(self._endpoint, self._shared.context, submission_id)

    def tail(
        self,
        submission_id: str,
        *,
        reader: LogReader | None = None,
        is_over: Callable[[], Awaitable[bool]] | None = None,
        limits: TailLimits | None = None,
    ) -> AsyncGenerator[LogChunk, None]:
        """Follow a job's log from the reader's place until the job has ended, each line once; see `log_tail.follow`.

        `is_over` says whether the job has ended (a closed socket doesn't); the default asks Ray.
        """
        return follow(
            self,
            submission_id,
            reader=reader,
            is_over=is_over,
            limits=limits or TailLimits(),
            clock=Clock(self._sleep),
        )

    @property
    def _shared(self) -> Pool:
        if self._is_closed:
            raise RuntimeError("this client is closed")
        if self._pool is None:
            # With it comes aiohttp, a tenth of a second or more to import, which a blocking client does without.
            from airflow_provider.client.pool import acquire

            self._pool = acquire(self._endpoint)
        return self._pool

    async def _call(self, request: ApiRequest[T]) -> T:
        return request.parse(await self._shared.transport.send(request))

    async def _perform(self, step: Step) -> Answer:
        try:
            if isinstance(step, Wait):
                await self._sleep(step.seconds)
                return None
            if isinstance(step, EnsurePackage):
                await self.ensure_package(step.package)
                return None
            if isinstance(step, Post):
                return await self.submit(step.request)
            return await self.get_job(step.submission_id)
        except RayTrainError as error:
            return error
