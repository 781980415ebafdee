"""What must hold in each round is judged by the worst one: a median would hide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from benchmarks import logs, triggerer
from benchmarks.measure import MeasurementFailed, Sample
from benchmarks.options import Options
from benchmarks.report import printed
from benchmarks.triggerer_sides import FULL, PEER, Side

FINE = {"fetched": 1.0, "missing": 0.0, "repeated": 0.0, "grown_mib": 10.0, "longest_gap_s": 30.0}
IDLE = {"cpu_pct": 5.0, "block_ms": 20.0, "end_block_ms": 30.0, "grown_mib": 90.0, "resumed": 100.0}


def rounds(usual: Mapping[str, float], **third: float) -> Sequence[Mapping[str, float]]:
    return [usual, usual, {**usual, **third}]


def test_one_round_with_a_lost_or_repeated_line_misses_the_goal_of_the_logs() -> None:
    sides = ("cut", "uncut", "short", "tails", "no_tails")
    good = {side: rounds(FINE) for side in sides}
    assert all(goal.is_met for goal in logs.goals(good, 30.0))
    for side in ("cut", "uncut", "short"):
        for name in ("missing", "repeated"):
            missed = [
                goal.text for goal in logs.goals({**good, side: rounds(FINE, **{name: 1.0})}, 30.0) if not goal.is_met
            ]
            assert missed == [f"lines {name} in any round"]


def test_one_round_with_a_block_or_a_task_that_did_not_resume_misses_the_goal_of_the_triggerer() -> None:
    def missed(**third: float) -> list[str]:
        samples = {(FULL.name, 100): rounds(IDLE, **third)}
        return [goal.text for goal in triggerer.goals(samples, 100, 30.0) if not goal.is_met]

    assert missed() == []
    assert len(missed(block_ms=101.0)) == len(missed(end_block_ms=101.0)) == 1
    assert len(missed(resumed=99.0)) == 1
    assert len(missed(grown_mib=200.0)) == 1


@pytest.mark.parametrize("peer_runs", [True, False])
def test_the_reports_are_made_with_a_peer_and_without_it(monkeypatch: pytest.MonkeyPatch, peer_runs: bool) -> None:
    """A quarter of an hour of measuring must not end in a report that can't be made."""

    def one(side: Side, size: int, **__: object) -> Sample:
        if side is PEER and not peer_runs:
            raise MeasurementFailed("cannot be installed")
        return {**FINE, **IDLE, "requests_per_s": 3.0, "log_mb": size, "cpu_s": size}

    monkeypatch.setattr(triggerer, "measure", one)
    monkeypatch.setattr(logs, "one_log", one)
    monkeypatch.setattr(logs, "many_logs", one)
    for module in (triggerer, logs):
        report = module.run(Options(quick=True, num_repeats=2))
        assert ("cannot be installed" in printed(report)) is not peer_runs
        assert report.plots
