"""Many requests at once, as when a cluster ends all jobs in one second: they wait in a queue that costs nothing."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider.client import Timeouts
from airflow_provider.core.errors import ClusterUnreachable
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import Fault
from tests.support.fake_jobs_client import until
from tests.support.jobs_clients import TOKEN, async_client

JOB = "/api/jobs/job-1"


@pytest.mark.asyncio
async def test_requests_that_wait_for_a_connection_do_not_wait_in_the_pool() -> None:
    """The pool's work for each change grows with those that wait in it times its connections."""
    with FakeJobsServer(token=TOKEN) as server:
        server.add_job("job-1")
        fault = server.add(Fault("hang", "GET", JOB, times=2))
        async with async_client(server, timeouts=Timeouts(max_connections=2)) as client:
            asked = [asyncio.create_task(client.get_job("job-1")) for _ in range(50)]
            await until(lambda: fault.num_hit == 2)
            pool = client._shared.transport._http._pool  # type: ignore[attr-defined]
            assert len(pool._requests) == 2
            for task in asked:
                task.cancel()
            await asyncio.wait(asked)
            assert await client.get_job("job-1") is not None, "who left gave the connection back"


@pytest.mark.asyncio
async def test_a_request_that_gets_no_connection_in_time_was_never_sent() -> None:
    with FakeJobsServer(token=TOKEN) as server:
        server.add_job("job-1")
        async with async_client(server, timeouts=Timeouts(max_connections=1, read_s=0.05)) as client:
            taken = client._shared.transport._free
            async with taken:
                with pytest.raises(ClusterUnreachable, match="no answer in time") as caught:
                    await client.get_job("job-1")
            assert caught.value.never_sent
            assert "all 1 connections are in use" in str(caught.value)
            assert server.num("GET", JOB) == 0
