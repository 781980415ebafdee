"""The machine on the product, which must pass, and on seeded mistakes, which it must find.

`MACHINE_TIMES=10` in the environment tries ten times as many stories, from other seeds each time.
"""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.unit.machine.airflow import RETRIES
from tests.unit.machine.drivers import DriverProcess
from tests.unit.machine.machine import TrainingMachine
from tests.unit.machine.mistakes import MISTAKES, Mistake
from tests.unit.machine.world import World

TIMES = int(os.environ.get("MACHINE_TIMES", "0"))
STORIES, STEPS = 100, 30
FOR_A_MISTAKE = 200


def stories(number: int, **changes: object) -> settings:
    """The same stories in each run, unless more are asked for."""
    return settings(
        max_examples=number * max(1, TIMES),
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=not TIMES,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.timeout(3_600 if TIMES else 120)
def test_no_story_breaks_a_guarantee() -> None:
    run_state_machine_as_test(TrainingMachine, settings=stories(STORIES))


def test_a_story_stops_short_of_the_open_finding() -> None:
    """Two runs of one attempt that both looked before either wrote: the second dies there, so that it hides nothing else."""
    world = World(deferrable=True, lags=False)
    try:
        world.airflow.start_try(1, RETRIES, 0)
        world.go(world.processes[0])
        (first,) = world.drivers
        twin = DriverProcess(world, first.spec, 2, lags=False)
        world.drivers.append(twin)
        for point in ("alive", "manifest"):
            for driver in (first, twin):
                if driver.status == "PENDING":
                    world.place(driver)
                world.go(driver.main, point)
        world.go(first.main, "train")
        world.go(twin.main, "train")
        assert (first.is_over, twin.is_over) == (False, True)
        assert world.truth.violations == []
    finally:
        world.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_each_seeded_mistake_is_found(mistake: Mistake) -> None:
    """A machine that finds nothing anywhere would pass on any code."""

    class Mistaken(TrainingMachine):
        pass

    Mistaken.mistake, Mistaken.stages, Mistaken.kinds = staticmethod(mistake.seed), [mistake.stage], mistake.kinds
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(Mistaken, settings=stories(FOR_A_MISTAKE, phases=[Phase.generate]))
    assert re.match(mistake.finds, str(caught.value)), caught.value


def test_each_guarantee_has_a_seeded_mistake() -> None:
    """A check that no mistake has ever met may be blind."""
    assert {mistake.finds.split()[0] for mistake in MISTAKES} == {f"G{number}" for number in range(1, 13)}
