"""Waiting in the worker: the trigger's waiter, in a thread of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_provider.hooks.ray import RayHook
from airflow_provider.triggers.waiter import Following, JobWaiter

if TYPE_CHECKING:
    from airflow_provider.client.jobs_client import AsyncJobsClient
    from airflow_provider.core.waiting import WaitOver
    from airflow_provider.storage.experiment_records import ExperimentRecords


def wait_in_worker(
    following: Following, *, conn_id: str, records: ExperimentRecords, log: Any, stream_logs: bool
) -> WaitOver:
    """Wait until the job is over. Signals reach the main thread, which only waits: a time-out cancels the wait.

    The connection is read anew whenever a client is opened, so a rotated token does not end the wait.
    """

    async def open_client() -> AsyncJobsClient:
        from airflow_provider.client.jobs_client import AsyncJobsClient

        address, credentials = RayHook(conn_id).target()
        return AsyncJobsClient(address, credentials=credentials)

    waiter = JobWaiter(
        following,
        open_client=open_client,
        records=records,
        say=log.info,
        emit=log.info if stream_logs else None,
    )
    pool = ThreadPoolExecutor(1, thread_name_prefix="ray-train-wait")
    waiting: Future[WaitOver] = pool.submit(asyncio.run, waiter.wait())
    try:
        return waiting.result()
    except BaseException:
        waiter.cancel()
        raise
    finally:
        # A read of the bucket that hangs must not hold back a time-out.
        pool.shutdown(wait=False)
