"""How long a training under given faults takes at best, with Ray's start-up and the checkpoint interval as they are: an estimate.

    bound = first start + steps x cadence + sum over faults of (restart of what died + steps that no commit had yet x cadence)

`cadence` is the time of a step with its share of reports and checkpoints. `first start` is the time from the POST until the training loop
runs. The restarts are Ray's own: from the death of a worker until Ray's new workers run the loop, and from the death of a driver until
those of a job do that was posted under the same name at that very moment. A commit comes a while after its step: Ray's controller takes
reports every 2 s, and a checkpoint that it has not taken is lost with whatever died. All are measured on plain Ray in the same run. Nobody
detects, decides or schedules in a bound. But its parts are medians, so a training with luck can be faster: Ray alone lands within some
percent of it, on either side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.fault_plan import Fault


@dataclass(frozen=True)
class Costs:
    """What Ray itself takes, in seconds."""

    first_start_s: float
    cadence_s: float
    restart_s: Mapping[str, float]
    """By what died."""
    commit_lag_s: float = 0.0
    """From the last step of a checkpoint until it is in Ray's manifest."""


@dataclass(frozen=True)
class Bound:
    """The way through one plan of faults that loses nothing but what Ray takes."""

    wall_s: float
    productive_s: float
    num_faults: int
    num_repeated: int
    """Steps that have to be taken again, since no checkpoint had them yet."""


def bound(faults: Iterable[Fault], *, steps: int, every: int, costs: Costs) -> Bound:
    """Walk through the training: forward to the next fault, back to the last commit, until the last step is taken."""
    productive_s = steps * costs.cadence_s
    wall_s, lag = costs.first_start_s, round(costs.commit_lag_s / costs.cadence_s)
    committed = position = taken = num_faults = num_repeated = 0
    for fault in faults:
        forward = fault.after_steps - taken
        if position + forward >= steps:
            break
        position, taken = position + forward, fault.after_steps
        wall_s += costs.restart_s[fault.target]
        committed = max(committed, max(0, position - lag) // every * every)
        num_faults, num_repeated = num_faults + 1, num_repeated + position - committed
        position = committed
    return Bound(wall_s + productive_s + num_repeated * costs.cadence_s, productive_s, num_faults, num_repeated)
