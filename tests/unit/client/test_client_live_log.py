"""The log over real sockets: cut, closed, too large, quiet."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from airflow_provider.client import AsyncJobsClient, ClusterAddress, TailLimits, websocket
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import TailSession
from tests.support.jobs_clients import async_client


def test_tail_over_real_sockets(server: FakeJobsServer) -> None:
    """Cut connections, a normal close while running, and an end without a newline: each line once."""
    job = server.add_job("job-1", log="a\nb\nc\nd\nend")
    job.tails = [
        TailSession(["a\nb"], code=0),
        TailSession(["a\nb\nc\n"]),
        TailSession(["a\nb\nc\n", "d\n"], code=1011),
    ]

    async def run() -> list[str]:
        async with async_client(server) as client:
            shown: list[str] = []
            limits = TailLimits(first_wait_s=0.01, max_wait_s=0.01)
            async with aclosing(client.tail("job-1", limits=limits)) as chunks:
                async for chunk in chunks:
                    shown += chunk.lines
                    if job.num_tails >= 3:
                        server.set_status("job-1", "SUCCEEDED")
            return shown

    assert asyncio.run(run()) == ["a", "b", "c", "d", "end"]
    assert job.num_tails >= 3


def test_no_answer_to_a_ping_is_waited_for(server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reads nothing while it tails: who waits for it leaves a running job's log each minute, and fetches all of it again."""
    asked: list[dict[str, Any]] = []

    class Spied(websocket._PinnedConnect):
        def __init__(self, *args: Any, **options: Any) -> None:
            asked.append(options)
            super().__init__(*args, **options)

    monkeypatch.setattr(websocket, "_PinnedConnect", Spied)
    server.add_job("job-1", status="SUCCEEDED", log="a\n")

    async def run() -> list[str]:
        async with async_client(server) as client, client.open_tail("job-1") as messages:
            return [await anext(messages)]

    assert asyncio.run(run()) == ["a\n"]
    assert [(options["ping_interval"] < 50, options["ping_timeout"]) for options in asked] == [(True, None)]


@pytest.mark.scenario("C74")
def test_tail_of_a_message_over_the_limit(server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own limit closes with 1009 too; the rest comes from the file (C74)."""
    # The server reads nothing, so it closes nothing: the session is given up at the next ping.
    monkeypatch.setattr(websocket, "PING_S", 0.1)
    job = server.add_job("job-1", log="a\n" + "x" * 9_000_000 + "\nb\n")
    limits = TailLimits(first_wait_s=0.01, max_wait_s=0.01, poll_s=0.01, final_chars=20_000_000)

    async def run() -> list[Any]:
        async with async_client(server) as client:
            chunks = []
            async for chunk in client.tail("job-1", limits=limits):
                chunks.append(chunk)
                if chunk.note:
                    server.set_status("job-1", "SUCCEEDED")
            return chunks

    chunks = asyncio.run(run())
    assert job.num_tails == 2
    assert [note for chunk in chunks if (note := chunk.note)] == [
        "live log stops before a message too large to send; the rest is read from the file now and then"
    ]
    assert [line[:1] for chunk in chunks for line in chunk.lines] == ["a", "x", "b"]


def test_quiet_job_keeps_its_session(server: FakeJobsServer) -> None:
    """No reconnect while nothing is written."""
    job = server.add_job("job-1", log="a\n")

    async def run() -> list[str]:
        async with async_client(server) as client:
            shown: list[str] = []
            async for chunk in client.tail("job-1"):
                shown += chunk.lines
                if shown == ["a"]:
                    await asyncio.sleep(0.3)
                    server.write_log("job-1", "b\n")
                elif "b" in shown:
                    server.set_status("job-1", "FAILED", exit_code=1)
            return shown

    assert asyncio.run(run()) == ["a", "b"]
    assert job.num_tails == 1


@pytest.mark.parametrize("is_reading", [True, False])
async def test_a_tail_is_left_without_a_goodbye(monkeypatch: pytest.MonkeyPatch, is_reading: bool) -> None:
    """While it tails, Ray reads nothing from the socket and so answers no closing handshake: a retry would wait for it."""
    monkeypatch.setattr(websocket, "CLOSE_S", 3600.0)
    is_left = asyncio.Event()

    async def tail(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("a\n")
        await is_left.wait()
        return socket

    async def never() -> bool:
        return False

    app = web.Application()
    app.router.add_get("/api/jobs/job-1/logs/tail", tail)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with AsyncJobsClient(ClusterAddress.parse(f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
            chunks = client.tail("job-1", is_over=never)
            assert (await anext(chunks)).lines == ("a",)
            if is_reading:
                reading = asyncio.ensure_future(anext(chunks))
                await asyncio.sleep(0)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(reading, 20)
            await asyncio.wait_for(chunks.aclose(), 20)
    finally:
        is_left.set()
        await runner.cleanup()
