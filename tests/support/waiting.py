"""One wait for a job, without a cluster: the real waiter on scripted clients and a bucket in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import cast

from airflow_provider.client.jobs_client import AsyncJobsClient
from airflow_provider.core import layout
from airflow_provider.core.errors import ClusterUnreachable
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.waiting import WaitLimits, WaitOver
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.triggers.waiter import Following, JobWaiter
from tests.support.experiment import claim
from tests.support.fake_jobs_client import SESSION, FakeAsyncJobs
from tests.support.memory_store import MemoryStore

AWAY = ClusterUnreachable("no answer")
QUICK = WaitLimits(
    poll_interval_s=0.001,
    unreachable_timeout_s=0,
    unreachable_polls=4,
    lost_after_s=0,
    lost_polls=3,
    deadline_grace_s=0,
)


class Waiting:
    """One wait with everything it said. Each look at the connection takes the next of `clients`; the last one stays."""

    def __init__(
        self,
        *clients: FakeAsyncJobs | AsyncJobsClient | Exception,
        limits: WaitLimits = QUICK,
        deadline: datetime | None = None,
        emits: bool = False,
        log_position: int = 0,
    ) -> None:
        self.store = MemoryStore()
        self.store.put_raw(layout.claim(1, 1), claim(1, 1).body())
        self.said: list[str] = []
        self.lines: list[str] = []
        self._clients = list(clients)
        self.num_opened = 0

        async def open_client() -> AsyncJobsClient:
            self.num_opened += 1
            client = self._clients.pop(0) if len(self._clients) > 1 else self._clients[0]
            if isinstance(client, Exception):
                raise client
            return cast("AsyncJobsClient", client)

        self.waiter = JobWaiter(
            Following(AttemptRef(generation=1, attempt=1), "job-1", SESSION, deadline, limits),
            open_client=cast("Callable[[], Awaitable[AsyncJobsClient]]", open_client),
            records=ExperimentRecords(self.store),
            say=self.said.append,
            emit=self.lines.append if emits else None,
            log_position=log_position,
        )

    async def over(self) -> WaitOver:
        return await asyncio.wait_for(self.waiter.wait(), 20)
