"""The product of targets and points: which pairs are run, in which mode, and why the others are not."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.chaos.faults import Target
from tests.chaos.points import Point

_BEFORE_JOB = frozenset({Point.BEFORE_CLAIM, Point.AFTER_CLAIM})
_ON_CLUSTER = frozenset({Target.TRAINING_WORKER, Target.CONTROLLER, Target.DRIVER})
_NEEDS_TASK_PROCESS = frozenset({Target.AIRFLOW_WORKER, Target.SUPERVISOR})
_OF_AIRFLOW = _NEEDS_TASK_PROCESS | {Target.TRIGGERER, Target.SCHEDULER, Target.API_SERVER}


@dataclass(frozen=True)
class Pair:
    """One run: what is struck, where, and whether it is killed or frozen for a while."""

    target: Target
    point: Point
    is_freeze: bool = False

    @property
    def name(self) -> str:
        """For reports and for choosing runs."""
        return f"{'freeze' if self.is_freeze else 'kill'} {self.target.value} {self.point.value}"

    @property
    def is_airflows_loss(self) -> bool:
        """Whether a killed process of Airflow leaves a job behind that must go on, not begin again."""
        return not self.is_freeze and self.target in _OF_AIRFLOW and self.point not in _BEFORE_JOB

    @property
    def dag_id(self) -> str:
        """The blocking task where its process must still live, else the deferrable one."""
        if self.target in _NEEDS_TASK_PROCESS:
            return "chaos_blocking"
        return "chaos_deferred"


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
    if pair.target is Target.TRIGGERER and pair.point in _BEFORE_JOB | {Point.AFTER_POST}:
        return "nothing is deferred yet: the worker holds the request"
    return None


FREEZES = (
    Pair(Target.DRIVER, Point.TRAINING, is_freeze=True),
    Pair(Target.DRIVER, Point.BEFORE_COMMIT, is_freeze=True),
    Pair(Target.DRIVER, Point.UPLOAD, is_freeze=True),
    Pair(Target.AIRFLOW_WORKER, Point.BEFORE_CLAIM, is_freeze=True),
    Pair(Target.AIRFLOW_WORKER, Point.AFTER_CLAIM, is_freeze=True),
    Pair(Target.AIRFLOW_WORKER, Point.TRAINING, is_freeze=True),
)
"""Where a zombie matters: a writer that comes back, and a try that comes back."""

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
    Pair(Target.AIRFLOW_WORKER, Point.AFTER_CLAIM, is_freeze=True),
)
"""The runs of every test: each kind of target once, at the point where it hurts most.

A frozen driver takes four minutes to be given up; that it harms nothing when it thaws is shown without Airflow, in
`tests/e2e/runtime/test_attempts.py`.
"""


def pairs() -> list[Pair]:
    """Every pair that can be run."""
    every = [Pair(target, point) for target in Target for point in Point]
    return [pair for pair in every if reason_against(pair) is None] + list(FREEZES)


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
            ways += ["freeze"] if Pair(target, point, is_freeze=True) in FREEZES else []
            cells.append(", ".join(ways) or f"({reasons.index(reason or '') + 1})")
        lines.append(f"| {target.value} | {' | '.join(cells)} |")
    notes = [f"{number}. {reason}." for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *notes])
