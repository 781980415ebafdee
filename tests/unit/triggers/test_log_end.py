"""What a job wrote last is in the task log, whichever way to its log is broken when it ends; a stop and a retry don't wait for it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider.core.waiting import WaitEnd
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import Fault
from airflow_provider.triggers import waiter as waiter_module
from tests.support.fake_jobs_client import FakeAsyncJobs
from tests.support.jobs_clients import TOKEN, async_client
from tests.support.waiting import AWAY, Waiting

LOG = "/api/jobs/job-1/logs"
LONG_S = 3600.0


async def ended(server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """A job that writes why it fails and fails."""
    server.add_job("job-1", log="a\nb\n")
    waiting = Waiting(async_client(server), emits=True)

    def emit(line: str) -> None:
        waiting.lines.append(line)
        if line == "b":
            server.write_log("job-1", "Traceback\nValueError: why\n")
            server.set_status("job-1", "FAILED")

    monkeypatch.setattr(waiting.waiter, "_emit", emit)
    assert (await waiting.over()).end is WaitEnd.ENDED
    return waiting


@pytest.mark.parametrize(
    "fault",
    [
        Fault("answer", "GET", LOG),
        Fault("answer", "GET", LOG, status=404),
        Fault("refuse", "GET", LOG),
        Fault("hang", "GET", LOG),
        Fault("answer", "HEAD", LOG, status=405),
        Fault("hang", "HEAD", LOG),
        Fault("refuse", "HEAD", LOG),
    ],
    ids=lambda fault: f"{fault.kind} {fault.method} {fault.status}",
)
async def test_a_tail_that_lives_shows_the_end_where_the_file_cannot_be_fetched(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    with FakeJobsServer(token=TOKEN) as server:
        server.add(fault)
        waiting = await ended(server, monkeypatch)
    assert waiting.lines == ["a", "b", "Traceback", "ValueError: why"]


async def test_a_fetch_that_takes_its_time_is_awaited_as_long_as_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded dashboard: the tail is between two looks, and the file comes later than a stop would wait for it."""
    monkeypatch.setattr(waiter_module, "LOG_END_WAIT_S", LONG_S)
    monkeypatch.setattr(waiter_module, "FETCH_S", 0.0)
    with FakeJobsServer(token=TOKEN, poll_s=LONG_S) as server:  # a tail that looks once and then stays open
        waiting = await ended(server, monkeypatch)
    assert waiting.lines == ["a", "b", "Traceback", "ValueError: why"]


async def test_the_end_of_a_long_log_is_read_where_its_tail_is_between_two_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gateway that refuses the upgrade for a while: the next session may be a minute away."""
    monkeypatch.setattr(waiter_module, "LOG_END_WAIT_S", 0.05)
    monkeypatch.setattr(waiter_module, "SHORT_LOG_BYTES", 20)
    with FakeJobsServer(token=TOKEN) as server:
        fault = server.add(Fault("answer", "GET", f"{LOG}/tail", status=503))
        server.add_job("job-1", log="a\nb\nlast\n")
        server.set_status("job-1", "FAILED")
        waiting = Waiting(async_client(server), emits=True)
        await waiting.over()
    assert fault.num_hit
    assert waiting.lines == ["a", "b", "last"]


@pytest.mark.parametrize("method", ["HEAD", "GET"])
async def test_a_job_that_is_to_be_stopped_does_not_wait_for_a_log_that_hangs(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(waiter_module, "LOG_END_WAIT_S", LONG_S)
    monkeypatch.setattr(waiter_module, "FETCH_S", 0.05)
    with FakeJobsServer(token=TOKEN) as server:
        fault = server.add(Fault("hang", method, LOG))
        server.add_job("job-1", log="a\nhalf")
        deadline = datetime.now(timezone.utc) - timedelta(hours=1)
        waiting = Waiting(async_client(server), emits=True, deadline=deadline)
        assert (await waiting.over()).end is WaitEnd.TIMEOUT
    assert fault.num_hit


async def test_a_cluster_that_does_not_answer_is_not_asked_for_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, asked = FakeAsyncJobs(["RUNNING", AWAY]), list[str]()

    async def log_size(submission_id: str) -> None:
        asked.append(submission_id)

    monkeypatch.setattr(jobs, "log_size", log_size)
    jobs.lines, jobs.ends_tail = ("a",), False
    waiting = Waiting(jobs, emits=True)
    assert (await waiting.over()).end is WaitEnd.UNREACHABLE
    assert (waiting.lines, asked) == (["a"], [])
