"""Both real clients on a fake dashboard, with limits short enough for tests."""

from __future__ import annotations

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
