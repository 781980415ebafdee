"""What following jobs costs, in counts that no machine changes: the cheap part of the benchmarks triggerer and logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import pytest

from airflow_provider.client import TailLimits, pool
from airflow_provider.client.values import LogChunk
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.waiting import WaitEnd, WaitLimits
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import TailSession, messages
from airflow_provider.triggers import waiter as waiting_job
from airflow_provider.triggers.waiter import Following, JobWaiter
from benchmarks.latency import drawn, quantiles, recorded
from benchmarks.log_text import CHARS_OF_A_LINE, Log, step_of
from tests.support.counting_store import CountingStore
from tests.support.jobs_clients import TOKEN, async_client
from tests.support.memory_store import MemoryStore

NUM_JOBS = 20
NUM_POLLS = 5


@pytest.fixture
def server() -> Iterator[FakeJobsServer]:
    with FakeJobsServer(token=TOKEN) as running:
        yield running


async def test_a_poll_is_one_request_and_all_jobs_share_one_pool(
    server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request for a version, a list or the bucket beside it: 1,000 jobs would multiply each."""
    # The first reads of the signs of life are spread over five minutes: by chance one fell into this second.
    monkeypatch.setattr(waiting_job.random, "random", lambda: 0.5)
    names = [f"job-{number}" for number in range(NUM_JOBS)]
    for name in names:
        server.add_job(name)
    store = CountingStore(MemoryStore())
    num_pools: set[int] = set()

    async def follow(name: str) -> WaitEnd:
        async def open_client() -> object:
            return async_client(server)

        waiter = JobWaiter(
            Following(
                AttemptRef(generation=1, attempt=1), name, "session_fake_1", None, WaitLimits(poll_interval_s=0.2)
            ),
            open_client=open_client,  # type: ignore[arg-type]
            records=ExperimentRecords(store),
            say=lambda _: num_pools.add(len(pool._POOLS[asyncio.get_running_loop()])),
        )
        return (await waiter.wait()).end

    async def end_after_polls() -> None:
        while min(server.num("GET", f"/api/jobs/{name}") for name in names) < NUM_POLLS:  # noqa: ASYNC110 - the server is a thread
            await asyncio.sleep(0.02)
        for name in names:
            server.set_status(name, "SUCCEEDED")

    *ends, _ = await asyncio.gather(*map(follow, names), end_after_polls())
    assert set(ends) == {WaitEnd.ENDED}
    assert {request.path for request in server.requests} == {f"/api/jobs/{name}" for name in names}
    assert store.num_calls == 0
    assert num_pools == {1}


@pytest.mark.parametrize("cuts", [(), (0.25, 0.5, 0.75)])
async def test_a_log_is_fetched_once_for_each_connection_and_not_at_its_end(
    server: FakeJobsServer, cuts: tuple[float, ...]
) -> None:
    """The bound of what travels: a replay for each connection that broke, and each line shown once. At the end its length is asked for."""
    num_lines = 2_000
    log = "".join(Log(num_lines).messages(num_lines))
    sent = messages(log)
    job = server.add_job("job-1", log=log)
    job.tails = [
        *(TailSession(sent[: int(len(sent) * part)], code=0) for part in cuts),
        TailSession(sent),
    ]
    shown: list[str] = []
    async with async_client(server) as client:
        limits = TailLimits(first_wait_s=0.01, max_wait_s=0.01)
        async with aclosing(client.tail("job-1", limits=limits)) as chunks:
            async for chunk in chunks:
                shown += chunk.lines
                if len(shown) == num_lines:
                    server.set_status("job-1", "SUCCEEDED")
    assert [step_of(line) for line in shown] == list(range(num_lines))
    assert job.num_tails == 1 + len(cuts)
    assert server.num("GET", "/api/jobs/job-1/logs") == 0


def test_a_line_of_the_made_log_is_found_again() -> None:
    log = Log(30)
    lines = "".join(log.messages(30)).splitlines(keepends=True)
    assert [step_of(line) for line in lines] == list(range(30))
    assert {len(line) for line in lines} == {CHARS_OF_A_LINE}
    assert "".join(log.messages(30, begin=10)) == "".join(lines[10:])
    assert step_of("the job is RUNNING") is None


def test_a_growing_log_has_the_lines_of_its_age() -> None:
    log = Log(5, began=100.0, each_s=2.0)
    assert [log.num_lines_at(now) for now in (90.0, 101.0, 105.0, 1000.0)] == [0, 0, 2, 5]
    log = Log(5, began=100.0, each_s=2.0, num_at_once=2)
    assert [log.num_lines_at(now) for now in (90.0, 101.0, 105.0, 1000.0)] == [2, 2, 4, 5]


def test_latencies_are_drawn_as_they_were_recorded() -> None:
    found = quantiles([3.0, 1.0, 2.0], parts=2)
    assert found == [1.0, 2.0, 3.0]
    assert [drawn(found, chance) for chance in (0.0, 0.25, 0.5, 1.0)] == [1.0, 1.5, 2.0, 3.0]
    kept = recorded()
    assert kept == sorted(kept)
    assert kept[0] > 0


async def test_a_log_that_ends_is_not_fetched_again_until_the_next_poll(server: FakeJobsServer) -> None:
    """Ray closes the log at the job's end: connecting again until the next poll would replay all of it each time."""
    job = server.add_job("job-1")
    lines: list[str] = []

    async def open_client() -> object:
        return async_client(server)

    limits = WaitLimits(poll_interval_s=3600)
    waiter = JobWaiter(
        Following(AttemptRef(generation=1, attempt=1), "job-1", "session_fake_1", None, limits),
        open_client=open_client,  # type: ignore[arg-type]
        records=ExperimentRecords(MemoryStore()),
        # Not before the first poll: the next one is an hour away.
        say=lambda said: server.write_log("job-1", "a\nb\n") if said == "the job is RUNNING" else None,
        emit=lambda line: (lines.append(line), server.set_status("job-1", "SUCCEEDED"))[0],
    )
    over = await asyncio.wait_for(waiter.wait(), 30)
    assert over.end is WaitEnd.ENDED
    assert lines == ["a", "b"]
    assert job.num_tails == 1
    assert server.num("GET", "/api/jobs/job-1/logs") == 0


async def test_a_long_log_leaves_the_loop_to_others_between_two_messages() -> None:
    """Messages that have arrived already are taken without a wait; a replay of megabytes would hold up every other trigger."""
    num_messages = 100
    turns: list[int] = []
    loop = asyncio.get_running_loop()

    def count() -> None:
        turns.append(len(turns))
        loop.call_soon(count)

    class Client:
        async def tail(self, *_: object, **__: object) -> AsyncGenerator[LogChunk, None]:
            for number in range(num_messages):
                yield LogChunk(("a line",), number)

    waiter = JobWaiter(
        Following(AttemptRef(generation=1, attempt=1), "job-1", None, None, WaitLimits()),
        open_client=Client,  # type: ignore[arg-type]
        records=ExperimentRecords(MemoryStore()),
        say=lambda _: None,
        emit=lambda _: None,
    )
    loop.call_soon(count)
    await waiter._stream(Client())  # type: ignore[arg-type]
    assert len(turns) >= num_messages
