"""One training under a plan of faults, from its start to its last step, whoever keeps it alive."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import psutil

from benchmarks.fault_plan import TARGETS, Fault
from benchmarks.goodput_bound import Costs
from benchmarks.measure import MeasurementFailed
from benchmarks.step_marks import Mark, MarkFile, cadence_s, first_of
from benchmarks.training_cluster import strike

_LOOK_S = 0.02


@dataclass(frozen=True)
class Struck:
    """A fault that struck."""

    target: str
    at: float


@dataclass
class Life:
    """What became of one training."""

    began_at: float
    struck: list[Struck] = field(default_factory=list)
    marks: Sequence[Mark] = ()
    is_finished: bool = False
    ended_at: float = 0.0
    commits: Sequence[float] = ()
    """When Ray's manifest was written."""

    @property
    def wall_s(self) -> float:
        """From its start to its last step, or to where it was given up."""
        return self.ended_at - self.began_at


@dataclass(frozen=True)
class Plan:
    """What happens to a training, and until when."""

    marks: MarkFile
    faults: Iterator[Fault]
    steps: int
    find: Callable[[str], Sequence[psutil.Process]]
    """The living processes of a target."""
    after_strike: Callable[[Struck], None]
    """What somebody outside does about it."""
    limit_s: float
    """When it is given up, counted from its start."""


def live_through(life: Life, plan: Plan) -> Life:
    """Strike by the plan until the last step was taken, or the training is given up.

    Between two faults new workers must have taken a step: those that die may still tell one, which nobody can strike any more.
    """
    fault, trained_by = next(plan.faults), frozenset[int]()
    while time.time() < life.began_at + plan.limit_s:
        life.marks = plan.marks.read()
        taken = [m for m in life.marks if m.what == "step"]
        last = next((m for m in taken if m.step == plan.steps - 1), None)
        if last is not None:
            life.is_finished, life.ended_at = True, last.at
            return life
        if len(taken) >= fault.after_steps and taken[-1].pid not in trained_by:
            trained_by = frozenset(m.pid for m in taken)
            life.struck.append(Struck(fault.target, strike(plan.find(fault.target))))
            plan.after_strike(life.struck[-1])
            fault = next(plan.faults)
        time.sleep(_LOOK_S)
    life.ended_at = time.time()
    return life


def costs_of(lives: Sequence[Life]) -> Costs:
    """What Ray itself takes, by the medians over what plain trainings went through."""
    starts = [restored.at - life.began_at for life in lives if (restored := first_of(life.marks, "restored"))]
    if not starts:
        raise MeasurementFailed("no plain training began")
    restarts = {
        target: [s for life in lives for s in _restarts(life, target)] or starts
        # Where no such fault fell: a start anew is what it would have been.
        for target in TARGETS
    }
    return Costs(
        first_start_s=statistics.median(starts),
        cadence_s=statistics.median(cadence_s(life.marks) for life in lives),
        restart_s={target: statistics.median(found) for target, found in restarts.items()},
        commit_lag_s=statistics.median([lag for life in lives for lag in _commit_lags(life)] or [0.0]),
    )


def _commit_lags(life: Life) -> Iterator[float]:
    """From a report to the first manifest after it; a report that none followed before the next one was lost."""
    reports = [m.at for m in life.marks if m.what == "reporting"]
    for at, following in pairwise([*reports, life.ended_at]):
        commit = next((commit for commit in life.commits if at < commit < following), None)
        if commit is not None:
            yield commit - at


def _restarts(life: Life, target: str) -> Iterator[float]:
    for struck in life.struck:
        restored = first_of(life.marks, "restored", after=struck.at)
        if struck.target == target and restored is not None:
            yield restored.at - struck.at
