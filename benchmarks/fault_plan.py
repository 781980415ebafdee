"""When faults strike a training and whom: decided by a seed alone, on the clock of steps taken."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

WORKER, DRIVER = "training worker", "driver"
TARGETS = (WORKER, DRIVER)


@dataclass(frozen=True)
class Fault:
    """Strikes when so many steps were taken in all, repeated ones too."""

    after_steps: int
    target: str


def planned(*, seed: int, mtbf_s: float, step_s: float) -> Iterator[Fault]:
    """Faults without end; whoever repeats work meets more of them.

    The time between two is exponential, as for independent failures of many machines. It is counted in steps, so that every side
    meets the same faults however long its start-ups take. At least one step lies between two: nothing can strike what does not train.
    """
    source = random.Random(f"{seed} {float(mtbf_s)}")  # noqa: S311 a repeatable plan, no secret
    at_s, last = 0.0, 0
    while True:
        at_s += source.expovariate(1 / mtbf_s)
        last = max(last + 1, round(at_s / step_s))
        yield Fault(last, source.choice(TARGETS))
