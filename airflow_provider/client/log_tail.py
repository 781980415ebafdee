"""Follow a job's log over a websocket that always begins at the start: each line once, whatever breaks in between.

Ray's tail has no offset and no end: it replays the file on each connection and closes normally when a job has ended, when
its node is gone, and when a proxy is tired. So our place is a count of characters, and whether the job is over is asked
elsewhere.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from airflow_provider.client.log_place import count_in_lines
from airflow_provider.client.log_reader import MAX_PARTIAL, LogReader
from airflow_provider.client.values import JobInfo, LogChunk, LogPart
from airflow_provider.client.websocket import TOO_BIG, TailClosed, TailUnavailable
from airflow_provider.core.errors import ClusterUnreachable, NotARayDashboard, RayTrainError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager


PIECE_CHARS = 64_000
"""About how much of a file is shown at a time; Ray's messages hold 10 lines or 20,000 characters."""


class TailSource(Protocol):
    """What following a log needs of a client."""

    def open_tail(self, submission_id: str) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        """One session from the start of the log; its iterator ends by raising TailClosed."""
        ...

    async def get_job(self, submission_id: str) -> JobInfo | None:
        """The job, None if unknown."""
        ...

    async def logs(self, submission_id: str, *, position: int, max_chars: int) -> LogPart | None:
        """The log behind `position`, None for an unknown job."""
        ...

    async def log_size(self, submission_id: str) -> int | None:
        """Bytes of the answer that `logs` reads; None if unknown."""
        ...


@dataclass(frozen=True)
class TailLimits:
    """How long and how often we follow; times in seconds, sizes in characters."""

    first_wait_s: float = 1.0
    max_wait_s: float = 60.0
    """Pause between connections: doubles from the first to this while nothing new comes."""
    quiet_s: float = 30.0
    """A session that lasted so long with nothing new was idle, not stuck."""
    max_oversize: int = 2
    """Closings for a too large message at one place before we stop tailing there."""
    max_stuck: int = 5
    """Quick closings at one place before we stop tailing; each replays the whole log."""
    poll_s: float = 15.0
    """How often the job is asked for after we stopped tailing."""
    catch_up_s: float = 120.0
    """How often the log file is read instead of the tail then."""
    catch_up_chars: int = 20_000_000
    """A log that is longer isn't read before the end: each time all of it travels."""
    progress_s: float = 30.0
    """How often a running progress bar is shown."""
    max_partial: int = MAX_PARTIAL
    """Longest line that is held back until its end comes."""
    final_chars: int = 1_000_000
    """Most that is read of what the tail hasn't shown when the job has ended."""


@dataclass(frozen=True)
class Clock:
    """How time passes; a test passes its own."""

    sleep: Callable[[float], Awaitable[None]]
    """Seconds."""
    now: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class TailState:
    """What the sessions so far amount to."""

    num_stuck: int = 0
    num_oversize: int = 0
    num_waits: int = 0


@dataclass(frozen=True)
class Reconnect:
    """Open another session after a pause."""

    state: TailState
    wait_s: float


@dataclass(frozen=True)
class StopTailing:
    """No further session: read the file now and then, and when the job has ended."""

    note: str


def after_session(
    state: TailState,
    ending: TailClosed | TailUnavailable | RayTrainError,
    *,
    has_progressed: bool,
    lasted_s: float,
    limits: TailLimits,
) -> Reconnect | StopTailing:
    """Decide what follows a session that ended by `ending` after `lasted_s` seconds."""
    if has_progressed:
        state = TailState()
    if isinstance(ending, TailUnavailable):
        return StopTailing(f"live log not available (status {ending.status}); it is read from the file now and then")
    if isinstance(ending, TailClosed):
        if ending.code == TOO_BIG:
            state = replace(state, num_oversize=state.num_oversize + 1)
        elif not has_progressed and lasted_s < limits.quiet_s:
            state = replace(state, num_stuck=state.num_stuck + 1)
        if state.num_oversize >= limits.max_oversize:
            return StopTailing(
                "live log stops before a message too large to send; the rest is read from the file now and then"
            )
        if state.num_stuck >= limits.max_stuck:
            return StopTailing(
                f"live log stops: {state.num_stuck} sessions ended at one place (code {ending.code});"
                " the rest is read from the file now and then"
            )
    wait_s = min(limits.max_wait_s, limits.first_wait_s * 2 ** min(state.num_waits, 16))
    return Reconnect(replace(state, num_waits=state.num_waits + 1), float(wait_s))


def last_chunk(part: LogPart | None, *, reader: LogReader) -> LogChunk:
    """What of a finished job's log hasn't been shown; `part` is None for a job that Ray no longer knows."""
    if part is None:
        return LogChunk((*reader.flush(),), reader.position, "Ray no longer knows the job; the rest of its log is gone")
    note = _left_out(part)
    if not part.is_complete:
        note = f"{note}; " if note else ""
        note += "the log's end did not arrive"
    return LogChunk(tuple(reader.finish(part)), reader.position, note)


