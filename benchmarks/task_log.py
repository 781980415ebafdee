"""A task's log as a time line: what Airflow and the operator said, and when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(?:Z|[+-]\d\d:\d\d)) \w+ (.*)")
PRE_EXECUTE, END_OF_GROUP = "::group::Pre Execute", "::endgroup::"


@dataclass(frozen=True)
class Line:
    """One line; its further lines, without a time, are left out."""

    at: float
    text: str


def parse_log(text: str) -> list[Line]:
    """The lines that have a time, in their order of time: Airflow shows the trigger's after or between the task's."""
    matches = (_LINE.match(line) for line in text.splitlines())
    found = [Line(datetime.fromisoformat(m[1].replace("Z", "+00:00")).timestamp(), m[2]) for m in matches if m]
    return sorted(found, key=lambda line: line.at)


def said_at(lines: Sequence[Line], text: str, *, after: float) -> float | None:
    """When a line with these words first came after a moment."""
    return next((line.at for line in lines if line.at > after and text in line.text), None)


def executed_at(lines: Sequence[Line], *, after: float) -> float | None:
    """When Airflow handed over to the operator for the first time after a moment: the end of what it does before."""
    begun = said_at(lines, PRE_EXECUTE, after=after)
    return None if begun is None else said_at(lines, END_OF_GROUP, after=begun)
