"""Both real clients on a fake dashboard, with limits short enough for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from airflow_provider.client import (
    AsyncJobsClient,
    ClusterAddress,
    ClusterCredentials,
    JobRequest,
    SubmitLimits,
    SyncJobsClient,
    Timeouts,
)
from airflow_provider.testing.jobs_api import FakeJobsServer

TOKEN = "s3cr3t-t0ken"
FAST = Timeouts(connect_s=2, read_s=0.4, write_s=2, total_s=1.0)
QUICK = SubmitLimits(first_wait_s=0.01, max_wait_s=0.02)
REQUEST = JobRequest("job-1", "python x.py", {"dag": "d", "try": "1"})


def sync_client(server: FakeJobsServer, **options: Any) -> SyncJobsClient:
    """Client with short limits."""
    credentials = options.pop("credentials", ClusterCredentials(token=TOKEN))
    return SyncJobsClient(
        ClusterAddress.parse(server.url), credentials=credentials, timeouts=FAST, submit_limits=QUICK, **options
    )


def async_client(server: FakeJobsServer, **options: Any) -> AsyncJobsClient:
    """Client with short limits."""
    credentials = options.pop("credentials", ClusterCredentials(token=TOKEN))
    timeouts = options.pop("timeouts", FAST)
    return AsyncJobsClient(
        ClusterAddress.parse(server.url), credentials=credentials, timeouts=timeouts, submit_limits=QUICK, **options
    )


Ask = Callable[..., Any]
"""(server or address, name of a client's method, its arguments, credentials or timeouts of the client) -> what the method returned."""


def ask_sync(server: FakeJobsServer | ClusterAddress, method: str, *args: Any, **options: Any) -> Any:
    """By the blocking client."""
    of_client = _options(options)
    with SyncJobsClient(_address(server), **of_client) as client:
        return getattr(client, method)(*args, **options)


def ask_async(server: FakeJobsServer | ClusterAddress, method: str, *args: Any, **options: Any) -> Any:
    """By the other one, on an event loop of its own."""

    async def run() -> Any:
        of_client = _options(options)
        async with AsyncJobsClient(_address(server), **of_client) as client:
            return await getattr(client, method)(*args, **options)

    return asyncio.run(run())


def _address(server: FakeJobsServer | ClusterAddress) -> ClusterAddress:
    return server if isinstance(server, ClusterAddress) else ClusterAddress.parse(server.url)


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the client, taken out of the method's."""
    credentials = options.pop("credentials", ClusterCredentials(token=TOKEN))
    return {"credentials": credentials, "timeouts": options.pop("timeouts", FAST), "submit_limits": QUICK}
