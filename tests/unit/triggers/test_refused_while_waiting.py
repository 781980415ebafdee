"""What the cluster refuses while a job is waited for says nothing about the job: the connection is read anew, that is all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from airflow_provider.client.values import LogChunk
from airflow_provider.core import layout
from airflow_provider.core.errors import (
    ClusterAuthFailed,
    ClusterRefused,
    ClusterTimeout,
    ClusterUnreachable,
    InvalidConfig,
    NotARayDashboard,
    RayTrainError,
)
from airflow_provider.core.waiting import WaitEnd
from tests.support.fake_jobs_client import FakeAsyncJobs, until
from tests.support.records import alive, outcome
from tests.support.waiting import QUICK, Waiting

REFUSALS: list[RayTrainError] = [
    ClusterAuthFailed("The dashboard answered 403"),
    InvalidConfig("The certificate is unknown"),
    ClusterRefused("The dashboard answered 400"),
    NotARayDashboard("A page of a proxy"),
    ClusterUnreachable("Connection refused"),
    ClusterTimeout("No answer in time"),
]
every_refusal = pytest.mark.parametrize("refusal", REFUSALS, ids=lambda e: type(e).__name__)


@every_refusal
async def test_the_connection_is_read_anew_for_the_next_poll(refusal: RayTrainError) -> None:
    """A token was rotated, a certificate renewed, a dashboard moved."""
    old, new = FakeAsyncJobs(["RUNNING", refusal]), FakeAsyncJobs(["RUNNING", "SUCCEEDED"])
    waiting = Waiting(old, new)
    assert (await waiting.over()).end is WaitEnd.ENDED
    assert (old.num_polls, new.num_polls, waiting.num_opened) == (2, 2, 2)
    assert (old.is_closed, new.is_closed) == (True, True)
    assert f"the cluster gives no answer: {refusal.what}" in waiting.said


@every_refusal
async def test_one_that_stays_is_silence_to_its_last_poll(refusal: RayTrainError) -> None:
    clients = [FakeAsyncJobs([refusal]) for _ in range(5)]
    over = await Waiting(*clients).over()
    assert over.end is WaitEnd.UNREACHABLE
    assert "no answer in 4 polls" in over.reason
    assert [c.num_polls for c in clients] == [1, 1, 1, 1, 0]
    assert [c.is_closed for c in clients] == [True, True, True, True, False]


@every_refusal
async def test_a_connection_that_cannot_be_opened_is_silence_too(refusal: RayTrainError) -> None:
    """Somebody edits it, and finds the mistake a poll later."""
    waiting = Waiting(refusal, refusal, FakeAsyncJobs(["RUNNING", "SUCCEEDED"]))
    assert (await waiting.over()).end is WaitEnd.ENDED
    assert waiting.num_opened == 3
    assert (await Waiting(refusal).over()).end is WaitEnd.UNREACHABLE


@every_refusal
async def test_thirty_minutes_count_and_not_polls_alone(refusal: RayTrainError) -> None:
    limits = QUICK.model_copy(update={"unreachable_timeout_s": 1800.0})
    jobs = FakeAsyncJobs([refusal] * 50 + ["SUCCEEDED"])
    assert (await Waiting(jobs, limits=limits).over()).end is WaitEnd.ENDED
    assert jobs.num_polls == 51


@every_refusal
async def test_a_fresh_sign_of_life_outweighs_it(refusal: RayTrainError) -> None:
    jobs = FakeAsyncJobs([refusal] * 20 + ["SUCCEEDED"])
    waiting = Waiting(jobs)
    waiting.store.put_raw(layout.alive(1, 1), alive().body())
    assert (await waiting.over()).end is WaitEnd.ENDED
    assert jobs.num_polls == 21


@every_refusal
async def test_an_outcome_in_the_bucket_ends_it(refusal: RayTrainError) -> None:
    waiting = Waiting(FakeAsyncJobs([refusal]))
    waiting.store.put_raw(layout.outcome(1, 1), outcome().body())
    assert (await waiting.over()).end is WaitEnd.ENDED


# --- log ---------------------------------------------------------------------------------------------------------------


def talking(answers: list[Any], *lines: str) -> FakeAsyncJobs:
    jobs = FakeAsyncJobs(answers)
    jobs.lines = lines
    return jobs


@every_refusal
async def test_the_log_goes_on_where_it_was_on_the_new_client(refusal: RayTrainError) -> None:
    old = talking(["RUNNING", refusal], "a", "b")
    new = talking(["RUNNING", "SUCCEEDED"], "a", "b", "c", "d")
    waiting = Waiting(old, new, emits=True)
    await waiting.over()
    assert waiting.lines == ["a", "b", "c", "d"]
    assert waiting.waiter._reader.position == 4


async def test_the_old_tail_is_over_before_the_new_one_begins() -> None:
    """Two tails at once would show lines twice."""
    old = talking(["RUNNING", REFUSALS[0]], "a")
    old.ends_tail = False
    new = talking(["RUNNING", "RUNNING"], "a", "b")
    waiting = Waiting(old, new, emits=True)
    task = asyncio.create_task(waiting.over())
    await until(lambda: "b" in waiting.lines)
    tails = [t for t in asyncio.all_tasks() if "_stream" in repr(t.get_coro())]
    assert len(tails) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("error", [*REFUSALS, RuntimeError("odd")])
async def test_a_log_that_breaks_is_said_at_once_and_not_when_the_job_has_ended(error: Exception) -> None:
    jobs = talking(["RUNNING"], "a")
    jobs.tail_error = error
    waiting = Waiting(jobs, emits=True)
    task = asyncio.create_task(waiting.over())
    why = error.what if isinstance(error, RayTrainError) else "RuntimeError: odd"
    await asyncio.wait_for(until(lambda: f"the job's log can't be read: {why}" in waiting.said), 10)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class SlowToEnd(FakeAsyncJobs):
    """Its log takes its time to be closed, as a websocket does."""

    is_ending = False

    async def tail(self, submission_id: str, **_: Any) -> AsyncGenerator[LogChunk, None]:
        yield LogChunk(("a",), 1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_ending = True
            await asyncio.Event().wait()
            raise


async def test_a_cancellation_that_meets_the_closing_of_the_old_client_is_not_lost() -> None:
    """The time-out of a worker comes once: a wait that swallowed it would go on for days."""
    old, new = SlowToEnd(["RUNNING", REFUSALS[0]]), FakeAsyncJobs(["RUNNING"])
    waiting = Waiting(old, new, emits=True)
    task = asyncio.create_task(waiting.waiter.wait())
    await until(lambda: old.is_ending)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 5)
    assert task.cancelled()
    assert new.num_polls == 0
    assert old.is_closed
