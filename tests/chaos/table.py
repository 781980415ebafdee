"""The product of targets and points: which pairs are run, in which mode, and why the others are not."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from tests.chaos.faults import Target
from tests.chaos.points import Point

_BEFORE_JOB = frozenset({Point.BEFORE_CLAIM, Point.AFTER_CLAIM})
_ON_CLUSTER = frozenset({Target.TRAINING_WORKER, Target.CONTROLLER, Target.DRIVER})
_NEEDS_TASK_PROCESS = frozenset({Target.AIRFLOW_WORKER, Target.SUPERVISOR})
_OF_AIRFLOW = _NEEDS_TASK_PROCESS | {Target.TRIGGERER, Target.SCHEDULER, Target.API_SERVER}


_NETWORKS = (Target.STORE_NETWORK, Target.DASHBOARD_NETWORK)


class Way(str, Enum):
    """How a target is struck."""

    KILL = "kill"
    """SIGKILL; a network is cut."""
    FREEZE = "freeze"
    """SIGSTOP, and SIGCONT later."""
    REFUSE = "refuse"
    """A network that takes no new connections."""
    SLOW = "slow"
    """A network that delays each request."""


@dataclass(frozen=True)
class Pair:
    """One run: what is struck, where, and how."""

    target: Target
    point: Point
    way: Way = Way.KILL

    @property
    def is_freeze(self) -> bool:
        """Whether the target comes back and goes on with what it was doing."""
        return self.way is Way.FREEZE

    @property
    def is_frozen_writer(self) -> bool:
        """Whether what comes back is a driver that may still write and delete."""
        return self.is_freeze and self.target is Target.DRIVER

    @property
    def name(self) -> str:
        """For reports and for choosing runs."""
        return f"{self.way.value} {self.target.value} {self.point.value}"

    @property
    def is_airflows_loss(self) -> bool:
        """Whether a killed process of Airflow leaves a job behind that must go on, not begin again."""
        return self.way is Way.KILL and self.target in _OF_AIRFLOW and self.point not in _BEFORE_JOB

    @property
    def dag_id(self) -> str:
        """The blocking task where its process must still live, one whose workers need another node, else the deferrable."""
        if self.target in _NEEDS_TASK_PROCESS:
            return "chaos_blocking"
        return "chaos_on_node" if self.target is Target.RAYLET else "chaos_deferred"


def reason_against(pair: Pair) -> str | None:
    """Why a pair can't be run, None if it can."""
    if pair.target in _ON_CLUSTER and pair.point in _BEFORE_JOB:
        return "there is no job yet"
    if pair.target in (Target.TRAINING_WORKER, Target.CONTROLLER) and pair.point is Point.AFTER_POST:
        return "it does not exist yet: the driver has not begun"
    if pair.target is Target.DRIVER and pair.point is Point.AFTER_POST:
        return "it does not exist yet: Ray has only just taken the job"
    if pair.target is Target.TRAINING_WORKER and pair.point is Point.END:
        return "it has ended: the driver writes the outcome after the fit"
    if pair.target is Target.CONTROLLER and pair.point is Point.END:
        return "it has ended: the driver writes the outcome after the fit"
    return None


FREEZES = (
    Pair(Target.DRIVER, Point.TRAINING, Way.FREEZE),
    Pair(Target.DRIVER, Point.BEFORE_COMMIT, Way.FREEZE),
    Pair(Target.DRIVER, Point.UPLOAD, Way.FREEZE),
    Pair(Target.DRIVER, Point.MANIFEST_WRITE, Way.FREEZE),
    Pair(Target.AIRFLOW_WORKER, Point.BEFORE_CLAIM, Way.FREEZE),
    Pair(Target.AIRFLOW_WORKER, Point.AFTER_CLAIM, Way.FREEZE),
    Pair(Target.AIRFLOW_WORKER, Point.TRAINING, Way.FREEZE),
)
"""Where a zombie matters: a writer that comes back, and a try that comes back."""

WEAK_NETWORKS = tuple(
    Pair(target, point, way)
    for target in _NETWORKS
    for point in (Point.BEFORE_CLAIM, Point.AFTER_POST, Point.BEFORE_COMMIT)
    for way in (Way.REFUSE, Way.SLOW)
)
"""Where a network that refuses or crawls differs from one that is cut: before the job, after it was sent, and in a commit."""

FIXED = (
    Pair(Target.AIRFLOW_WORKER, Point.BEFORE_CLAIM),
    Pair(Target.AIRFLOW_WORKER, Point.AFTER_POST),
    Pair(Target.AIRFLOW_WORKER, Point.TRAINING),
    Pair(Target.TRAINING_WORKER, Point.UPLOAD),
    Pair(Target.CONTROLLER, Point.BEFORE_COMMIT),
    Pair(Target.DRIVER, Point.MANIFEST_WRITE),
    Pair(Target.TRIGGERER, Point.TRAINING),
    Pair(Target.OBJECT_STORE, Point.BEFORE_COMMIT),
    Pair(Target.STORE_NETWORK, Point.AFTER_CLAIM),
    Pair(Target.AIRFLOW_WORKER, Point.AFTER_CLAIM, Way.FREEZE),
)
"""The runs of every test: each kind of target once, at the point where it hurts most.

A frozen driver takes four minutes to be given up; that it harms nothing when it thaws is shown without Airflow, in
`tests/e2e/runtime/test_attempts.py`.
"""


def pairs() -> list[Pair]:
    """Every pair that can be run."""
    every = [Pair(target, point) for target in Target for point in Point]
    return [pair for pair in every if reason_against(pair) is None] + [*FREEZES, *WEAK_NETWORKS]


def chosen(*, count: int | None, seed: int) -> list[Pair]:
    """`count` pairs in an order that the seed decides; all of them without a count."""
    found = pairs()
    random.Random(seed).shuffle(found)
    return found if count is None else found[:count]


def markdown() -> str:
    """The product as a table for docs/chaos.md: `run`, or why not."""
    points = list(Point)
    reasons: list[str] = []
    lines = [f"| | {' | '.join(point.value for point in points)} |", f"|---|{'---|' * len(points)}"]
    for target in Target:
        cells = []
        for point in points:
            pair = Pair(target, point)
            reason = reason_against(pair)
            if reason is not None and reason not in reasons:
                reasons.append(reason)
            ways = [] if reason else ["kill"]
            ways += [p.way.value for p in (*FREEZES, *WEAK_NETWORKS) if (p.target, p.point) == (target, point)]
            cells.append(", ".join(ways) or f"({reasons.index(reason or '') + 1})")
        lines.append(f"| {target.value} | {' | '.join(cells)} |")
    notes = [f"{number}. {reason}." for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *notes])
