"""A gate before an HTTP server: lets everything through, sees each request in order, and can hold, cut or slow it.

Faults at named points need it: a process is killed while its own request is held, so the moment is exact and not guessed.
Bytes pass unchanged, the Host header too, so signed requests stay valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.stack.process import LOOPBACK, free_port

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_MAX_HEAD = 256 * 1024
_CHUNK = 64 * 1024
_NO_BODY = frozenset({204, 304})


@dataclass(frozen=True)
class Seen:
    """One request that passed, with the server's answer; `status` is 0 while it has none."""

    number: int
    method: str
    target: str
    """Path and query, as sent."""
    status: int = 0


@dataclass
class Hold:
    """Something to do at the first request that matches: before it reaches the server, or before its answer leaves."""

    matches: Callable[[Seen], bool]
    action: Callable[[Seen], None]
    """Runs in a thread while the request waits."""
    is_before: bool = True
    skip: int = 0
    """How many matching requests pass first."""
    fired: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


@dataclass(frozen=True)
class Head:
    """The first lines of a request or an answer."""

    raw: bytes
    first: str
    fields: dict[str, str]

    @property
    def length(self) -> int | None:
        """Bytes of the body; None where its end is told otherwise."""
        value = self.fields.get("content-length")
        return int(value) if value is not None else None

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks with their sizes."""
        return "chunked" in self.fields.get("transfer-encoding", "").lower()


class Gate:
    """Listens on a port of its own and forwards to `target_port`; can cut the network, refuse connections or delay requests."""

    def __init__(self, target_port: int) -> None:
        """Nothing listens yet."""
        self.target_port = target_port
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.is_open = True
        self.delay_s = 0.0
        """How long each request waits before it reaches the server."""
        self.num_delayed = 0
        self.on_answer: Callable[[Seen], None] | None = None
        """Called in a thread with each answered request, before the answer leaves: what it sees is in order."""
        self._holds: list[Hold] = []
        self._number = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=f"gate-{self.port}", daemon=True)
        self._ready = threading.Event()
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    def hold(self, hold: Hold) -> Hold:
        """Arm a hold; it fires once."""
        self._holds.append(hold)
        return hold

    def release_all(self) -> None:
        """Forget holds that did not fire, and open the network."""
        self._holds.clear()
        self.open()

    def open(self) -> None:
        """Listen again after a cut or a refusal, without delay."""
        self.is_open, self.delay_s = True, 0.0
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def cut(self) -> None:
        """Break every connection now, and each new one after it was taken, until `open`."""
        self.is_open = False
        self._loop.call_soon_threadsafe(self._close_connections)

    def refuse(self) -> None:
        """Break every connection now, and take no new one until `open`: the port is closed."""
        self.is_open = False
        self._loop.call_soon_threadsafe(self._close_port)

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        assert self._ready.wait(10), "the gate did not open"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    # --- the loop ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._close_port()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, LOOPBACK, self.port, limit=_MAX_HEAD)

    def _close_port(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._close_connections()

    def _close_connections(self) -> None:
        for writer in list(self._connections):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        self._connections.add(writer)
        try:
            if not self.is_open:
                return
            up_reader, upstream = await asyncio.open_connection(LOOPBACK, self.target_port, limit=_MAX_HEAD)
            while await self._exchange(reader, writer, up_reader, upstream):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # a client or the server went away: the other side sees a broken connection, as without a gate
        finally:
            self._connections.discard(writer)
            for one in (writer, upstream):
                if one is not None:
                    one.transport.abort() if one is writer and not self.is_open else one.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer; False when the connection is over."""
        head = await _read_head(reader)
        if head is None:
            return False
        method, target, _ = head.first.split(" ", 2)
        self._number += 1
        seen = Seen(self._number, method, target)
        await self._pass(seen, is_before=True)
        upstream.write(head.raw)
        sending = asyncio.create_task(_body(head, reader, upstream, is_request=True))
        try:
            answer = await self._answer(up_reader, writer)
            if answer is None:
                return False
            status = int(answer.first.split(" ", 2)[1])
            if status != 101:
                await sending
        finally:
            sending.cancel()
        done = Seen(seen.number, method, target, status)
        await self._pass(done, is_before=False)
        writer.write(answer.raw)
        if status == 101:
            await asyncio.gather(_pipe(reader, upstream), _pipe(up_reader, writer))
            return False
        has_body = method != "HEAD" and status not in _NO_BODY
        is_open = await _body(answer, up_reader, writer, is_request=False) if has_body else True
        await writer.drain()
        return is_open and answer.fields.get("connection", "").lower() != "close"

    async def _answer(self, up_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Head | None:
        """The final answer; "100 Continue" is passed on at once."""
        while True:
            answer = await _read_head(up_reader)
            if answer is None or not answer.first.split(" ", 2)[1].startswith("1") or " 101" in answer.first:
                return answer
            writer.write(answer.raw)

    async def _pass(self, seen: Seen, *, is_before: bool) -> None:
        if not self.is_open:
            raise ConnectionResetError("the network is cut")
        if self.delay_s and is_before:
            self.num_delayed += 1
            await asyncio.sleep(self.delay_s)
        if not is_before and self.on_answer is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.on_answer, seen)
        hold = self._due(seen, is_before=is_before)
        if hold is not None:
            await asyncio.get_running_loop().run_in_executor(None, _run_hold, hold, seen)
            if not self.is_open:
                raise ConnectionResetError("the network is cut")

    def _due(self, seen: Seen, *, is_before: bool) -> Hold | None:
        for hold in self._holds:
            if hold.is_before is not is_before or hold.fired.is_set() or not hold.matches(seen):
                continue
            if hold.skip > 0:
                hold.skip -= 1
                continue
            hold.fired.set()
            return hold
        return None


def _run_hold(hold: Hold, seen: Seen) -> None:
    try:
        hold.action(seen)
    except BaseException as error:  # noqa: BLE001 - it belongs to the test that armed the hold
        hold.error = error
    finally:
        hold.done.set()


async def _read_head(reader: asyncio.StreamReader) -> Head | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    lines = raw.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return Head(raw, lines[0], {name.strip().lower(): value.strip() for name, _, value in pairs})


async def _body(head: Head, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_request: bool) -> bool:
    """Pass a body on. False when only the connection's end told where it ended."""
    if head.is_chunked:
        while True:
            line = await source.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            sink.write(line)
            while size == 0:  # trailers may follow, checksums of S3 for example; an empty line ends them
                line = await source.readuntil(b"\r\n")
                sink.write(line)
                if line == b"\r\n":
                    await sink.drain()
                    return True
            sink.write(await source.readexactly(size + 2))
            await sink.drain()
    if head.length is None:
        if not is_request:
            await _pipe(source, sink)
        return is_request
    left = head.length
    while left:
        data = await source.read(min(left, _CHUNK))
        if not data:
            raise asyncio.IncompleteReadError(b"", left)
        sink.write(data)
        await sink.drain()
        left -= len(data)
    return True


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
        sink.close()


def wait_for_hold(hold: Hold, *, timeout_s: float) -> None:
    """Wait until a hold has fired and its action is done; raises what the action raised."""
    end = time.monotonic() + timeout_s
    if not hold.fired.wait(timeout_s):
        raise AssertionError(f"no request came to be held within {timeout_s:.0f} s")
    if not hold.done.wait(max(1.0, end - time.monotonic())):
        raise AssertionError("what was to happen at the held request never ended")
    if hold.error is not None:
        raise hold.error
