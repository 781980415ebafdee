"""What must hold in each round is judged by the worst one: a median would hide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from benchmarks import logs, triggerer
from benchmarks.log_text import CHARS_OF_A_LINE
from benchmarks.measure import MeasurementFailed, Sample
from benchmarks.options import Options
from benchmarks.report import printed
from benchmarks.triggerer_sides import FULL, PEER, QUIET, Side

if TYPE_CHECKING:
    from typing_extensions import Self

FINE = {
    "fetched": 1.0,
    "connections": 1.0,
    "missing": 0.0,
    "repeated": 0.0,
    "grown_mib": 10.0,
    "mean_gap_s": 30.0,
    "longest_gap_s": 30.0,
    "resumed": 300.0,
}
IDLE = {
    "cpu_pct": 5.0,
    "idle_cpu_pct": 1.0,
    "block_ms": 20.0,
    "start_block_ms": 90.0,
    "end_block_ms": 30.0,
    "grown_mib": 90.0,
    "rss_mib": 400.0,
    "resumed": 100.0,
}


def rounds(usual: Mapping[str, float], **third: float) -> Sequence[Mapping[str, float]]:
    return [usual, usual, {**usual, **third}]


def test_one_round_with_a_lost_or_repeated_line_misses_the_goal_of_the_logs() -> None:
    sides = ("cut", "uncut", "short", "shortest", "tails", "no_tails")
    good = {side: rounds(FINE) for side in sides}
    assert all(goal.is_met for goal in logs.goals(good, 30.0, 300))
    for side in ("cut", "uncut", "short", "shortest"):
        for name in ("missing", "repeated"):
            missed = [
                goal.text
                for goal in logs.goals({**good, side: rounds(FINE, **{name: 1.0})}, 30.0, 300)
                if not goal.is_met
            ]
            assert missed == [f"lines {name} in any round"]


@pytest.mark.parametrize(
    ("side", "third", "missed"),
    [
        ("cut", {"fetched": 2.52}, ["the same, by where it was cut: each replay ends there"]),
        ("cut", {"connections": 5.0}, ["connections with three cuts"]),
        ("cut", {"grown_mib": 20.1}, ["memory of the whole log over that of a tenth of it, at worst"]),
        ("tails", {"mean_gap_s": 30.7}, ["many tails: the mean pause between two polls grows by, at worst"]),
        ("tails", {"longest_gap_s": 33.1}, ["many tails: the longest pause between two polls grows by, at worst"]),
        ("tails", {"resumed": 299.0}, ["many tails: tasks resumed in each round"]),
    ],
)
def test_one_bad_round_misses_its_goal_of_the_logs(side: str, third: dict[str, float], missed: list[str]) -> None:
    good = {name: rounds(FINE) for name in ("cut", "uncut", "short", "shortest", "tails", "no_tails")}
    found = logs.goals({**good, side: rounds(FINE, **third)}, 30.0, 300)
    assert [goal.text for goal in found if not goal.is_met] == missed


class FakeStandIn:
    """Counts what it is told to have counted."""

    url = ""
    shown: Mapping[str, int] = {}

    def __init__(self, _: object) -> None:
        """As the real one is made."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def counts(self) -> Mapping[str, int]:
        return self.shown


def test_a_log_that_was_not_cut_as_often_as_planned_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look cheap."""
    monkeypatch.setattr(logs, "RunningStandIn", FakeStandIn)
    monkeypatch.setattr(logs, "in_triggerer", lambda *_, **__: {"grown_mib": 1.0})
    counted = {"log_bytes_ever": 1000, "tails_ever": 3, "cuts_ever": 2}
    monkeypatch.setattr(FakeStandIn, "shown", counted)
    with pytest.raises(MeasurementFailed, match="2 connections were cut where 3 were to be"):
        logs.one_log(FULL, 10, cuts=logs.CUTS)
    assert logs.one_log(PEER, 10, cuts=logs.CUTS)["connections"] == 3
    monkeypatch.setattr(FakeStandIn, "shown", {**counted, "cuts_ever": 3})
    assert logs.one_log(FULL, 10, cuts=logs.CUTS)["missing"] == 10


def test_many_tails_that_nothing_came_through_are_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"mean_gap_s": 30.0, "num_gaps": 600, "log_bytes_per_s": 0.0}
    monkeypatch.setattr(logs, "RunningStandIn", FakeStandIn)
    monkeypatch.setattr(logs, "in_triggerer", lambda *_, **__: found)
    with pytest.raises(MeasurementFailed, match="0 bytes of log a second came"):
        logs.many_logs(FULL, 300, poll_s=30.0)
    assert logs.many_logs(QUIET, 300, poll_s=30.0) == found, "it streams none"
    found["log_bytes_per_s"] = 300.0 * CHARS_OF_A_LINE
    assert logs.many_logs(FULL, 300, poll_s=30.0) == found
    found["num_gaps"] = 599
    with pytest.raises(MeasurementFailed, match="599 of 600 pauses ended"):
        logs.many_logs(QUIET, 300, poll_s=30.0)
    del found["num_gaps"]
    with pytest.raises(MeasurementFailed, match="0 of 600 pauses ended"):
        logs.many_logs(QUIET, 300, poll_s=30.0)


def test_one_round_with_a_block_or_a_task_that_did_not_resume_misses_the_goal_of_the_triggerer() -> None:
    def missed(**third: float) -> list[str]:
        samples = {(FULL.name, 100): rounds(IDLE, **third)}
        return [goal.text for goal in triggerer.goals(samples, 100, 30.0) if not goal.is_met]

    assert missed() == []
    assert len(missed(block_ms=101.0)) == len(missed(end_block_ms=101.0)) == 1
    assert missed(start_block_ms=101.0) == ["100 jobs, 30 s poll: worst block of the event loop at the start"]
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


def test_the_memory_in_all_stands_beside_what_the_jobs_add() -> None:
    [memory] = [
        goal for goal in triggerer.goals({(FULL.name, 100): rounds(IDLE)}, 100, 30.0) if "peak memory" in goal.text
    ]
    assert memory.measured == "94.4 MB, 419 MB in all"
    assert memory.is_met


def test_the_growth_of_the_cpu_is_that_of_the_jobs() -> None:
    """An idle triggerer's CPU is there at each size, and would make any growth look smaller."""
    cpu = {10: 1.1, 100: 2.0, 1000: 11.0}
    samples = {(FULL.name, size): [{**IDLE, "cpu_pct": pct, "idle_cpu_pct": 1.0}] for size, pct in cpu.items()}
    assert "CPU over an idle triggerer's to the power of 1.00" in triggerer._growth(samples, list(cpu))
    samples[FULL.name, 10] = [{**IDLE, "cpu_pct": 0.5, "idle_cpu_pct": 1.0}]
    assert "to the power of" in triggerer._growth(samples, list(cpu)), "no logarithm of what is below zero"


def test_an_event_that_did_not_tell_the_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(side: Side, *_: object, **__: object) -> Mapping[str, object]:
        early = {"early": 1, "first_early": "{'end': 'lost'}"} if side is FULL else {"early": 0}
        return {**IDLE, "requests_per_s": 3.0, **early}

    monkeypatch.setattr(triggerer, "measure", one)
    report = triggerer.run(Options(quick=True, num_repeats=1))
    told = [note for note in report.notes if "did not tell the job's end" in note]
    assert len(told) == 2, "of ours, at both sizes"
    assert "the first: {'end': 'lost'}" in told[0]
    assert report.as_json()["extra"]["samples"]["ours/5"] == [dict(one(FULL))]
