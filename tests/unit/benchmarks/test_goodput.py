"""The goodput benchmark without a cluster: which trainings are lived, how long, and what is taken off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import goodput
from benchmarks.fault_plan import DRIVER, WORKER
from benchmarks.faulty_life import Life, Struck
from benchmarks.goodput_bound import Costs
from benchmarks.goodput_report import Outcome
from benchmarks.measure import MeasurementFailed
from benchmarks.options import Options
from benchmarks.recovery_cuts import cuts_of_new_attempt
from tests.chaos.verdict import Verdict

COSTS = Costs(10.0, 0.25, {WORKER: 8.0, DRIVER: 12.0})


class Lived:
    """Trainings that take no time, and what was made of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sides: list[goodput.Side] = []
        self.plain: Sequence[Life] = ()
        self.fails: tuple[str, float, int] | None = None

        @contextmanager
        def no_cluster(**_: object) -> Iterator[None]:
            yield

        def costs_of(lives: Sequence[Life]) -> Costs:
            self.plain = lives
            return COSTS

        monkeypatch.setattr(goodput, "training_cluster", no_cluster)
        monkeypatch.setattr(goodput, "costs_of", costs_of)
        for side in (goodput.Ours, goodput.Plain, goodput.Peer):
            monkeypatch.setattr(side, "_lived", self.lived)

    @property
    def lived(self) -> Any:
        def one(side: goodput.Side, seed: int) -> Outcome:
            if side not in self.sides:
                self.sides.append(side)
            if (side.name, side.mtbf, len(side.outcomes)) == self.fails:
                raise MeasurementFailed("the cluster is gone")
            life = Life(0.0, is_finished=True, ended_at=500.0)
            verdict = Verdict() if side.name == "ours" else None
            return Outcome(side.name, side.mtbf, seed, life, 0, is_right=True, verdict=verdict)

        return one


def test_each_plain_life_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that is measured first must not weigh three times in the medians of the bound."""
    lived = Lived(monkeypatch)
    found = goodput.run(Options(num_repeats=2))
    assert len(lived.plain) == len({id(life) for life in lived.plain}) == 2 * len(goodput.STEPS)
    assert found.rounds == 2


def test_a_round_that_one_side_did_not_end_is_left_out_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second round the sides come in reverse, so the peer and Ray alone have been measured when ours fails."""
    lived = Lived(monkeypatch)
    lived.fails = ("ours", 1.0, 1)
    found = goodput.run(Options(num_repeats=2))
    assert len(lived.plain) == 2 + 1 + 2
    assert found.rounds == 1
    assert len(found.extra["goodput_by_our_records"]) == 2 + 1 + 2
    assert "Complete rounds at a fault every 1 minutes: 1." in found.notes


def test_a_rarer_fault_has_a_longer_training_and_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lived = Lived(monkeypatch)
    goodput.run(Options(num_repeats=1))
    assert {(side.mtbf, side.steps, side.limit_s) for side in lived.sides} == {
        (0.5, 240, 420.0),
        (1.0, 240, 420.0),
        (5.0, 720, 1260.0),
    }
    lived.sides.clear()
    goodput.run(Options(quick=True))
    assert {(side.mtbf, side.steps, side.limit_s) for side in lived.sides} == {(0.5, 70, 420.0)}


@pytest.mark.parametrize("try_number", [1, 3])
def test_nothing_is_taken_off_where_the_tries_are_not_those_of_the_faults(try_number: int) -> None:
    """The logs would be those of other moments."""

    def log(number: int) -> list[Any]:
        raise AssertionError(f"the log of try {number} was read")

    task = {"try_number": try_number}
    training: Any = SimpleNamespace(run=SimpleNamespace(task=lambda: task), log=log)
    life = Life(0.0, [Struck(WORKER, 5.0), Struck(DRIVER, 10.0)])
    assert goodput.airflow_s(training, life, cuts_of_new_attempt) == 0.0
    task["try_number"] = 2
    with pytest.raises(AssertionError, match="try 1"):
        goodput.airflow_s(training, life, cuts_of_new_attempt)
