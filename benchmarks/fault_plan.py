"""When faults strike a training and whom: decided by a seed alone, on the clock of steps taken."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, takewhile

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


def seeds_with_lost_driver(num: int, *, mtbf_s: float, step_s: float, steps: int) -> Sequence[int]:
    """The first so many seeds, from 1 on, whose plan loses a driver before the last step, even if no step is repeated.

    A rule and no choice: only a lost driver tells apart who keeps a training alive, and a seed picked by hand could flatter a side.
    """

    def loses_driver(seed: int) -> bool:
        met = takewhile(lambda fault: fault.after_steps < steps, planned(seed=seed, mtbf_s=mtbf_s, step_s=step_s))
        return any(fault.target == DRIVER for fault in met)

    return list(islice(filter(loses_driver, count(1)), num))
