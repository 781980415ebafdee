"""Each line once, whatever breaks: reconnects, new processes, oversize messages, early normal closes (C74, C76, C79, C81)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.client import JobInfo, JobStatus, LogChunk, LogPart, LogReader, TailLimits, log_tail
from airflow_provider.client.log_body import LogBody, NotALog
from airflow_provider.client.log_place import count_in_lines
from airflow_provider.client.log_tail import Clock, follow, pieces
from airflow_provider.client.websocket import TOO_BIG, TailClosed, TailUnavailable
from airflow_provider.core.errors import ClusterAuthFailed, ClusterUnreachable


@dataclass
class ScriptedSource:
    """Sessions by script; the job ends when `ends_after` sessions were opened."""

    log: str
    sessions: list[tuple[list[str], Exception]]
    ends_after: int
    logs_error: Exception | None = None
    size_error: Exception | None = None
    num_opened: int = 0
    num_polls: int = 0
    num_read: int = 0
    says_size: bool = True
    waits: list[float] = field(default_factory=list)
    now: float = 0.0

    @asynccontextmanager
    async def open_tail(self, submission_id: str) -> AsyncIterator[AsyncIterator[str]]:
        """Play the next session; the last one repeats."""
        messages, ending = self.sessions[min(self.num_opened, len(self.sessions) - 1)]
        self.num_opened += 1

        async def play() -> AsyncIterator[str]:
            for message in messages:
                yield message
            raise ending

        yield play()

    async def get_job(self, submission_id: str) -> JobInfo | None:
        """End after some sessions, or after many polls once tailing stopped."""
        self.num_polls += 1
        is_over = self.num_opened >= self.ends_after or self.num_polls > 60
        return JobInfo(submission_id, JobStatus.FAILED if is_over else JobStatus.RUNNING)

    async def logs(self, submission_id: str, *, position: int, max_chars: int) -> LogPart | None:
        """Read the rest."""
        self.num_read += 1
        if self.logs_error:
            raise self.logs_error
        rest = self.log[position:]
        num_dropped = max(0, len(rest) - max_chars)
        return LogPart(rest[-max_chars:], max(len(self.log), position), count_in_lines(self.log), num_dropped)

    async def log_size(self, submission_id: str) -> int | None:
        """As Ray's answer would be."""
        if error := self.size_error or self.logs_error:
            raise error
        return len(json.dumps({"logs": self.log})) if self.says_size else None

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.waits.append(seconds)
        self.now += seconds


async def read(source: ScriptedSource, *, position: int = 0, limits: TailLimits | None = None) -> list[LogChunk]:
    """Follow to the end."""
    limits = limits or TailLimits()
    reader = LogReader(position=position, max_partial=limits.max_partial)
    following = follow(source, "job", reader=reader, limits=limits, clock=Clock(source.sleep, lambda: source.now))
    return [chunk async for chunk in following]


def lines(chunks: list[LogChunk]) -> list[str]:
    """All lines of all chunks."""
    return [line for chunk in chunks for line in chunk.lines]


def notes(chunks: list[LogChunk]) -> list[str]:
    """All remarks of ours."""
    return [chunk.note for chunk in chunks if chunk.note]


