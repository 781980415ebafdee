"""Sides measured in alternation, medians with their range, and code in a fresh interpreter.

What slows a machine for a while (another process, heat) hits all sides of a round alike; measured one after the other, it would be
booked to one of them.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

Sample = Mapping[str, float]
"""What one side measured in one round, by name of the figure."""

MIB = 1024 * 1024
MOST_SAID = 900
"""Characters of an error that are shown."""
_MARK = "benchmark-answer:"
_PREAMBLE = f"""
import json as _json, sys as _sys

def _status_mib(field):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field + ":"))

def rss_mib():
    "What lies in memory now."
    return _status_mib("VmRSS")

def peak_mib():
    "The most that lay in memory so far. Not getrusage's figure, which a child inherits from its parent."
    return _status_mib("VmHWM")

def answer(**figures):
    "Give back the figures; a line of their own, since an import may print as well."
    _sys.stdout.write("\\n{_MARK}" + _json.dumps(figures) + "\\n")
    _sys.stdout.flush()
"""


def peak_mib() -> float:
    """The most that lay in this process's memory so far; the same as in the preamble, for code that can import it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def reset_peak() -> None:
    """Let the peak begin anew at what lies in memory now: that of the imports would hide what comes after."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


class MeasurementFailed(Exception):
    """A side could not be measured."""


def alternating(sides: Mapping[str, Callable[[], Sample]], repeats: int) -> dict[str, list[Sample]]:
    """Measure each side once per round, the order reversed in each second round; what each gave, by side.

    Reversed, since a side may leave something behind (a warm cache) that helps or harms whichever comes next. A side that fails in the
    second round or later ends it: the rounds that all sides came through may have taken hours, and stand.

    Raises:
        MeasurementFailed: A side failed in the first round.
    """
    if repeats < 1:
        raise ValueError(f"{repeats} rounds measure nothing")
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    for number in range(repeats):
        found: dict[str, Sample] = {}
        for name in reversed([*sides]) if number % 2 else sides:
            sys.stderr.write(f"round {number + 1} of {repeats}: {name}\n")
            try:
                found[name] = sides[name]()
            except MeasurementFailed as error:
                if number == 0:
                    raise
                sys.stderr.write(
                    f"round {number + 1} of {repeats}, {name}: {error}; it is dropped, the ones before it stand\n"
                )
                return samples
        for name, sample in found.items():
            samples[name].append(sample)
    return samples


def complete_rounds(*groups: Mapping[Any, Sequence[Sample] | str]) -> int:
    """How many rounds each side came through; of several groups the fewest."""
    return min(len(found) for group in groups for found in group.values() if not isinstance(found, str))


def alternating_with_peers(
    sides: Mapping[str, Callable[[], Sample]], peers: Mapping[str, Callable[[], Sample]], repeats: int
) -> dict[str, Sequence[Sample] | str]:
    """As `alternating`. A peer that fails in any round has the reason in the place of its figures: it must not end what can be measured."""
    problems: dict[str, str] = {}

    def tried(name: str) -> Sample:
        try:
            return {} if name in problems else peers[name]()
        except MeasurementFailed as error:
            problems[name] = str(error)
            return {}

    return {**alternating({**sides, **{name: partial(tried, name) for name in peers}}, repeats), **problems}


def measured(found: Sequence[Sample] | str) -> Sequence[Sample]:
    """The rounds of a side; raises MeasurementFailed where there is the reason instead."""
    if isinstance(found, str):
        raise MeasurementFailed(found)
    return found


def raw(found: Sequence[Sample] | str) -> list[dict[str, Any]] | str:
    """The rounds of a side as JSON has them, or the reason why there are none."""
    return found if isinstance(found, str) else [dict(one) for one in found]


@dataclass(frozen=True)
class Spread:
    """A figure over its rounds."""

    median: float
    low: float
    high: float

    def times(self, factor: float) -> Spread:
        """The same in another unit; the factor is positive."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


def spread(values: Sequence[float]) -> Spread:
    """Median and range of one figure."""
    if not values:
        raise MeasurementFailed("no round gave a value")
    return Spread(statistics.median(values), min(values), max(values))


def figure(samples: Sequence[Sample], name: str) -> Spread:
    """Median and range of the figure of that name over the rounds of a side."""
    return spread([sample[name] for sample in samples])


def difference(samples: Sequence[Sample], floor: Sequence[Sample], name: str) -> Spread:
    """What a side costs above the floor, round by round: both stand in the same round, so what slowed it cancels."""
    return spread([one[name] - other[name] for one, other in zip(samples, floor, strict=True)])


def number(value: float) -> str:
    """Three digits that count, and no exponent: 0.0123, 1.23, 12.3, 123, 12345."""
    if value == 0:
        return "0"
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{digits}f}"


def run_python(
    python: Path | str,
    code: str,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> dict[str, Any]:
    """Run the code in a fresh interpreter; what it gave to `answer(...)`.

    The code finds `rss_mib()`, `peak_mib()` and `answer(**figures)` defined. The environment is ours, changed by `env`; the interpreter
    starts without the working directory and the user's own packages on its path.

    Raises:
        MeasurementFailed: It ended with an error, or without an answer; with the end of what it wrote.
    """
    command = [str(python), "-P", "-s", "-c", _PREAMBLE + code]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            cwd=cwd,
            env={**os.environ, **(env or {})},
        )
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"no answer within {timeout_s:g} s") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not answers:
        last = (done.stderr.strip() or done.stdout.strip() or "it wrote nothing").splitlines()[-1]
        # The cause of an error stands at its end.
        said = last if len(last) <= MOST_SAID else f"{last[: MOST_SAID // 3]} ... {last[-2 * MOST_SAID // 3 :]}"
        raise MeasurementFailed(f"exit code {done.returncode}: {said}")
    value: dict[str, Any] = json.loads(answers[-1].removeprefix(_MARK))
    return value
