"""The process that stands in for a triggerer: when it begins to measure, what it counts, and whose CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import triggerer_process as process
from benchmarks.triggerer_process import Event, Plan, Usage, asked_in_window, each_second, resumes
from benchmarks.triggerer_sides import connections

PLAN = Plan(url="", classpath="", kwargs={}, num_jobs=3, window_s=30.0, settle_s=60.0, limit_s=20.0)


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(process.time, "monotonic", lambda: self.now)


class FakeSupervisor:
    """A turn takes a tenth of a second."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self.plan, self.clock = plan, clock

    def add(self) -> None:
        """Takes a second."""
        self.clock.now += 1.0

    def until(self, is_done: Callable[[], bool], limit_s: float) -> bool:
        end = self.clock.now + limit_s
        while self.clock.now < end:
            self.clock.now += 0.1
            if is_done():
                return True
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def begun(monkeypatch: pytest.MonkeyPatch, clock: Clock, plan: Plan, polled: Callable[[], int]) -> dict[str, float]:
    monkeypatch.setattr(process, "counts", lambda _: {"jobs_asked": polled()})
    supervisor: Any = FakeSupervisor(plan, clock)
    return process.all_begun(supervisor)


@pytest.mark.parametrize("conn_id", ["ray_ours", "bucket"])
def test_each_connection_of_a_trigger_is_answered(conn_id: str) -> None:
    """One that Airflow refused made all reads of the bucket fail, unseen, and the triggerer look cheap."""
    known = connections("http://127.0.0.1:1")
    asked: Any = SimpleNamespace(plan=replace(PLAN, connections=known), num_connections_read=0)
    found = process.Supervisor._connection(asked, conn_id)
    assert (found.conn_type, found.host) == (known[conn_id]["conn_type"], known[conn_id].get("host"))


def test_a_window_begins_once_the_start_is_over(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Counted from where the triggers were added: how long the first polls took must not shift what is measured."""
    found = begun(monkeypatch, clock, PLAN, lambda: 3)
    assert clock.now == pytest.approx(1060.0, abs=0.2)
    assert found["start_s"] == pytest.approx(1.1)
    assert found["all_polled"] == 1.0


def test_a_window_does_not_begin_while_some_were_never_polled(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    with pytest.raises(SystemExit, match="only 2 of 3 jobs were polled within 20 s"):
        begun(monkeypatch, clock, PLAN, lambda: 2)
    no_window = Plan(url="", classpath="", kwargs={}, num_jobs=3, limit_s=20.0)
    assert begun(monkeypatch, clock, no_window, lambda: 2)["all_polled"] == 0.0


def test_the_stand_in_is_asked_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """A question on each turn would be CPU of the supervisor's, which is measured."""
    asked: list[float] = []

    def polled() -> int:
        asked.append(clock.now)
        return 3 if len(asked) == 5 else 0

    begun(monkeypatch, clock, PLAN, polled)
    assert len(asked) == 5
    assert min(b - a for a, b in pairwise(asked)) >= 1.0
    assert each_second(lambda: True)(), "the first look waits for nothing"


def test_a_task_resumes_by_an_event_that_tells_the_end() -> None:
    when = dict.fromkeys(range(1, 6), 100.0)
    events = {
        1: Event(101.0, {"end": "ended", "reason": "SUCCEEDED"}),
        2: Event(103.0, {"id": "job-00002"}),
        3: Event(102.0, {"status": "SUCCEEDED", "job_id": "job-00003"}),
        4: Event(99.0, {"end": "ended"}),
        5: Event(104.0, {"end": "silent_driver"}),
    }
    assert resumes(events, when) == {
        "resume_s": 2.0,
        "resume_worst_s": 3.0,
        "resumed": 3,
        "early": 2,
        "first_early": "{'end': 'ended'}",
    }
    assert resumes({1: Event(101.0, "a text")}, when)["resumed"] == 1
    assert resumes({}, when) == {"resumed": 0, "early": 0}


def test_what_two_processes_use_is_added_up() -> None:
    one, both = Usage.of(os.getpid()), Usage.of(os.getpid(), os.getppid())
    assert both.rss_mib > one.rss_mib
    assert both.peak_mib > one.peak_mib
    twice = Usage.of(os.getpid(), os.getpid())
    assert twice.cpu_s == pytest.approx(2 * one.cpu_s, abs=0.5)


def test_a_trigger_that_asks_once_has_no_pauses() -> None:
    once = {"status": 3, "num_gaps": 0, "gaps_ms": 0, "longest_gap_ms": 8000}
    assert asked_in_window(once, 6.0) == {"requests_per_s": 0.5, "bucket_per_s": 0.0, "log_bytes_per_s": 0.0}
    often = asked_in_window({**once, "num_gaps": 4, "gaps_ms": 10_000, "log_bytes": 12}, 6.0)
    assert (often["mean_gap_s"], often["longest_gap_s"], often["log_bytes_per_s"]) == (2.5, 8.0, 2.0)
    assert often["num_gaps"] == 4
