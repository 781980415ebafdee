"""A training under a plan of faults, played by a training that is only a file and processes that are only numbers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import faulty_life
from benchmarks.fault_plan import DRIVER, WORKER, Fault
from benchmarks.faulty_life import Life, Plan, Struck, costs_of, live_through
from benchmarks.measure import MeasurementFailed
from benchmarks.step_marks import Mark, MarkFile


class Play:
    """Tells one more step at each look, until it is struck; then a new process goes on from the last multiple of `every`."""

    def __init__(self, path: Path, *, every: int = 5) -> None:
        self.file, self.every = MarkFile(path), every
        self.pid, self.step, self.looks_to_start = 100, 0, 3

    def tell(self) -> None:
        if self.looks_to_start:
            self.looks_to_start -= 1
            return
        line = {"at": time.time(), "what": "step", "step": self.step, "pid": self.pid}
        with self.file.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.step += 1

    def strike(self, targets: Any) -> float:
        (self.pid, self.step, self.looks_to_start) = (self.pid + 1, self.step - self.step % self.every, 3)
        return time.time()


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    play = Play(tmp_path / "marks")
    monkeypatch.setattr(faulty_life, "strike", play.strike)
    monkeypatch.setattr(faulty_life.time, "sleep", lambda _: play.tell())
    return play


def lived(play: Play, *faults: Fault, steps: int = 20, limit_s: float = 30.0) -> tuple[Life, list[Struck]]:
    told: list[Struck] = []
    plan = Plan(play.file, iter([*faults, Fault(10**9, WORKER)]), steps, lambda _: [], told.append, limit_s)
    return live_through(Life(time.time()), plan), told


def test_each_fault_strikes_once_at_its_step_and_is_told(play: Play) -> None:
    life, told = lived(play, Fault(7, WORKER), Fault(12, DRIVER))
    assert life.is_finished
    assert [struck.target for struck in life.struck] == [WORKER, DRIVER]
    assert told == life.struck
    steps = [(m.pid, m.step) for m in life.marks]
    assert steps[:9] == [*((100, n) for n in range(7)), (101, 5), (101, 6)]
    assert [pid for pid, _ in steps].count(101) == 5, "the second struck when 12 steps were taken in all"
    assert life.ended_at == life.marks[-1].at


def test_who_has_just_been_struck_is_not_struck_again(play: Play) -> None:
    """A fault that is due while nobody trains waits for the next one's first step."""
    life, _ = lived(play, Fault(7, WORKER), Fault(8, WORKER))
    per_process = [sum(m.pid == pid for m in life.marks) for pid in (100, 101)]
    assert per_process == [7, 1]


def test_a_training_that_never_ends_is_given_up(play: Play) -> None:
    life, _ = lived(play, steps=10**6, limit_s=0.05)
    assert not life.is_finished
    assert life.wall_s >= 0.05


def test_costs_are_read_from_plain_lives() -> None:
    def life(begin: float, *, driver_s: float) -> Life:
        told = [("restored", 8.0), ("step", 9.0), ("step", 10.0), ("restored", 14.0), ("step", 15.0)]
        told += [("restored", 20.0 + driver_s), ("step", 21.0 + driver_s), ("step", 22.0 + driver_s)]
        pids = [1, 1, 1, 2, 2, 3, 3, 3]
        marks = [Mark(begin + at, what, n, pid) for n, ((what, at), pid) in enumerate(zip(told, pids, strict=True))]
        return Life(begin, [Struck(WORKER, begin + 10), Struck(DRIVER, begin + 20)], marks, is_finished=True)

    costs = costs_of([life(100.0, driver_s=12.0), life(500.0, driver_s=14.0)])
    assert (costs.first_start_s, costs.cadence_s) == (8.0, 1.0)
    assert costs.restart_s == {WORKER: 4.0, DRIVER: 13.0}


def test_the_lag_of_a_commit_is_from_its_report_to_the_manifest() -> None:
    """A report that is followed by another one before any manifest was lost, and tells nothing."""
    marks = [Mark(108.0, "restored"), Mark(109.0, "step", 0, 1), Mark(110.0, "step", 1, 1)]
    marks += [Mark(at, "reporting") for at in (110.0, 120.0, 130.0)]
    life = Life(100.0, [], marks, is_finished=True, ended_at=140.0, commits=(99.0, 111.5, 130.5, 135.0))
    assert costs_of([life]).commit_lag_s == (1.5 + 0.5) / 2


def test_a_fault_that_never_fell_costs_a_start_and_no_life_costs_nothing_known() -> None:
    marks = [Mark(108.0, "restored"), Mark(109.0, "step", 0, 1), Mark(110.0, "step", 1, 1)]
    costs = costs_of([Life(100.0, [], marks)])
    assert costs.restart_s == {WORKER: 8.0, DRIVER: 8.0}
    with pytest.raises(MeasurementFailed, match="no plain training began"):
        costs_of([])
