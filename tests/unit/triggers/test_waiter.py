"""Following one job: silence is silence, every line once, the loop never blocked, and it always comes to an end."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.client.values import LogChunk
from airflow_provider.core import layout
from airflow_provider.core.errors import ClusterAuthFailed, NotARayDashboard, StoreUnreachable
from airflow_provider.core.waiting import WaitEnd
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.triggers import waiter as waiter_module
from airflow_provider.triggers.waiter import JobWaiter
from tests.support.fake_jobs_client import FakeAsyncJobs, until
from tests.support.jobs_clients import TOKEN, async_client
from tests.support.records import alive, outcome
from tests.support.waiting import AWAY, QUICK, Waiting


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "STOPPED"])
async def test_it_ends_when_the_job_has_ended(status: str) -> None:
    jobs = FakeAsyncJobs(["PENDING", "RUNNING", "RUNNING", status])
    over = await Waiting(jobs).over()
    assert (over.end, jobs.num_polls) == (WaitEnd.ENDED, 4)
    assert jobs.is_closed


async def test_each_change_is_said_once() -> None:
    """A task log of one line for each poll helps nobody."""
    waiting = Waiting(FakeAsyncJobs(["PENDING", "PENDING", "RUNNING", "RUNNING", "RUNNING", "SUCCEEDED"]))
    await waiting.over()
    assert waiting.said == ["the job is PENDING", "the job is RUNNING"]


async def test_a_job_that_the_cluster_does_not_know_is_lost_after_several_polls() -> None:
    jobs = FakeAsyncJobs(["RUNNING", None], session_name="session_2")
    over = await Waiting(jobs).over()
    assert (over.end, jobs.num_polls) == (WaitEnd.LOST, 4)
    assert "session_2" in over.reason


async def test_a_job_that_is_known_again_is_not_lost() -> None:
    assert (await Waiting(FakeAsyncJobs([None, None, "RUNNING", None, None, "SUCCEEDED"])).over()).end is WaitEnd.ENDED


@pytest.mark.parametrize("silence", [AWAY, NotARayDashboard("a page")])
async def test_a_cluster_that_stays_silent_is_unreachable(silence: Exception) -> None:
    waiting = Waiting(FakeAsyncJobs(["RUNNING", silence]))
    over = await waiting.over()
    assert over.end is WaitEnd.UNREACHABLE
    assert "no sign of life" in over.reason
    assert any(silence.what in line for line in waiting.said)  # type: ignore[attr-defined]


async def test_a_fresh_sign_of_life_outweighs_the_silence() -> None:
    """Training goes on while the dashboard is away."""
    jobs = FakeAsyncJobs([AWAY] * 20 + ["SUCCEEDED"])
    waiting = Waiting(jobs)
    waiting.store.put_raw(layout.alive(1, 1), alive().body())
    assert (await waiting.over()).end is WaitEnd.ENDED
    assert jobs.num_polls == 21


async def test_an_outcome_in_the_bucket_ends_the_wait_while_the_cluster_is_silent() -> None:
    waiting = Waiting(FakeAsyncJobs([AWAY]))
    waiting.store.put_raw(layout.outcome(1, 1), outcome().body())
    over = await waiting.over()
    assert (over.end, over.reason) == (WaitEnd.ENDED, "the driver left its outcome in the bucket")


async def test_a_bucket_that_cannot_be_read_either_is_said_and_ends_nothing() -> None:
    waiting = Waiting(FakeAsyncJobs([AWAY, AWAY, "SUCCEEDED"]))
    waiting.store.fail_call(1, StoreUnreachable("the store is away"))
    assert (await waiting.over()).end is WaitEnd.ENDED
    assert waiting.store.fired
    assert "the bucket can't be read either: the store is away" in waiting.said


async def test_the_bucket_is_not_asked_while_the_cluster_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before a sign of life is due, which for each job is at another moment."""
    monkeypatch.setattr(waiter_module.random, "random", lambda: 0.5)
    waiting = Waiting(FakeAsyncJobs(["RUNNING"] * 5 + ["SUCCEEDED"]))
    await waiting.over()
    assert waiting.store.num_calls == 0


async def test_reading_the_bucket_never_blocks_the_loop() -> None:
    """One triggerer follows 1,000 jobs on one loop."""
    waiting = Waiting(FakeAsyncJobs([AWAY, "SUCCEEDED"]))
    release, threads = threading.Event(), set()

    def slow(verb: str, key: str, number: int) -> None:
        threads.add(threading.current_thread())
        assert release.wait(10), "the loop was blocked by a read"

    waiting.store.before_call = slow
    task = asyncio.create_task(waiting.over())
    await until(lambda: threads)
    release.set()
    assert (await task).end is WaitEnd.ENDED
    assert threading.current_thread() not in threads