@pytest.mark.asyncio
async def test_normal_close_is_no_end() -> None:
    """Ray closes normally while the job runs on (C76): connect again, show each line once, the last one too."""
    log = "a\nb\nc\nd\nlast without end"
    source = ScriptedSource(
        log, [(["a\n", "b\nc", "\n"], TailClosed()), (["a\nb\nc\n", "d\nlast"], TailClosed())], ends_after=2
    )
    chunks = await read(source)
    assert lines(chunks) == ["a", "b", "c", "d", "last without end"]
    assert chunks[-1].position == len(log)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "log", ["a\nb\n", "a\nlast without end", "", 'ä "\\" 😀\x01\ttab\n', "x" * 100 + "\nafter a long line\n"]
)
async def test_log_that_was_sent_whole_is_not_fetched_again(log: str) -> None:
    source = ScriptedSource(log, [([log[:3], log[3:]], TailClosed())], ends_after=1)
    chunks = await read(source, limits=TailLimits(max_partial=50))
    asked = ScriptedSource(log, source.sessions, ends_after=1, says_size=False)
    assert chunks == await read(asked, limits=TailLimits(max_partial=50))
    assert (source.num_read, asked.num_read) == (0, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("missing", range(1, 9))
async def test_what_a_session_left_out_is_fetched(missing: int) -> None:
    """A proxy may close as Ray does; each letter that is missing at the end is."""
    log = "first\nsecond\n"
    source = ScriptedSource(log, [([log[:-missing]], TailClosed())], ends_after=1)
    assert lines(await read(source)) == ["first", "second"]
    assert source.num_read == 1


@pytest.mark.asyncio
async def test_a_gateway_that_answers_no_question_for_the_size_hides_no_line() -> None:
    """Some answer HEAD by hanging up: the log is read as before."""
    source = ScriptedSource(
        "first\nsecond\n", [(["first\n"], TailClosed())], ends_after=1, size_error=ClusterUnreachable("no connection")
    )
    chunks = await read(source)
    assert (lines(chunks), notes(chunks)) == (["first", "second"], [])


@pytest.mark.asyncio
async def test_place_behind_what_a_session_sent_is_no_whole_log() -> None:
    """After a restart of the triggerer: all that this session sent was shown before, and the log is of another length."""
    source = ScriptedSource("one\ntwo\n", [(["one\n"], TailClosed())], ends_after=1)
    assert lines(await read(source, position=4)) == ["two"]
    assert source.num_read == 1


@pytest.mark.asyncio
async def test_job_that_is_unknown_for_a_while_is_followed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that has just come back closes the tail and answers 404 at first: whoever waits decides when the job is lost."""
    source = ScriptedSource("a\nb\nlast\n", [(["a\n"], TailClosed()), (["a\n", "b\n"], TailClosed())], ends_after=9)

    async def unknown(submission_id: str) -> JobInfo | None:
        return None

    async def is_over() -> bool:
        return source.num_opened >= 2

    monkeypatch.setattr(source, "get_job", unknown)
    clock = Clock(source.sleep, lambda: source.now)
    chunks = [chunk async for chunk in follow(source, "job", is_over=is_over, clock=clock)]
    assert source.num_opened == 2
    assert lines(chunks) == ["a", "b", "last"]


@pytest.mark.asyncio
async def test_new_process_goes_on_at_the_position() -> None:
    """A triggerer restart loses nothing and repeats nothing."""
    log = "".join(f"line {n}\n" for n in range(50))
    first = await read(
        ScriptedSource(log, [([log[:100]], TailClosed())], ends_after=1, logs_error=ClusterUnreachable("x"))
    )
    second = await read(ScriptedSource(log, [([log], TailClosed())], ends_after=1), position=first[-1].position)
    assert lines(first) + lines(second) == log.splitlines()


@pytest.mark.scenario("C74")
@pytest.mark.asyncio
async def test_oversize_message_stops_tailing_once() -> None:
    """Two closings at one place (C74): one mark, no third connection, the rest when the job has ended."""
    log = "a\n" + "x" * 6_000_000 + "\nnormal\n"
    source = ScriptedSource(log, [(["a\n"], TailClosed(TOO_BIG))], ends_after=99)
    chunks = await read(source, limits=TailLimits(final_chars=10_000_000))
    assert source.num_opened == 2
    assert len(notes(chunks)) == 1
    shown = lines(chunks)
    assert (shown[0], shown[-1], len(shown)) == ("a", "normal", 3)
    assert "6,000,000 characters" in shown[1]


@pytest.mark.asyncio
async def test_quick_closings_at_one_place_are_bounded() -> None:
    """Ray's dashboard closes normally when its own agent's message was too big; each replay costs the whole log."""
    source = ScriptedSource("a\nb\n", [(["a\n"], TailClosed())], ends_after=99)
    chunks = await read(source)
    assert source.num_opened == TailLimits().max_stuck + 1
    assert lines(chunks) == ["a", "b"]
    assert len(notes(chunks)) == 1


@pytest.mark.asyncio
async def test_unreachable_is_tried_again_with_growing_pauses() -> None:
    """The cluster may be away for long; that neither ends the log nor hammers it."""
    source = ScriptedSource("a\n", [([], ClusterUnreachable("down"))], ends_after=20)
    assert lines(await read(source)) == ["a"]
    assert source.waits[:8] == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.asyncio
async def test_without_websocket_the_log_comes_at_the_end() -> None:
    """A gateway that knows only HTTP answers 404 (C81 too: the job ended before the first session)."""
    source = ScriptedSource("a\nb\n", [([], TailUnavailable(404))], ends_after=99)
    assert lines(await read(source)) == ["a", "b"]
    assert source.num_opened == 1
    ended = ScriptedSource("a\nb\n", [], ends_after=0)
    assert lines(await read(ended)) == ["a", "b"]


@pytest.mark.asyncio
async def test_one_giant_line_does_not_end_the_live_log() -> None:
    """The tail can't get past it, the file can: lines go on to be shown while the job runs, each once."""
    source = ScriptedSource("a\nb\nhalf", [(["a\n"], TailClosed(TOO_BIG))], ends_after=99)
    shown: list[str] = []
    following = follow(source, "job", limits=TailLimits(), clock=Clock(source.sleep, lambda: source.now))
    async for chunk in following:
        shown += chunk.lines
        if "b" in shown and source.num_polls < 50:
            assert "half" not in shown
            source.log = "a\nb\nhalf line\nc\n"
            source.num_polls = 55
    assert shown == ["a", "b", "half line", "c"]


@pytest.mark.asyncio
async def test_log_that_is_gone_is_a_remark() -> None:
    """The driver's node left (C79): the job's verdict doesn't depend on its log."""
    chunks = await read(ScriptedSource("", [], ends_after=0, logs_error=ClusterUnreachable("status 500")))
    assert "could not be read" in notes(chunks)[0]


@pytest.mark.asyncio
async def test_refused_identity_is_an_error() -> None:
    """Trying again can't help."""
    with pytest.raises(ClusterAuthFailed):
        await read(ScriptedSource("", [([], ClusterAuthFailed("401"))], ends_after=9))


@given(
    log=st.text(alphabet="ab\n", max_size=200),
    cuts=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 30)), max_size=6),
)
def test_reader_gives_each_line_once_across_any_cuts(log: str, cuts: list[tuple[int, int]]) -> None:
    """Sessions that end anywhere, messages that end anywhere."""
    reader = LogReader()
    seen: list[str] = []
    for end, size in [*cuts, (200, 7)]:
        reader.begin()
        for start in range(0, min(end, len(log)), size):
            seen += reader.feed(log[start : min(start + size, end)])
        assert log.startswith("".join(f"{line}\n" for line in seen))
        assert reader.position == sum(len(line) + 1 for line in seen)
    rest = LogPart(log[reader.safe_position :], len(log), count_in_lines(log))
    seen += reader.finish(rest)
    assert seen == (log.removesuffix("\n").split("\n") if log else [])


