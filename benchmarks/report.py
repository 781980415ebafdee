"""What a benchmark found: printed, written as JSON, drawn as SVG.

docs/benchmarks.md is made from the JSON, so nothing that the page shows may be missing there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import Machine, is_quiet, sentence
from benchmarks.measure import Spread, number
from benchmarks.plot import Plot, drawn

__all__ = ["Cell", "Column", "Goal", "Report", "counted", "number", "printed", "shown", "titles", "verdict", "written"]

Cell = Spread | float | int | str | None
"""None stands where there is nothing to measure, a text where there is a reason to name."""


@dataclass(frozen=True)
class Column:
    """A column of the table; `key` finds its cell in each row."""

    key: str
    title: str
    unit: str = ""


@dataclass(frozen=True)
class Goal:
    """One sentence of the requirement, and whether it holds. A goal that could not be measured is not met."""

    text: str
    limit: str
    measured: str
    is_met: bool

    @classmethod
    def at_most(cls, text: str, measured: float | None, limit: float, unit: str = "") -> Goal:
        """Met up to the limit."""
        is_met = measured is not None and measured <= limit
        return cls(text, f"<= {number(limit)} {unit}".strip(), _or_not(measured, unit), is_met)

    @classmethod
    def below(cls, text: str, measured: float | None, limit: float, unit: str = "") -> Goal:
        """Met below the limit, but not at it."""
        is_met = measured is not None and measured < limit
        return cls(text, f"< {number(limit)} {unit}".strip(), _or_not(measured, unit), is_met)

    @classmethod
    def at_least(cls, text: str, measured: float | None, limit: float, unit: str = "") -> Goal:
        """Met from the limit on."""
        is_met = measured is not None and measured >= limit
        return cls(text, f">= {number(limit)} {unit}".strip(), _or_not(measured, unit), is_met)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of one benchmark."""

    name: str
    title: str
    machine: Machine
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]
    goals: Sequence[Goal]
    notes: Sequence[str] = ()
    """What a reader must know to read the figures right, such as what a peer can't do or what isn't claimed."""
    plots: Sequence[Plot] = ()
    rounds: int
    is_quick: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Raw figures worth keeping in the JSON alone."""

    def as_json(self) -> dict[str, Any]:
        """All but the plots; cells that are spreads become objects."""
        return {
            "name": self.name,
            "title": self.title,
            "is_quick": self.is_quick,
            "rounds": self.rounds,
            "machine": dict(self.machine),
            "columns": [vars(column) for column in self.columns],
            "rows": [{key: _plain(cell) for key, cell in row.items()} for row in self.rows],
            "goals": [vars(goal) for goal in self.goals],
            "notes": list(self.notes),
            "extra": dict(self.extra),
        }


def shown(cell: Any) -> str:
    """A cell as text, from a report or from its JSON: the median, and the range where the rounds differ."""
    if isinstance(cell, Mapping):
        cell = Spread(cell["median"], cell["low"], cell["high"])
    if isinstance(cell, Spread):
        median, low, high = number(cell.median), number(cell.low), number(cell.high)
        return median if low == high else f"{median} ({low}\u2013{high})"
    return "\u2013" if cell is None else cell if isinstance(cell, str) else number(cell)


def counted(rounds: int) -> str:
    """So many rounds, in words."""
    return "one round" if rounds == 1 else f"{rounds} rounds"


def titles(columns: Sequence[Mapping[str, str]]) -> list[str]:
    """The header of a table, units included."""
    return [f"{one['title']} [{one['unit']}]" if one["unit"] else one["title"] for one in columns]


def printed(report: Report) -> str:
    """The report for a terminal."""
    as_json = report.as_json()
    table = [titles(as_json["columns"])]
    table += [[shown(row.get(column["key"])) for column in as_json["columns"]] for row in as_json["rows"]]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = [f"{report.name}: {report.title}" + (" (QUICK: the figures mean nothing)" if report.is_quick else ""), ""]
    lines += ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    lines.insert(3, "  " + "  ".join("-" * width for width in widths))
    lines.append(f"\n  median (lowest\u2013highest) of {counted(report.rounds)}")
    lines += [f"  {verdict(vars(goal))}" for goal in report.goals]
    lines += [f"  * {note}" for note in report.notes]
    lines.append(f"  on {sentence(report.machine)}")
    if not is_quiet(report.machine):
        lines.append("  WARNING: the machine was not quiet when this began")
    return "\n".join(lines) + "\n"


def verdict(goal: Mapping[str, Any]) -> str:
    """A goal in one line."""
    word = "met" if goal["is_met"] else "MISSED"
    return f"{word}: {goal['text']}: {goal['measured']} (goal {goal['limit']})"


def written(report: Report, folder: Path) -> list[Path]:
    """Write NAME.json and, with a plot, NAME.svg; what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    figures, plot = folder / f"{report.name}.json", folder / f"{report.name}.svg"
    _put(figures, json.dumps(report.as_json(), indent=1, allow_nan=False) + "\n")
    if not report.plots:
        return [figures]
    # Drawn once the figures are safe: they may have taken hours.
    _put(plot, drawn(report.plots))
    return [figures, plot]


def _put(path: Path, text: str) -> None:
    """Whole or not at all: what is there was measured too, and half a file is none."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _plain(cell: Cell) -> Any:
    return vars(cell) if isinstance(cell, Spread) else cell


def _or_not(measured: float | None, unit: str) -> str:
    return "not measured" if measured is None else f"{number(measured)} {unit}".strip()
