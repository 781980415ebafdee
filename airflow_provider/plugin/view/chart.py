"""A metric over steps, one line for each attempt: what was trained again after a restore shows as two lines over one step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider.core.lineage import LineageCheckpoint
from airflow_provider.plugin.view import words

MAX_POINTS = 800
MAX_LINES = 40
"""Attempts drawn, the newest ones."""
MAX_NAMES = 200
"""Metrics that can be chosen."""
STEP_NAMES = ("global_step", "step", "training_iteration", "iteration", "epoch")
COMMIT = "commit"
"""The horizontal axis where nothing counts steps: the number of the commit."""
_PREFERRED = ("loss", "acc", "score", "f1", "auc", "reward", "error")


@dataclass(frozen=True)
class Point:
    """One checkpoint; `x` and `y` are per cent from the top left."""

    x: float
    y: float
    title: str
    checkpoint: str


@dataclass(frozen=True)
class Line:
    """An attempt's values, in the order of their commits."""

    attempt: str
    number: int
    """From 0, for colour and dashes."""
    points: tuple[Point, ...]

    @property
    def path(self) -> str:
        """The points of an SVG polyline in a box of 1000 by 1000."""
        return " ".join(f"{p.x * 10:.1f},{p.y * 10:.1f}" for p in self.points)


@dataclass(frozen=True)
class Label:
    """A number beside an axis, per cent from its start."""

    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """All of it."""

    metric: str
    step_name: str
    names: tuple[str, ...]
    lines: tuple[Line, ...]
    x_labels: tuple[Label, ...]
    y_labels: tuple[Label, ...]
    num_values: int
    num_shown: int
    summary: str


def metric_names(checkpoints: Sequence[LineageCheckpoint]) -> tuple[str, ...]:
    """Metrics that are numbers, the most frequent first, then by name."""
    counts: Counter[str] = Counter()
    for checkpoint in checkpoints:
        counts.update(name for name, value in checkpoint.metrics.items() if words.number(value) is not None)
    return tuple(name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_NAMES])


def step_name(checkpoints: Sequence[LineageCheckpoint], names: Sequence[str]) -> str:
    """What counts the steps: a metric that most checkpoints have, under a name that people use for it."""
    for name in STEP_NAMES:
        if name in names:
            having = sum(1 for c in checkpoints if words.number(c.metrics.get(name)) is not None)
            if having * 2 >= len(checkpoints):
                return name
    return COMMIT


def chosen_metric(names: Sequence[str], wanted: str | None, *, steps: str) -> str | None:
    """The metric to draw: the wanted one if it is there, else the one that people would look at first."""
    if wanted in names:
        return wanted
    others = [n for n in names if n != steps]
    for part in _PREFERRED:
        for name in others:
            if part in name.lower():
                return name
    return next(iter(others or names), None)


def build_chart(checkpoints: Sequence[LineageCheckpoint], wanted: str | None) -> Chart | None:
    """None where no metric is a number."""
    names = metric_names(checkpoints)
    steps = step_name(checkpoints, names)
    metric = chosen_metric(names, wanted, steps=steps)
    if metric is None:
        return None
    values = _values(checkpoints, metric, steps)
    if not values:
        return None
    flat = [(x, y) for rows in values.values() for x, y, _ in rows]
    x_axis, y_axis = _Scale.over([x for x, _ in flat]), _Scale.over([y for _, y in flat], has_margin=True)
    quota = max(2, MAX_POINTS // len(values))
    lines = []
    for number, (attempt, rows) in enumerate(values.items()):
        points = tuple(
            Point(
                x_axis.at(x),
                100 - y_axis.at(y),
                f"{attempt}, {steps} {words.value_shown(x)}: {metric} {words.value_shown(y)}",
                name,
            )
            for x, y, name in thinned(rows, quota)
        )
        lines.append(Line(attempt, number, points))
    return Chart(
        metric=metric,
        step_name=steps,
        names=names,
        lines=tuple(lines),
        x_labels=x_axis.labels(6),
        y_labels=tuple(Label(100 - label.at, label.text) for label in y_axis.labels(5)),
        num_values=len(flat),
        num_shown=sum(len(line.points) for line in lines),
        summary=_summary(metric, steps, values),
    )


Row = tuple[float, float, str]


def _values(checkpoints: Sequence[LineageCheckpoint], metric: str, steps: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for number, checkpoint in enumerate(checkpoints, 1):
        y = words.number(checkpoint.metrics.get(metric))
        x = float(number) if steps == COMMIT else words.number(checkpoint.metrics.get(steps))
        if x is not None and y is not None:
            found.setdefault(checkpoint.attempt, []).append((x, y, checkpoint.name))
    return dict(list(found.items())[-MAX_LINES:])


def thinned(rows: Sequence[Row], most: int) -> list[Row]:
    """At most `most` rows: of each slice the lowest and the highest, so that no peak is lost; ends stay."""
    if len(rows) <= most:
        return list(rows)
    num_slices = (most - 2) // 2
    inner = rows[1:-1]
    kept = [rows[0]]
    for i in range(num_slices):
        part = inner[i * len(inner) // num_slices : (i + 1) * len(inner) // num_slices]
        if part:
            low, high = min(part, key=lambda r: r[1]), max(part, key=lambda r: r[1])
            kept.extend(dict.fromkeys(sorted((low, high), key=part.index)))
    return [*kept, rows[-1]]


def _summary(metric: str, steps: str, values: dict[str, list[Row]]) -> str:
    flat = [row for rows in values.values() for row in rows]
    last = flat[-1]
    if len(flat) == 1:
        return f"{metric} {words.value_shown(last[1])} at {steps} {words.value_shown(last[0])}, the only checkpoint with it"
    low, high = min(y for _, y, _ in flat), max(y for _, y, _ in flat)
    attempts = f"{len(values)} attempts" if len(values) > 1 else f"attempt {next(iter(values))}"
    return (
        f"{metric} over {steps}, {len(flat)} checkpoints of {attempts}: from {words.value_shown(flat[0][1])} to "
        f"{words.value_shown(last[1])} at {steps} {words.value_shown(last[0])}; "
        f"lowest {words.value_shown(low)}, highest {words.value_shown(high)}"
    )


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float], *, has_margin: bool = False) -> _Scale:
        low, high = min(values), max(values)
        span = (high - low) * 0.05 if has_margin else 0.0
        gap = span if low < high else abs(low) / 2 or 1.0
        return cls(low - gap, high + gap)

    def at(self, value: float) -> float:
        return min(100.0, max(0.0, (value - self.low) / (self.high - self.low) * 100))

    def labels(self, most: int) -> tuple[Label, ...]:
        step = _round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step)
        last = math.floor(self.high / step)
        return tuple(Label(self.at(i * step), f"{i * step:.6g}") for i in range(first, min(last, first + most + 2) + 1))


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, at least `rough`."""
    base = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next((base * factor for factor in (1, 2, 5, 10) if base * factor >= rough), base * 10)
