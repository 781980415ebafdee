"""What runs of chaos found, and the file that keeps it from one command to the next."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tests.chaos.verdict import Verdict

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Report:
    """One run, for the table."""

    name: str
    fault: str
    tries: int
    attempts: int
    seconds: float
    verdict: Verdict


def read_reports(file: Path) -> list[Report]:
    """The reports of a file; none if it doesn't exist yet."""
    if not file.exists():
        return []
    return [Report(**{**entry, "verdict": Verdict(**entry["verdict"])}) for entry in json.loads(file.read_text())]


def write_reports(file: Path, reports: list[Report]) -> None:
    """Replace the file's reports."""
    file.write_text(json.dumps([asdict(report) for report in reports], indent=1) + "\n")