@given(
    text=st.text(alphabet="ab\n", max_size=300),
    size=st.integers(1, 40),
    num_dropped=st.integers(0, 3),
    is_complete=st.booleans(),
)
def test_a_file_is_shown_in_pieces_of_whole_lines(text: str, size: int, num_dropped: int, is_complete: bool) -> None:
    """Each says where it ends, so that whoever leaves between two of them goes on right there; what was left out is said once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_tail, "PIECE_CHARS", size)
        found = [*pieces(LogPart(text, 1_000 + len(text), 1_000 + count_in_lines(text), num_dropped, is_complete))]
    assert "".join(piece.text for piece in found) == text
    assert all(piece.text.endswith("\n") for piece in found[:-1])
    ends = accumulate((len(piece.text) for piece in found), initial=1_000)
    assert [piece.position for piece in found] == [*ends][1:]
    assert [piece.num_dropped for piece in found] == [num_dropped, *[0] * (len(found) - 1)]
    assert [piece.is_complete for piece in found] == [*[True] * (len(found) - 1), is_complete]


def test_reader_memory_is_bounded() -> None:
    """A line that never ends is cut, and the next line is whole again, in a later session as well."""
    reader = LogReader(max_partial=1000)
    reader.begin()
    shown = [line for _ in range(100) for line in reader.feed("x" * 300)]
    assert len(shown) == 1
    reader.begin()
    assert reader.feed("x" * 30_000 + "yy\nnext\n") == ["next"]


@given(
    text=st.text(max_size=80),
    size=st.integers(1, 9),
    position=st.integers(0, 90),
    max_chars=st.integers(1, 90),
)
def test_log_body_is_read_in_pieces(text: str, size: int, position: int, max_chars: int) -> None:
    """Escapes, surrogate pairs and UTF-8 cut anywhere; only the wanted part is kept."""
    body = json.dumps({"logs": text}).encode()
    reader = LogBody(position=position, max_chars=max_chars)
    for start in range(0, len(body), size):
        reader.feed(body[start : start + size])
    part = reader.finish()
    wanted = text[position:]
    assert part.text == wanted[-max_chars:]
    assert part.num_dropped == max(0, len(wanted) - max_chars)
    assert part.position == max(len(text), position)
    assert part.is_complete


@pytest.mark.parametrize("body", [b"<html>", b'{"error": "x"}', b"", b'{"logs": "a\\x41 bad escape"}', b"x" * 9000])
def test_other_bodies_are_not_logs(body: bytes) -> None:
    """They go to the ordinary reading of answers."""
    reader = LogBody(position=0, max_chars=10)
    with pytest.raises(NotALog):  # noqa: PT012 - it may show early or at the end
        reader.feed(body)
        reader.finish()


def test_torn_log_is_marked() -> None:
    """What came is shown, and that it isn't all."""
    reader = LogBody(position=0, max_chars=100)
    reader.feed(b'{"logs": "abc\\u00')
    part = reader.finish()
    assert (part.text, part.is_complete) == ("abc", False)
