"""The stand-in for a cluster: what it never answers, and what it counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp.test_utils import TestClient, TestServer

from benchmarks import stand_in_cluster
from benchmarks.log_text import CHARS_OF_A_LINE
from benchmarks.stand_in_cluster import Pauses, Settings, StandIn


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[tuple[StandIn, TestClient]]:  # type: ignore[type-arg]
    """One that answers at once."""
    stand_in = StandIn(settings)
    stand_in.latency = [0.0, 0.0]
    async with TestClient(TestServer(stand_in.app())) as client:
        yield stand_in, client


@pytest.mark.parametrize(("each", "hung"), [(0, []), (5, [7, 12, 17]), (100, [7])])
def test_a_run_with_few_jobs_meets_a_question_that_hangs(each: int, hung: list[int]) -> None:
    stand_in = StandIn(Settings(hangs_each=each))
    found = []
    for stand_in.num_status in range(1, 21):
        if stand_in.hangs():
            found.append(stand_in.num_status)
    assert found == hung


async def test_counting_anew_does_not_put_off_what_hangs() -> None:
    """The first of a window would else be the seventh of the window."""
    async with served(Settings(hangs_each=100)) as (_, client):
        for _ in range(6):
            await client.get("/api/jobs/a")
        await client.post("/stand-in/begin")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.get("/api/jobs/a"), 0.2)
        counts = await (await client.get("/stand-in/counts")).json()
        assert (counts["status"], counts["hung"]) == (1, 1)


def test_a_pause_that_has_not_ended_may_be_the_longest() -> None:
    pauses = Pauses()
    for seconds in (None, 2.0, 4.0):
        pauses.add("a", seconds)
    assert pauses.shown([]) == {"num_gaps": 2, "gaps_ms": 6000, "longest_gap_ms": 4000}
    assert pauses.shown([1.0, 9.0]) == {"num_gaps": 2, "gaps_ms": 6000, "longest_gap_ms": 9000}


def test_the_mean_is_of_each_jobs_first_whole_pauses_since_the_window_began() -> None:
    """A window that cuts pauses off cuts the long ones more often."""
    pauses = Pauses(num_each=2)
    for name, seconds in (("a", 30.0), ("a", 1.0), ("b", None), ("a", 3.0), ("a", 50.0), ("b", 4.0)):
        pauses.add(name, seconds)
    assert pauses.shown([]) == {"num_gaps": 3, "gaps_ms": 8000, "longest_gap_ms": 50_000}
    assert Pauses().shown([]) == {"num_gaps": 0, "gaps_ms": 0, "longest_gap_ms": 0}


async def test_pauses_are_counted_anew_and_a_job_that_has_ended_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(stand_in_cluster.time, "monotonic", lambda: now)
    async with served(Settings()) as (stand_in, client):

        async def at(moment: float, path: str) -> dict[str, int]:
            nonlocal now
            now = moment
            answer = await (client.post if path == "/stand-in/begin" else client.get)(path)
            return await answer.json() if path == "/stand-in/counts" else {}  # type: ignore[no-any-return]

        await at(100.0, "/api/jobs/a")
        await at(150.0, "/api/jobs/a")
        await at(151.0, "/stand-in/begin")
        await at(160.0, "/api/jobs/a")
        counts = await at(161.0, "/stand-in/counts")
        assert (counts["num_gaps"], counts["longest_gap_ms"]) == (0, 10_000), "that one began before"
        await at(165.0, "/api/jobs/a")
        counts = await at(166.0, "/stand-in/counts")
        assert (counts["num_gaps"], counts["gaps_ms"], counts["longest_gap_ms"]) == (1, 5_000, 10_000)
        assert (await at(180.0, "/stand-in/counts"))["longest_gap_ms"] == 15_000
        stand_in.ends["a"] = 0.0
        assert (await at(180.0, "/stand-in/counts"))["longest_gap_ms"] == 10_000


async def test_connections_cuts_and_bytes_of_logs_are_counted() -> None:
    settings = Settings(log={"num_lines": 30}, cuts_at=[15 * CHARS_OF_A_LINE])
    async with served(settings) as (stand_in, client):
        for _ in range(2):
            socket = await client.ws_connect("/api/jobs/a/logs/tail")
            await socket.receive()
            stand_in.ends["a"] = 0.0
            while not socket.closed:
                await socket.receive()
        counts = await (await client.get("/stand-in/counts")).json()
        assert (counts["tails_ever"], counts["cuts_ever"]) == (2, 1)
        assert counts["log_bytes"] == counts["log_bytes_ever"] == (20 + 30) * CHARS_OF_A_LINE
        await client.post("/stand-in/begin")
        counts = await (await client.get("/stand-in/counts")).json()
        assert "log_bytes" not in counts
        assert counts["cuts_ever"] == 1


def test_the_log_of_a_job_that_has_ended_grows_no_more() -> None:
    """Else what follows it would find lines that no job can have written, and fetch all of it again."""
    stand_in = StandIn(Settings(log={"num_lines": 1000, "began": 100.0, "each_s": 1.0}))
    stand_in.ends["a"] = 110.0
    assert (stand_in.num_lines("a"), stand_in.num_lines("b")) == (10, 1000)
