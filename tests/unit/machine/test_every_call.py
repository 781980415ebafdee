"""Whole courses of a training, each repeated with one fault at one of its calls: what the machine's stories leave to chance.

Some of the calls are tried. `MACHINE_TIMES=1` in the environment tries every one, which takes minutes.
"""

from __future__ import annotations

import os

import pytest

from tests.unit.machine import stages
from tests.unit.machine.airflow import OVER, RETRIES
from tests.unit.machine.ending import turn_of_airflow, turn_of_drivers
from tests.unit.machine.processes import DIE_AFTER, FAIL, LOSE
from tests.unit.machine.sweep import DIE, Course, tried
from tests.unit.machine.world import World

IS_WHOLE = bool(os.environ.get("MACHINE_TIMES"))
MOST_CALLS = 500


def nothing_else(_: World) -> None:
    """Only the quiet course of things."""


def cleared(world: World) -> None:
    world.airflow.clear_task(is_visible=True, is_killed=False)


def cleared_if_failed(world: World) -> None:
    """Airflow has no try left; a person clears the task where it failed."""
    for _ in range(30):
        turn_of_drivers(world, trains=True)
        if world.airflow.state in OVER:
            break
        turn_of_airflow(world)
    if world.airflow.state == "failed":
        cleared(world)


COURSES: dict[str, tuple[Course, Course, int, int]] = {
    "from submit to result": (stages.nothing_yet, nothing_else, RETRIES, 40),
    "restored after its driver died": (stages.dead_driver, nothing_else, RETRIES, 40),
    "trained anew after a clear": (stages.finished, cleared, RETRIES, 40),
    "stopped by a clear, and restored": (stages.training, cleared, RETRIES, 40),
    "cleared where the last try failed": (stages.training, cleared_if_failed, 0, 6),
}
"""Where the calls begin to count, what comes then, Airflow's retries, and how far apart the tried calls are."""


@pytest.mark.timeout(3_600 if IS_WHOLE else 120)
@pytest.mark.parametrize("how", [FAIL, LOSE, DIE_AFTER, DIE])
@pytest.mark.parametrize("name", COURSES)
def test_no_fault_at_any_call_breaks_a_guarantee(name: str, how: str) -> None:
    course, after, retries, apart = COURSES[name]
    # Other calls for each fault.
    first = 0 if IS_WHOLE else [FAIL, LOSE, DIE_AFTER, DIE].index(how) * apart // 4
    num_tried, call = 0, None
    for at in range(first, MOST_CALLS, 1 if IS_WHOLE else apart):
        call, broken = tried(course, after, how=how, at=at, retries=retries, deferrable=at % 2 == 0, lags=at % 3 == 0)
        if call is None:
            break
        assert not broken, f"{name}, {how} at call {at} ({call}): {broken[0]}"
        num_tried += 1
    assert num_tried >= 2
    assert call is None, "the course makes no end"
