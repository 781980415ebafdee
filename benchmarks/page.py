"""Writes what was measured into docs/benchmarks.md, between markers: figures are never copied by hand, a test compares the two."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import Machine, is_quiet, sentence
from benchmarks.options import RESULTS, ROOT
from benchmarks.report import counted, shown, titles, verdict

PAGE = ROOT / "docs" / "benchmarks.md"
NOT_MEASURED = "Not measured yet."
_PART = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


class ResultUnreadable(Exception):
    """A file of results can't be shown, for example one that is half written."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(file, reason)
        self.file, self.reason = file, reason

    def __str__(self) -> str:
        """With what to do about it."""
        return f"{self.file} can't be read as results ({self.reason}): restore it, or measure it anew"


def with_results(page: str, results: Path = RESULTS) -> str:
    """The page with each part between markers made anew from the JSON of that name. Raises ResultUnreadable."""

    def part(match: re.Match[str]) -> str:
        file = results / f"{match[2]}.json"
        text = _read(file) if file.is_file() else NOT_MEASURED
        return f"{match[1]}\n{text}\n\n{match[3]}"

    return _PART.sub(part, page)


def section(result: Mapping[str, Any], *, folder: Path) -> str:
    """One benchmark's goals, table, plot, notes and machine."""
    machine: Machine = result["machine"]
    parts = ["\n".join(f"* {_escaped(verdict(goal))}" for goal in result["goals"]), _table(result)]
    plot = folder / f"{result['name']}.svg"
    if plot.is_file():
        parts.append(f"![{result['title']}](../{plot.relative_to(ROOT).as_posix()})")
    if result["notes"]:
        parts.append("\n".join(f"* {_escaped(note)}" for note in result["notes"]))
    noise = "" if is_quiet(machine) else " **The machine was not quiet when this began.**"
    parts.append(f"Median (lowest\u2013highest) of {counted(result['rounds'])} on {sentence(machine)}.{noise}")
    return "\n\n".join(parts)


def write() -> bool:
    """Bring the page up to date; whether it had to change. Raises ResultUnreadable, and changes nothing then."""
    before = PAGE.read_text(encoding="utf-8")
    after = with_results(before)
    if after != before:
        PAGE.write_text(after, encoding="utf-8")
    return after != before


def _read(file: Path) -> str:
    try:
        return section(json.loads(file.read_text(encoding="utf-8")), folder=file.parent)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ResultUnreadable(file, f"{type(error).__name__}: {error}") from error


def _table(result: Mapping[str, Any]) -> str:
    columns = result["columns"]
    is_text = [all(isinstance(row.get(one["key"]), str) for row in result["rows"]) for one in columns]
    lines = [titles(columns), ["---" if text else "---:" for text in is_text]]
    lines += [[shown(row.get(column["key"])) for column in columns] for row in result["rows"]]
    return "\n".join(f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines)


def _escaped(text: str) -> str:
    """As text of a table's cell: what an exception says may hold markup. A sign before a space opens none."""
    return re.sub(r"<(?![ =])", "&lt;", text.replace("|", "\\|")).replace("\n", " ")
