"""What the goodput benchmark says of made-up lives, good and bad."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from benchmarks.fault_plan import DRIVER, WORKER
from benchmarks.faulty_life import Life, Struck
from benchmarks.goodput_bound import Bound, Costs
from benchmarks.goodput_report import Outcome, Setting, report
from benchmarks.machine import Machine
from benchmarks.step_marks import expected_number
from tests.chaos.verdict import Verdict

COSTS = Costs(10.0, 0.25, {WORKER: 8.0, DRIVER: 12.0})
BOUNDS = {(0.5, 3): Bound(97.0, 60.0, 2, 5)}
SETTING = Setting(cast("Machine", {}), {0.5: 240}, {0.5: 1}, is_quick=True)


def life(wall_s: float, *, is_finished: bool = True) -> Life:
    return Life(100.0, [Struck(WORKER, 130.0), Struck(DRIVER, 150.0)], (), is_finished, 100.0 + wall_s)


OURS = Outcome("ours", 0.5, 3, life(100.0), 6, is_right=True, verdict=Verdict(), airflow_s=2.0)
PEER = Outcome("peer", 0.5, 3, life(420.0, is_finished=False), 300, is_right=False)


def met(*outcomes: Outcome) -> list[bool]:
    return [goal.is_met for goal in report(outcomes, BOUNDS, COSTS, SETTING).goals]


def test_the_goals_are_read_off_ours_alone() -> None:
    assert met(OURS, PEER) == [True] * 5
    assert met(replace(OURS, life=life(101.0)), PEER) == [False, True, True, True, True]
    assert met(replace(OURS, life=life(103.0)), PEER) == [False, False, True, True, True]


def test_a_training_of_ours_that_ends_wrong_or_never_meets_no_goal_of_goodput() -> None:
    for bad in (replace(OURS, is_right=False), replace(OURS, life=life(50.0, is_finished=False))):
        assert met(bad)[:2] == [False, False]


def test_what_the_judge_found_is_counted() -> None:
    found = Verdict(lost=["a"], double=["b", "c"], other=["d"])
    assert met(replace(OURS, verdict=found)) == [True, True, False, False, False]
    assert (
        "Found by the judge of the chaos runs: d"
        in report([replace(OURS, verdict=found)], BOUNDS, COSTS, SETTING).notes
    )


def test_rows_tell_who_never_finished() -> None:
    rows = report([OURS, PEER], BOUNDS, COSTS, SETTING).rows
    assert [row["faults"] for row in rows] == ["1 + 1", "1 + 1"]
    assert rows[1]["wall"] == "not finished after 420 s"
    assert "goodput" not in rows[1]


def test_the_expected_number_is_the_trainings() -> None:
    """`stepping.py` can't be imported without Ray, and its formula stands here a second time."""
    assert [expected_number(steps) for steps in (0, 1, 2)] == ["0", "1", str(6364136223846793005 + 2)]


def test_what_no_judge_saw_is_not_met() -> None:
    """Nothing found by nobody would look like nothing wrong."""
    assert met(replace(OURS, verdict=None))[2:] == [False] * 3
    assert met(PEER) == [False] * 5


def test_a_training_of_any_side_that_ends_with_a_wrong_number_is_named() -> None:
    wrong = replace(PEER, life=life(300.0))
    notes = report([OURS, wrong], BOUNDS, COSTS, SETTING).notes
    assert [note for note in notes if "another number" in note] == [
        (
            "Came to its last step with another number than an unharmed training: Ray's client in a Python task, retried, "
            "a fault every 0.5 minutes, seed 3."
        )
    ]
    assert not [note for note in report([OURS, PEER], BOUNDS, COSTS, SETTING).notes if "another number" in note]


def test_the_bound_is_called_an_estimate_and_says_how_near_ray_alone_came() -> None:
    plain = replace(OURS, side="plain", life=life(95.0), verdict=None)
    [note] = [note for note in report([OURS, plain], BOUNDS, COSTS, SETTING).notes if note.startswith("bound =")]
    assert note.endswith("an estimate and no limit: Ray alone lands at 102 to 102 % of it.")


def test_rates_with_other_lengths_and_other_rounds_say_so() -> None:
    setting = replace(SETTING, steps={0.5: 240, 5.0: 720}, rounds={0.5: 2, 5.0: 3})
    bounds = {**BOUNDS, (5.0, 1): Bound(200.0, 180.0, 1, 5)}
    found = report([OURS, replace(OURS, mtbf=5.0, seed=1, life=life(205.0))], bounds, COSTS, setting)
    assert found.title.startswith("240 or 720 steps")
    assert [row["steps"] for row in found.rows] == [240, 720]
    assert found.rounds == 2
    assert "Complete rounds at a fault every 0.5 minutes: 2." in found.notes