async def test_refusals_with_an_answer_in_between_do_not_add_up() -> None:
    refused = ClusterAuthFailed("403")
    jobs = FakeAsyncJobs([refused, refused, "RUNNING", refused, refused, "SUCCEEDED"])
    assert (await Waiting(jobs).over()).end is WaitEnd.ENDED


async def test_the_deadline_is_absolute() -> None:
    """A triggerer's restart must not give the training another day."""
    past = datetime.now(timezone.utc) - timedelta(seconds=5)
    over = await Waiting(FakeAsyncJobs(["RUNNING"]), deadline=past).over()
    assert over.end is WaitEnd.TIMEOUT


async def test_a_job_that_stays_pending_is_given_up() -> None:
    limits = QUICK.model_copy(update={"pending_timeout_s": 0.0})
    assert (await Waiting(FakeAsyncJobs(["PENDING"]), limits=limits).over()).end is WaitEnd.PENDING_TOO_LONG


# --- log ---------------------------------------------------------------------------------------------------------------


def talking(answers: list[Any], *lines: str) -> FakeAsyncJobs:
    jobs = FakeAsyncJobs(answers)
    jobs.lines = lines
    return jobs


async def test_a_clock_that_is_set_anew_gives_no_job_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hours that a clock jumps are no two hours of waiting."""
    jumps = iter([0, 0, 2, 2])
    monkeypatch.setattr(
        waiter_module, "_now", lambda: datetime(2026, 11, 29, tzinfo=timezone.utc) + timedelta(hours=next(jumps, 2))
    )
    jobs = FakeAsyncJobs(["PENDING", "PENDING", "PENDING", "SUCCEEDED"])
    waiting = Waiting(jobs, limits=QUICK.model_copy(update={"pending_timeout_s": 3600.0}))
    assert (await waiting.over()).end is WaitEnd.ENDED


async def test_the_log_is_streamed_from_the_given_position() -> None:
    waiting = Waiting(talking(["RUNNING", "SUCCEEDED"], "a", "b", "c"), emits=True, log_position=1)
    await waiting.over()
    assert waiting.lines == ["b", "c"]
    assert waiting.waiter._reader.position == 3


async def test_the_log_can_be_off() -> None:
    waiting = Waiting(talking(["RUNNING", "SUCCEEDED"], "a"))
    await waiting.over()
    assert waiting.lines == []


@pytest.mark.parametrize("error", [AWAY, RuntimeError("odd")])
async def test_a_broken_log_never_decides_how_the_training_ended(error: Exception) -> None:
    jobs = talking(["RUNNING", "SUCCEEDED"], "a")
    jobs.tail_error = error
    waiting = Waiting(jobs, emits=True)
    assert (await waiting.over()).end is WaitEnd.ENDED
    assert any("the job's log can't be read" in line for line in waiting.said)


@pytest.mark.parametrize("error", [AWAY, RuntimeError("odd")])
async def test_nor_does_a_log_whose_size_nobody_says(error: Exception) -> None:
    jobs = talking(["RUNNING", "SUCCEEDED"], "a")
    jobs.size_error = error
    waiting = Waiting(jobs, emits=True)
    assert (await waiting.over()).end is WaitEnd.ENDED
    assert waiting.lines == ["a"]


@pytest.mark.parametrize("is_short", [True, False])
async def test_the_last_lines_of_a_short_log_are_fetched_when_the_job_has_ended(
    monkeypatch: pytest.MonkeyPatch, is_short: bool
) -> None:
    """Ray's tail ends seconds after the job; a retry must not wait for it. A long log is sent again only when its tail did not end in time."""
    monkeypatch.setattr(waiter_module, "LOG_END_WAIT_S", 3600.0 if is_short else 0.05)
    monkeypatch.setattr(waiter_module, "SHORT_LOG_BYTES", 1_000 if is_short else 30)
    with FakeJobsServer(token=TOKEN, poll_s=3600.0) as server:  # a tail that looks once and then stays open
        server.add_job("job-1", log="a\nb\nhalf")

        def end(line: str) -> None:
            lines.append(line)
            if line == "b":
                server.write_log("job-1", " a line\nlast")
                server.set_status("job-1", "SUCCEEDED")

        lines: list[str] = []
        waiting = Waiting(async_client(server), emits=True)
        monkeypatch.setattr(waiting.waiter, "_emit", end)
        assert (await waiting.over()).end is WaitEnd.ENDED
        assert lines == ["a", "b", "half a line", "last"]
        assert any("did not end in time" in said for said in waiting.said) is not is_short
        assert server.num("GET", "/api/jobs/job-1/logs") == 1


