"""The bound: hand-made plans, and that each second in it is needed."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fault_plan import DRIVER, TARGETS, WORKER, Fault, planned
from benchmarks.goodput_bound import Costs, bound

COSTS = Costs(first_start_s=10.0, cadence_s=0.5, restart_s={WORKER: 6.0, DRIVER: 12.0})


def test_without_a_fault_only_the_start_is_lost() -> None:
    found = bound([], steps=100, every=10, costs=COSTS)
    assert (found.wall_s, found.num_faults, found.num_repeated) == (60.0, 0, 0)
    assert found.productive_s == 50.0


def test_a_fault_costs_a_restart_and_the_steps_since_the_last_commit() -> None:
    found = bound([Fault(27, DRIVER)], steps=100, every=10, costs=COSTS)
    assert (found.num_faults, found.num_repeated) == (1, 7)
    assert found.wall_s == 10 + 100 * 0.5 + 12 + 7 * 0.5


def test_faults_are_counted_in_steps_taken_not_in_steps_won() -> None:
    """The first throws back from 27 to 20, so the second, 8 steps later, strikes at 28 and costs 8 steps more."""
    found = bound([Fault(27, WORKER), Fault(35, DRIVER)], steps=100, every=10, costs=COSTS)
    assert (found.num_faults, found.num_repeated) == (2, 15)
    assert found.wall_s == 10 + 50 + 6 + 12 + 15 * 0.5


def test_a_checkpoint_is_safe_only_once_ray_has_taken_it() -> None:
    """The one at 20 is not when the fault comes one step later; the one at 10, from which the first restart went on, stays."""
    slow = replace(COSTS, commit_lag_s=1.0)
    faults = [Fault(21, WORKER), Fault(22, WORKER), Fault(35, DRIVER)]
    found = bound(faults, steps=100, every=10, costs=slow)
    assert found.num_repeated == 11 + 1 + 3
    assert found.wall_s == 10 + 50 + 6 + 6 + 12 + 15 * 0.5


def test_what_strikes_after_the_end_strikes_nobody() -> None:
    assert bound([Fault(100, DRIVER)], steps=100, every=10, costs=COSTS).num_faults == 0
    assert bound([Fault(99, DRIVER)], steps=100, every=10, costs=COSTS).num_faults == 1


@given(
    seed=st.integers(0, 1000),
    steps=st.integers(1, 300),
    every=st.integers(1, 20),
    mtbf_s=st.floats(15, 300),
    slower_s=st.floats(0, 30),
)
def test_no_restart_is_free_and_the_work_is_a_part(
    seed: int, steps: int, every: int, mtbf_s: float, slower_s: float
) -> None:
    """An endless plan ends with the training; slower restarts never make it end earlier."""
    slower = Costs(10.0, 0.5, {target: COSTS.restart_s[target] + slower_s for target in TARGETS})
    one = bound(islice(planned(seed=seed, mtbf_s=mtbf_s, step_s=0.5), 5_000), steps=steps, every=every, costs=COSTS)
    other = bound(islice(planned(seed=seed, mtbf_s=mtbf_s, step_s=0.5), 5_000), steps=steps, every=every, costs=slower)
    assert 0 < one.productive_s == other.productive_s < one.wall_s
    assert other.wall_s == pytest.approx(one.wall_s + one.num_faults * slower_s)
    assert one.num_repeated <= one.num_faults * (every - 1)
