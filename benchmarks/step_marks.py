"""What a training told of itself, step by step: when it went on after a fault, what it repeated, how long it stood still."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.measure import MeasurementFailed


@dataclass(frozen=True)
class Mark:
    """One line of the training's first worker, or of its script."""

    at: float
    """Seconds of the machine's clock, which all processes of a local cluster share."""
    what: str
    """`main`, `loop`, `restored`, `step`, `reporting`, `reported` or `ended`."""
    step: int | None = None
    pid: int = 0
    number: str = ""


def parse_marks(text: str) -> list[Mark]:
    """The marks of a file; a line that is still being written is left out."""
    return [Mark(**json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@dataclass(frozen=True)
class MarkFile:
    """The file that all attempts of one training write to."""

    path: Path

    def read(self) -> list[Mark]:
        """All that was told so far."""
        return parse_marks(self.path.read_text()) if self.path.exists() else []

    def wait_for(self, probe: Callable[[list[Mark]], Mark | None], *, what: str, timeout_s: float = 180.0) -> Mark:
        """The first mark that the probe accepts. Raises MeasurementFailed when it does not come."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            found = probe(self.read())
            if found is not None:
                return found
            time.sleep(0.02)
        told = self.read()[-3:]
        raise MeasurementFailed(f"{what}: not within {timeout_s:.0f} s; last told: {told or 'nothing'}")


def first_of(marks: Sequence[Mark], what: str, *, after: float = 0.0) -> Mark | None:
    """The first mark of that kind after a moment."""
    return next((m for m in marks if m.what == what and m.at > after), None)


def _old_steps(marks: Sequence[Mark], killed_at: float) -> list[Mark]:
    """Steps of the workers that trained before the kill; those of a lost driver take some more until they die."""
    old = {m.pid for m in marks if m.what == "step" and m.at <= killed_at}
    return [m for m in marks if m.what == "step" and m.pid in old]


def first_new_step(marks: Sequence[Mark], *, killed_at: float) -> Mark | None:
    """The first step of a process that had not trained before the kill: the workers were replaced."""
    before = {m.pid for m in _old_steps(marks, killed_at)}
    return next((m for m in marks if m.what == "step" and m.at > killed_at and m.pid not in before), None)


def first_new_ground(marks: Sequence[Mark], *, killed_at: float) -> Mark | None:
    """The first step of new workers that no old one had taken: from here on, nothing is repeated any more."""
    old = _old_steps(marks, killed_at)
    before, reached = {m.pid for m in old}, max((m.step for m in old if m.step is not None), default=-1)
    new = (m for m in marks if m.what == "step" and m.at > killed_at and m.pid not in before)
    return next((m for m in new if m.step is not None and m.step > reached), None)


def num_repeated(marks: Sequence[Mark], *, killed_at: float = 0.0) -> int:
    """Steps told after a moment that had been taken before, by then or since."""
    seen: set[int | None] = {m.step for m in marks if m.what == "step" and m.at <= killed_at}
    later = [m.step for m in marks if m.what == "step" and m.at > killed_at]
    return len(later) - len(set(later) - seen)


def cadence_s(marks: Sequence[Mark]) -> float:
    """From one step to the next in the same process, with what its report and checkpoint cost; the mean over all."""
    steps = [m for m in marks if m.what == "step"]
    gaps = [later.at - earlier.at for earlier, later in pairwise(steps) if earlier.pid == later.pid]
    if not gaps:
        raise MeasurementFailed("no two steps of one process were told")
    return statistics.fmean(gaps)


def training_lost_s(marks: Sequence[Mark], *, killed_at: float) -> float:
    """Training time that a fault took: from the last step of the old workers until new ones reached new ground.

    Where the same process went on: what it repeated, or for how much longer than ever before the kill it stood still. Less than a step
    of that is nobody's doing: the kill itself wants the processor.
    """
    new = first_new_step(marks, killed_at=killed_at)
    ground = first_new_ground(marks, killed_at=killed_at)
    if new is None:
        repeated_s = num_repeated(marks, killed_at=killed_at) * cadence_s(marks)
        longer_s = longest_pause_s(marks, since=killed_at) - longest_pause_s([m for m in marks if m.at <= killed_at])
        return max(repeated_s, longer_s if longer_s > cadence_s(marks) else 0.0)
    last = max((m.at for m in _old_steps(marks, killed_at)), default=killed_at)
    return max(0.0, (ground or new).at - last - cadence_s(marks))


def longest_pause_s(marks: Sequence[Mark], *, since: float = 0.0, until: float = math.inf) -> float:
    """The longest time between two steps of one process that touches the span."""
    steps = [m for m in marks if m.what == "step"]
    pairs = [(a.at, b.at) for a, b in pairwise(steps) if a.pid == b.pid]
    return max((b - a for a, b in pairs if b >= since and a <= until), default=0.0)


def expected_number(steps: int) -> str:
    """The number after so many steps that were each taken once, as `stepping.py` makes it."""
    number = 0
    for step in range(steps):
        number = (number * 6364136223846793005 + step + 1) % 2**64
    return str(number)