async def test_a_log_that_was_long_before_the_first_poll_is_shown_from_its_start() -> None:
    """A triggerer that was away finds a job that has ended: its log isn't short because little of it has arrived."""
    log = "".join(f"line {number} {'x' * 90}\n" for number in range(20_000))
    with FakeJobsServer(token=TOKEN) as server:
        server.add_job("job-1", log=log)
        server.set_status("job-1", "SUCCEEDED")
        waiting = Waiting(async_client(server), emits=True)
        await waiting.over()
    assert waiting.lines == log.splitlines()
    assert not any("left out" in said for said in waiting.said)


@pytest.mark.parametrize("is_short", [True, False])
async def test_the_log_of_a_job_that_goes_on_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, is_short: bool) -> None:
    """Its time is up: it is stopped after this wait, and would hold its nodes meanwhile."""
    monkeypatch.setattr(waiter_module, "LOG_END_WAIT_S", 3600.0)
    monkeypatch.setattr(waiter_module, "SHORT_LOG_BYTES", 1_000 if is_short else 3)
    with FakeJobsServer(token=TOKEN) as server:
        server.add_job("job-1", log="a\nhalf")
        deadline = datetime.now(timezone.utc) - timedelta(hours=1)
        waiting = Waiting(async_client(server), emits=True, deadline=deadline)
        assert (await waiting.over()).end is WaitEnd.TIMEOUT
    assert waiting.lines in ([["a", "half"]] if is_short else [[], ["a"]])


async def test_a_log_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiter_module, "LOG_END_WAIT_S", 0.05)
    jobs = talking(["SUCCEEDED"], "a")
    jobs.ends_tail = False
    waiting = Waiting(jobs, emits=True)
    assert (await waiting.over()).end is WaitEnd.ENDED
    assert any("did not end in time" in line for line in waiting.said)
    assert any("the last lines of the job's log may be missing" in line for line in waiting.said)


