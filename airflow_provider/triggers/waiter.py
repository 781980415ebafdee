"""Follow one job until it ends, is lost, or its time is up; and stream its log meanwhile.

One coroutine for both modes. It polls by id only, never blocks its loop (the bucket is read in threads), and treats
silence as silence: training goes on while the dashboard, the network or the store is away.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from airflow.sdk.exceptions import AirflowRuntimeError
from asgiref.sync import sync_to_async

from airflow_provider.client.log_reader import EMPTY_LOG, LogReader
from airflow_provider.client.log_tail import TailLimits, last_chunk, pieces
from airflow_provider.client.values import LogChunk, LogPart
from airflow_provider.core.decision import ClusterSilent, JobSeen, JobSight, JobUnknown
from airflow_provider.core.driver_silence import Sightings, counted_silence_s
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.job import JobStatus
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.redaction import redact
from airflow_provider.core.waiting import (
    GoOn,
    WaitEnd,
    WaitLimits,
    WaitOver,
    WaitState,
    alive_pause_s,
    judge_poll,
    pause_s,
)

if TYPE_CHECKING:
    from airflow_provider.client.jobs_client import AsyncJobsClient
    from airflow_provider.storage.experiment_records import ExperimentRecords

LOG_END_WAIT_S = 30.0
"""How long the log's last lines may take after the job has ended."""
LAST_READ_S = 30.0
"""How long the read of a log's last part may take whose tail did not end in time."""
FETCH_S = 5.0
"""How long the rest of a short log may take of a job that goes on: what stops it, or a retry, waits for this."""
SHORT_LOG_BYTES = TailLimits.final_chars
"""Up to this size a log is fetched again for its last lines, rather than waited for: what is longer would lose its start."""

LOGS_IN_A_TURN = 8
"""Of so many jobs a piece of the log is shown between two looks of the event loop at everything else."""
_LOG_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

_Read = TypeVar("_Read")
_UNANSWERED = frozenset({WaitEnd.LOST, WaitEnd.UNREACHABLE})


@dataclass(frozen=True)
class Following:
    """Which job is followed, and how long."""

    ref: AttemptRef
    submission_id: str
    session_name: str | None
    deadline: datetime | None
    limits: WaitLimits