async def follow(
    source: TailSource,
    submission_id: str,
    *,
    reader: LogReader | None = None,
    is_over: Callable[[], Awaitable[bool]] | None = None,
    limits: TailLimits = TailLimits(),
    clock: Clock,
) -> AsyncGenerator[LogChunk, None]:
    """Yield each line once, from the reader's place to the end of a finished job's log. Wrap it in `aclosing`.

    Whoever keeps the reader may break off and go on with it: what it has given out doesn't come again.

    Raises:
        ClusterAuthFailed, InvalidConfig: as the dashboard said it. Unreachable is not an error: it is tried again.

    """
    reader = reader or LogReader(max_partial=limits.max_partial)
    over = is_over or _asks_ray(source, submission_id)
    ended = _asks_ray(source, submission_id, is_unknown_over=False)
    state = TailState()
    while not await over():
        furthest, started = reader.furthest, clock.now()
        ending = None
        async with aclosing(_session(source, submission_id, reader, limits=limits, clock=clock)) as session:
            async for chunk in session:
                if isinstance(chunk, LogChunk):
                    yield chunk
                else:
                    ending = chunk
        # Ray closes normally at a job's end. To connect again until somebody polls would replay the whole log each time.
        # A job that it doesn't know may be there again in a moment: when that is the end is for `is_over` to say.
        if await over() or (isinstance(ending, TailClosed) and ending.is_normal and await ended()):
            break
        move = after_session(
            state,
            ending or TailClosed(),
            has_progressed=reader.furthest > furthest,
            lasted_s=clock.now() - started,
            limits=limits,
        )
        if isinstance(move, StopTailing):
            yield LogChunk(tuple(reader.flush()), reader.position, move.note)
            reads = _without_tail(source, submission_id, reader, over=over, limits=limits, clock=clock)
            async with aclosing(reads) as chunks:
                async for chunk in chunks:
                    yield chunk
            break
        state = move.state
        await clock.sleep(move.wait_s)
    async with aclosing(_rest(source, submission_id, reader, limits=limits, clock=clock)) as rest:
        async for chunk in rest:
            yield chunk


def pieces(part: LogPart) -> Iterator[LogPart]:
    """The same in parts of some lines each: whoever shows one does nothing else meanwhile, and may leave behind each."""
    text, num_dropped = part.text, part.num_dropped
    while 0 < (cut := _end_of_lines(text)) < len(text):
        rest = text[cut:]
        place, num_in_lines = part.position - len(rest), part.num_in_lines - count_in_lines(rest)
        yield LogPart(text[:cut], place, num_in_lines, num_dropped=num_dropped)
        text, num_dropped = rest, 0
    yield replace(part, text=text, num_dropped=num_dropped)


def _end_of_lines(text: str) -> int:
    """Where a piece may end: behind all line ends of a run, so that none of them is taken for one that was shown."""
    cut = text.find("\n", PIECE_CHARS) + 1
    while 0 < cut < len(text) and text[cut] == "\n":
        cut += 1
    return cut


_Ending = TailClosed | TailUnavailable | ClusterUnreachable | NotARayDashboard


async def _session(
    source: TailSource, submission_id: str, reader: LogReader, *, limits: TailLimits, clock: Clock
) -> AsyncGenerator[LogChunk | _Ending, None]:
    reader.begin()
    shown = clock.now()
    try:
        async with source.open_tail(submission_id) as messages:
            async for message in messages:
                lines = reader.feed(message)
                if clock.now() - shown >= limits.progress_s:
                    lines += reader.flush()
                    shown = clock.now()
                if lines:
                    yield LogChunk(tuple(lines), reader.position)
    except (TailClosed, TailUnavailable, ClusterUnreachable, NotARayDashboard) as ending:
        yield ending


async def _without_tail(
    source: TailSource,
    submission_id: str,
    reader: LogReader,
    *,
    over: Callable[[], Awaitable[bool]],
    limits: TailLimits,
    clock: Clock,
) -> AsyncGenerator[LogChunk, None]:
    read = clock.now()
    while not await over():
        await clock.sleep(limits.poll_s)
        if clock.now() - read < limits.catch_up_s or reader.furthest > limits.catch_up_chars:
            continue
        read = clock.now()
        try:
            part = await source.logs(submission_id, position=reader.safe_position, max_chars=limits.final_chars)
        except (ClusterUnreachable, NotARayDashboard):
            continue
        if part is not None and part.is_complete:
            chunk = LogChunk(tuple(reader.catch_up(part)), reader.position, _left_out(part))
            if chunk.lines:
                yield chunk


def _left_out(part: LogPart) -> str | None:
    if not part.num_dropped:
        return None
    return f"{part.num_dropped:,} characters of the log are left out before these lines"


async def _rest(
    source: TailSource,
    submission_id: str,
    reader: LogReader,
    *,
    limits: TailLimits,
    clock: Clock,
) -> AsyncGenerator[LogChunk, None]:
    error: RayTrainError | None = None
    for is_again in (False, True):
        try:
            # As a rule the tail has shown all: then the log, which may be long, isn't fetched again to find nothing new.
            # Asked once: a gateway may hang up on HEAD and let GET pass.
            part = None if is_again else reader.rest_if(await source.log_size(submission_id))
            if part is None:
                part = await source.logs(submission_id, position=reader.safe_position, max_chars=limits.final_chars)
        except (ClusterUnreachable, NotARayDashboard) as failed:
            error = failed
            await clock.sleep(0.0 if is_again else limits.first_wait_s)
        else:
            for piece in (None,) if part is None else pieces(part):
                yield last_chunk(piece, reader=reader)
            return
    # The node that held the log may be gone (ray issue 65402); that is no word about the job.
    what = error.what if error else "no answer"
    yield LogChunk(tuple(reader.flush()), reader.position, f"the last log lines could not be read: {what}")


def _asks_ray(source: TailSource, submission_id: str, *, is_unknown_over: bool = True) -> Callable[[], Awaitable[bool]]:
    async def is_over() -> bool:
        try:
            job = await source.get_job(submission_id)
        except (ClusterUnreachable, NotARayDashboard):
            return False
        return is_unknown_over if job is None else job.status.is_terminal

    return is_over