async def test_a_cancelled_wait_leaves_at_once_whatever_the_log_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A triggerer that shuts down, and a time-out in a worker, have seconds; the job and its log go on."""
    monkeypatch.setattr(waiter_module, "LOG_END_WAIT_S", 3600.0)
    jobs = talking(["RUNNING"], "a")
    jobs.ends_tail = False
    waiting = Waiting(jobs, emits=True)
    task = asyncio.create_task(waiting.over())
    await until(lambda: jobs.num_polls >= 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert jobs.is_closed
    assert jobs.stopped == []


def test_it_can_be_cancelled_from_another_thread_before_and_after_it_runs() -> None:
    """The time-out may come before the thread has begun: the wait must not go on for days behind it."""
    early = Waiting(FakeAsyncJobs(["RUNNING"]))
    early.waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(early.over())
    late = Waiting(FakeAsyncJobs(["SUCCEEDED"]))
    asyncio.run(late.over())
    late.waiter.cancel()


SILENCE = QUICK.model_copy(update={"alive_check_s": 0.001, "silent_driver_timeout_s": 0.05})


def old_sign_of_life(waiting: Waiting) -> None:
    waiting.store.put_raw(layout.alive(1, 1), alive().body())
    later = datetime.now(timezone.utc) + timedelta(seconds=2400)
    waiting.store._clock = lambda: later


async def test_a_running_job_whose_driver_is_silent_is_given_up() -> None:
    """G4: a frozen driver must not hold its nodes for ever; the bucket tells."""
    waiting = Waiting(FakeAsyncJobs(["RUNNING"]), limits=SILENCE)
    old_sign_of_life(waiting)
    assert (await waiting.over()).end is WaitEnd.SILENT_DRIVER


async def test_silence_is_counted_only_while_the_bucket_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """G5: when an outage of 40 minutes ends, the sign of life is as old as the outage, and the driver is well."""
    monkeypatch.setattr(waiter_module.random, "random", lambda: 0.0)
    limits = SILENCE.model_copy(update={"silent_driver_timeout_s": 600.0})
    waiting = Waiting(FakeAsyncJobs(["RUNNING"] * 60 + ["SUCCEEDED"]), limits=limits)
    old_sign_of_life(waiting)
    for number in range(1, 21):
        waiting.store.fail_call(number, StoreUnreachable("the store is away"))
    assert (await waiting.over()).end is WaitEnd.ENDED
    assert waiting.store.num_calls > 20, "the store came back and was read"
    assert [said for said in waiting.said if "sign of life" in said] == [
        "the driver's sign of life can't be read: the store is away"
    ], "once, not at each poll"


MINUTES = QUICK.model_copy(
    update={"silent_driver_timeout_s": 18_000.0, "pending_timeout_s": None, "unreachable_timeout_s": 10.0**8}
)


async def num_polls_of_a_silence(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many polls a steady silence takes; from now on the clock goes on by a minute each time that it is read."""
    now = iter(range(0, 10**9, 60))
    monkeypatch.setattr(waiter_module, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    steady = FakeAsyncJobs(["RUNNING"])
    assert (await Waiting(steady, limits=MINUTES).over()).end is WaitEnd.SILENT_DRIVER
    return steady.num_polls


async def test_a_silence_is_counted_anew_once_the_job_was_not_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray starts its driver again: two stretches, each shorter than the limit, are no silence."""
    num = await num_polls_of_a_silence(monkeypatch) * 2 // 3
    waiting = Waiting(FakeAsyncJobs([*["RUNNING"] * num, "PENDING", *["RUNNING"] * num, "SUCCEEDED"]), limits=MINUTES)
    assert (await waiting.over()).end is WaitEnd.ENDED


async def test_an_outage_of_the_cluster_is_no_silence_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """G5: it was cut off too, as far as anybody knows, and may be well when the outage ends."""
    num = await num_polls_of_a_silence(monkeypatch)
    short = ["RUNNING"] * (num // 3)
    waiting = Waiting(FakeAsyncJobs([*short, *[AWAY] * (3 * num), *short, "SUCCEEDED"]), limits=MINUTES)
    assert (await waiting.over()).end is WaitEnd.ENDED


@pytest.mark.parametrize("what", ["cluster", "bucket"])
async def test_a_frozen_driver_is_found_however_often_a_read_fails(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """G4: each failure takes itself away from the silence, not all of it."""
    num = await num_polls_of_a_silence(monkeypatch)
    answers = (["RUNNING"] * 9 + [AWAY] if what == "cluster" else ["RUNNING"] * 10) * num
    waiting = Waiting(FakeAsyncJobs([*answers, "SUCCEEDED"]), limits=MINUTES)
    if what == "bucket":
        for number in range(5, 10 * num, 5):
            waiting.store.fail_call(number, StoreUnreachable("the store is away"))
    assert (await waiting.over()).end is WaitEnd.SILENT_DRIVER


@pytest.mark.parametrize("chance", [0.0, 0.999])
async def test_a_driver_that_lives_is_asked_for_seldom(monkeypatch: pytest.MonkeyPatch, chance: float) -> None:
    """A thousand jobs polled each 30 s would else be a read of the bucket at every second poll."""
    monkeypatch.setattr(waiter_module.random, "random", lambda: chance)
    limits = QUICK.model_copy(update={"silent_driver_timeout_s": 1800.0})
    waiting = Waiting(FakeAsyncJobs(["RUNNING"] * 100 + ["SUCCEEDED"]), limits=limits)
    waiting.store.put_raw(layout.alive(1, 1), alive().body())
    assert (await waiting.over()).end is WaitEnd.ENDED
    assert waiting.store.num_calls == (1 if chance == 0.0 else 0)


async def test_a_driver_that_never_gave_a_sign_of_life_is_silent_too() -> None:
    """Frozen before its first word: Ray calls the job RUNNING all the same."""
    limits = QUICK.model_copy(update={"alive_check_s": 0.001, "silent_driver_timeout_s": 0.05})
    assert (await Waiting(FakeAsyncJobs(["RUNNING"]), limits=limits).over()).end is WaitEnd.SILENT_DRIVER


async def test_hundreds_of_logs_leave_the_loop_to_others_after_a_few_lines() -> None:
    """A triggerer that begins anew shows the logs of all its jobs at once: polls came a minute late meanwhile."""
    num_shown, at_once = 0, []

    def emit(_: str) -> None:
        nonlocal num_shown
        num_shown += 1

    async def show(waiter: JobWaiter) -> None:
        for _ in range(5):
            await waiter._show(LogChunk(("a line",), 0))

    async def look() -> None:
        while num_shown < 500:
            before = num_shown
            await asyncio.sleep(0)
            at_once.append(num_shown - before)

    waiters = [Waiting(FakeAsyncJobs(["RUNNING"]), emits=True).waiter for _ in range(100)]
    for waiter in waiters:
        waiter._emit = emit
    await asyncio.gather(look(), *map(show, waiters))
    assert num_shown == 500
    assert 0 < max(at_once) <= 16
