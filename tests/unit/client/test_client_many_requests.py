"""Many requests at once, as when a cluster ends all jobs in one second: they wait in a queue that costs nothing."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from airflow_provider.client import Timeouts
from airflow_provider.client.requests import get_job
from airflow_provider.core.errors import ClusterUnreachable
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import Fault
from tests.support.fake_jobs_client import until
from tests.support.jobs_clients import TOKEN, async_client, sync_client

JOB = "/api/jobs/job-1"


def _num_connections(server: FakeJobsServer) -> int:
    return len({request.port for request in server.requests})


@pytest.mark.asyncio
async def test_requests_that_wait_for_a_connection_do_not_open_more() -> None:
    """A thousand jobs that end at once would connect to the dashboard a thousand times."""
    with FakeJobsServer(token=TOKEN) as server:
        server.add_job("job-1")
        fault = server.add(Fault("hang", "GET", JOB, times=2))
        async with async_client(server, timeouts=Timeouts(max_connections=4)) as client:
            asked = [asyncio.create_task(client.get_job("job-1")) for _ in range(50)]
            await until(lambda: fault.num_hit == 2)
            assert (server.num("GET", JOB), _num_connections(server)) == (2, 2)
            for task in asked:
                task.cancel()
            await asyncio.wait(asked)
            assert await client.get_job("job-1") is not None, "who left gave the connection back"


@pytest.mark.asyncio
async def test_a_request_that_gets_no_connection_in_time_was_never_sent() -> None:
    with FakeJobsServer(token=TOKEN) as server:
        server.add_job("job-1")
        async with async_client(server, timeouts=Timeouts(max_connections=2, read_s=0.05)) as client:
            taken = client._shared.transport._free
            async with taken:
                with pytest.raises(ClusterUnreachable, match="no answer in time") as caught:
                    await client.get_job("job-1")
            assert caught.value.never_sent
            assert "all connections for short requests are in use" in str(caught.value)
            assert server.num("GET", JOB) == 0


@pytest.mark.asyncio
async def test_who_is_cancelled_as_a_connection_gets_free_asks_nothing() -> None:
    """A trigger that was cancelled would poll on, and nobody would cancel it again."""
    with FakeJobsServer(token=TOKEN) as server:
        server.add_job("job-1")
        async with async_client(server, timeouts=Timeouts(max_connections=2)) as client:
            free = client._shared.transport._free
            await free.acquire()
            waiting = asyncio.create_task(client.get_job("job-1"))
            await until(lambda: bool(free._waiters))
            free.release()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert server.num("GET", JOB) == 0
            assert await client.get_job("job-1") is not None, "its place is free again"


@pytest.mark.asyncio
async def test_a_long_compressed_log_lets_others_have_their_turns() -> None:
    with FakeJobsServer(token=TOKEN) as server:
        log = gzip.compress(b'{"logs": "' + b"a" * 30_000_000 + b'"}')
        server.add_job("job-1")
        server.add(
            Fault("answer", path=f"{JOB}/logs", status=200, body=log, content_type="application/json",
                  headers={"Content-Encoding": "gzip"})
        )  # fmt: skip
        num_turns = 0

        async def turn() -> None:
            nonlocal num_turns
            while True:
                await asyncio.sleep(0)
                num_turns += 1

        async with async_client(server, timeouts=Timeouts()) as client:
            others = asyncio.create_task(turn())
            part = await client.logs("job-1", max_chars=10)
            others.cancel()
        assert part is not None
        assert (part.text, part.num_dropped) == ("a" * 10, 29_999_990)
        assert num_turns > 20, "one after each piece"


@pytest.mark.asyncio
async def test_questions_without_an_answer_do_not_make_the_others_connect_anew() -> None:
    """A pool that counts busy connections among those that it keeps closes each idle one: then each poll would be a handshake."""
    with FakeJobsServer(token=TOKEN) as server:
        server.add_job("job-1")
        fault = server.add(Fault("hang", "GET", JOB, times=8))
        async with async_client(server) as client:
            hung = [asyncio.create_task(client.get_job("job-1")) for _ in range(8)]
            await until(lambda: fault.num_hit == 8)
            await client.get_job("job-1")
            for _ in range(5):
                await client.get_job("job-1")
            assert _num_connections(server) == 9
            for task in hung:
                task.cancel()
            await asyncio.wait(hung)


@pytest.mark.asyncio
async def test_logs_that_are_slow_do_not_hold_up_a_poll() -> None:
    """When a thousand jobs end at once, each asks for the rest of its log."""
    with FakeJobsServer(token=TOKEN) as server:
        server.add_job("job-1")
        fault = server.add(Fault("hang", "GET", f"{JOB}/logs", times=100))
        async with async_client(server, timeouts=Timeouts(max_connections=4)) as client:
            logs = [asyncio.create_task(client.logs("job-1")) for _ in range(10)]
            await until(lambda: fault.num_hit == 2)
            assert await client.get_job("job-1") is not None
            for task in logs:
                task.cancel()
            await asyncio.wait(logs)
        assert fault.num_hit == 2


@pytest.mark.asyncio
async def test_a_closed_transport_connects_no_more() -> None:
    """Its pool would, and nobody would close that: also for a request that waited for a connection meanwhile."""
    with FakeJobsServer(token=TOKEN) as server:
        server.add_job("job-1")
        client = async_client(server, timeouts=Timeouts(max_connections=2))
        transport = client._shared.transport
        async with transport._free:
            waiting = asyncio.create_task(client.get_job("job-1"))
            await asyncio.sleep(0)
            await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await waiting
        with pytest.raises(RuntimeError, match="closed"):
            await transport.send(get_job("job-1"))
        blocking = sync_client(server)
        blocking.close()
        with pytest.raises(RuntimeError, match="closed"):
            blocking.get_job("job-1")
        assert server.num("GET", JOB) == 0