class JobWaiter:
    """Follows one job. `open_client` gives a client with the connection's present credentials."""

    def __init__(
        self,
        following: Following,
        *,
        open_client: Callable[[], Awaitable[AsyncJobsClient]],
        records: ExperimentRecords,
        say: Callable[[str], None],
        emit: Callable[[str], None] | None = None,
        log_position: int = 0,
    ) -> None:
        self.following = following
        self._reader = LogReader(position=log_position)
        self._open_client = open_client
        self._records = records
        self._say = say
        self._emit = emit
        self._is_over = False
        self._is_cancelled = False
        self._client: AsyncJobsClient | None = None
        self._tail: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_sign_unread = False
        self._watched_since = self._alive_due = 0.0
        self._alive_age_s: float | None = None
        self._cluster = self._bucket = Sightings(0.0)
        self._watch_anew()

    def cancel(self) -> None:
        """End the wait from another thread, also one that is about to begin."""
        self._is_cancelled = True
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop is closed: the wait has just ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def wait(self) -> WaitOver:
        """Wait for the end."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._is_cancelled:
            raise asyncio.CancelledError
        try:
            over = await self._poll()
            self._is_over = True
            if self._tail is not None and self._client is not None:
                await self._finish_log(self._tail, self._client, over.end)
            return over
        finally:
            # A wait that was cancelled or failed leaves at once: the job, and so its log, goes on.
            await self._disconnect()

    async def _connect(self) -> AsyncJobsClient:
        """A client with the connection as it is now, and the log's tail on it from where it was."""
        await self._disconnect()
        self._client = await self._open_client()
        if self._emit is not None:
            self._tail = asyncio.create_task(self._stream(self._client))
        return self._client

    async def _disconnect(self, *, is_broken: bool = False) -> None:
        if self._tail is not None:
            # Not `await self._tail`: what ends the tail must not be taken for what cancels this wait, nor hide it.
            await _cancelled(self._tail)
        if self._client is not None:
            await self._client.close(is_broken=is_broken)
        self._tail = self._client = None

    async def _poll(self) -> WaitOver:
        following, limits = self.following, self.following.limits
        began, began_at = time.monotonic(), _now()
        state = WaitState(since=began_at)
        while True:
            sight = await self._sight()
            if isinstance(sight, JobSeen):
                alive_age_s, is_outcome_there = await self._alive_age(sight), False
            else:
                self._cluster = self._cluster.missed()
                alive_age_s, is_outcome_there = await self._signs()
            judgement = judge_poll(
                state,
                sight,
                # A clock that is set anew makes no streak longer or shorter.
                now=began_at + timedelta(seconds=time.monotonic() - began),
                wall=_now(),
                limits=limits,
                session_name=following.session_name,
                deadline=following.deadline,
                alive_age_s=alive_age_s,
                is_outcome_there=is_outcome_there,
            )
            if isinstance(judgement, WaitOver):
                return judgement
            if judgement.reason:
                self._say(_sentence(judgement, sight))
            state = judgement.state
            await self._pause(pause_s(limits, random.random()))  # noqa: S311 - spreads load, keeps no secret

    async def _pause(self, seconds: float) -> None:
        """Until the next poll is due, or the log has ended: it mostly does because the job has."""
        if self._tail is None or self._tail.done():
            await asyncio.sleep(seconds)
        else:
            await asyncio.wait([self._tail], timeout=seconds)

    async def _sight(self) -> JobSight:
        """What the cluster says about the job. Anything but an answer is silence: the training goes on behind it.

        The connection is read anew for the next poll: a token was rotated, a certificate renewed, a dashboard moved.
        """
        try:
            client = self._client or await self._connect()
            job = await client.get_job(self.following.submission_id)
            if job is not None:
                return JobSeen(job.status)
            return JobUnknown((await client.version()).session_name)
        except RayTrainError as error:
            await self._disconnect(is_broken=True)
            return ClusterSilent(error.what)
        except (AirflowRuntimeError, OSError) as error:  # Airflow's own API is away while the connection is read
            await self._disconnect()
            return ClusterSilent(redact(f"{type(error).__name__}: {error}")[:300])

    async def _alive_age(self, sight: JobSeen) -> float | None:
        """How long the driver has been silent, read when that may matter; the last known value in between.

        Only the time counts in which the job ran and was seen, and the bucket could be read: a driver can't write to a store that is away, and
        its sign of life is as old as the outage when that ends.
        """
        limits, now = self.following.limits, time.monotonic()
        if sight.status is not JobStatus.RUNNING:
            self._watch_anew()
            return None
        if self._cluster.is_away:
            # As much later as the silence counts less: the reads of many jobs stay spread.
            self._alive_due += now - self._cluster.last
        self._cluster = self._cluster.seen(now)
        if now >= self._alive_due:
            try:
                alive = await sync_to_async(self._records.alive, thread_sensitive=False)(self.following.ref)
            except RayTrainError as error:
                if not self._is_sign_unread:
                    self._say(f"the driver's sign of life can't be read: {error.what}")
                self._is_sign_unread = True
                self._bucket = self._bucket.missed()
                self._alive_due = now + min(limits.alive_check_s, alive_pause_s(0.0, limits))
                return self._alive_age_s
            self._is_sign_unread = False
            now = time.monotonic()
            # A driver that never gave a sign of life is as silent as one that stopped.
            since = self._watched_since if alive is None else max(self._watched_since, now - alive.age_s)
            self._cluster, self._bucket = self._cluster.since(since), self._bucket.seen(now).since(since)
            self._alive_age_s = counted_silence_s(since, now, self._cluster, self._bucket)
            self._alive_due = now + alive_pause_s(self._alive_age_s, limits)
        return self._alive_age_s

    def _watch_anew(self) -> None:
        """Count a silence from now on; the first reads of jobs that began together are spread."""
        now = self._watched_since = time.monotonic()
        self._cluster = self._bucket = Sightings(now)
        self._alive_age_s = None
        self._alive_due = now + alive_pause_s(0.0, self.following.limits) * random.random()  # noqa: S311 - as for polls

    async def _signs(self) -> tuple[float | None, bool]:
        """What the bucket says while the cluster doesn't: age of the sign of life, and whether an outcome lies there."""
        ref = self.following.ref
        age_s, is_outcome_there = None, False
        try:  # each by itself: a damaged record beside it must not hide a sign of life
            is_outcome_there = await sync_to_async(self._records.outcome, thread_sensitive=False)(ref) is not None
        except RayTrainError as error:
            self._say(f"the bucket can't be read either: {error.what}")
        try:
            alive = await sync_to_async(self._records.alive, thread_sensitive=False)(ref)
            age_s = alive.age_s if alive else None
        except RayTrainError as error:
            self._say(f"the driver's sign of life can't be read: {error.what}")
        return age_s, is_outcome_there

    async def _stream(self, client: AsyncJobsClient) -> None:
        async def is_over() -> bool:
            return self._is_over

        try:
            # Closed here and now: left to the collector, its socket would be open after we have said that it isn't.
            async with aclosing(
                client.tail(self.following.submission_id, reader=self._reader, is_over=is_over)
            ) as chunks:
                async for chunk in chunks:
                    await self._show(chunk)
        except Exception as error:  # noqa: BLE001 - a broken log never decides how the training ended
            why = error.what if isinstance(error, RayTrainError) else f"{type(error).__name__}: {error}"
            self._say(f"the job's log can't be read: {why}")

    async def _finish_log(self, tail: asyncio.Task[None], client: AsyncJobsClient, end: WaitEnd) -> None:
        """Give the last lines time to arrive. Those of a short log are fetched: Ray's tail ends seconds after the job.

        The tail goes on meanwhile, since the fetch may fail where it doesn't. A job that goes on (its time is up) has no end of its log that
        could be waited for long, and a cluster that does not answer is asked nothing more.
        """
        if tail.done() or end in _UNANSWERED:
            return
        limit_s = LOG_END_WAIT_S if end is WaitEnd.ENDED else FETCH_S
        until = time.monotonic() + limit_s
        fetch = asyncio.create_task(self._rest_of_short_log(client))
        try:
            await asyncio.wait({tail, fetch}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            rest = fetch.result() if fetch.done() else None
            if rest is None and end is WaitEnd.ENDED:
                await asyncio.wait({tail}, timeout=max(0.0, until - time.monotonic()))
            if tail.done():
                return
        finally:
            await _cancelled(fetch)
        await _cancelled(tail)
        if rest is None and end is WaitEnd.ENDED:
            self._say("the job's log did not end in time: its last part is read at once")
            rest = await self._rest_of_log(client)
            if rest is None:
                self._say("nor could that be read: the last lines of the job's log may be missing here")
        for piece in pieces(rest) if rest is not None else ():
            await self._show(last_chunk(piece, reader=self._reader))

    async def _rest_of_short_log(self, client: AsyncJobsClient) -> LogPart | None:
        """By its size as Ray says it, which costs Ray a read of all of it: not asked where we have more already."""
        if self._reader.furthest > SHORT_LOG_BYTES:
            return None
        size = await _or_none(client.log_size(self.following.submission_id))
        is_short = size is not None and EMPTY_LOG <= size <= SHORT_LOG_BYTES
        rest = await self._rest_of_log(client) if is_short else None
        return rest if rest is not None and rest.is_complete else None

    async def _rest_of_log(self, client: AsyncJobsClient) -> LogPart | None:
        """What the log's file has behind our place, at most its end; None where it can't be read in time."""
        read = client.logs(
            self.following.submission_id, position=self._reader.safe_position, max_chars=TailLimits.final_chars
        )
        return await _or_none(asyncio.wait_for(read, LAST_READ_S))

    async def _show(self, chunk: LogChunk) -> None:
        async with _log_turns():
            for line in chunk.lines:
                if self._emit is not None:
                    self._emit(line)
            if chunk.note:
                self._say(chunk.note)
            # What has arrived already comes without a wait: a replay of megabytes must not hold up other triggers.
            await asyncio.sleep(0)


def _log_turns() -> asyncio.Semaphore:
    """Few logs are shown in one turn of the loop: where hundreds have much to show, a triggerer that began anew for one, polls come between."""
    loop = asyncio.get_running_loop()
    turns = _LOG_TURNS.get(loop)
    if turns is None:
        turns = _LOG_TURNS[loop] = asyncio.Semaphore(LOGS_IN_A_TURN)
    return turns


async def _or_none(read: Awaitable[_Read | None]) -> _Read | None:
    """What a read of a log gives; None also where it failed, whatever the error."""
    try:
        return await read
    except Exception:  # noqa: BLE001 - a broken log never decides how the training ended
        return None


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """End a task and wait until it has ended; how it ended is nobody's business any more."""
    task.cancel()
    await asyncio.wait([task])


def _sentence(judgement: GoOn, sight: JobSight) -> str:
    why = f": {sight.why}" if isinstance(sight, ClusterSilent) else ""
    return f"{judgement.reason}{why}"


def _now() -> datetime:
    return datetime.now(timezone.utc)


def error_event(error: BaseException) -> dict[str, str]:
    """An exception as an event: Airflow would turn one raised in a trigger into an error without a kind."""
    kind = error.kind.value if isinstance(error, RayTrainError) else "infrastructure"
    return {"end": WaitEnd.ERROR.value, "kind": kind, "reason": redact(f"{type(error).__name__}: {error}")[:2000]}
