"""docs/benchmarks.md shows what the JSON says, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.__main__ import BENCHMARKS
from benchmarks.measure import Spread
from benchmarks.options import RESULTS
from benchmarks.page import NOT_MEASURED, PAGE, with_results
from benchmarks.report import Column, Report, written
from tests.unit.benchmarks.test_framework import report


def part(page: str, name: str) -> str:
    return page.split(f"<!-- results: {name} -->\n")[1].split("<!-- end -->", maxsplit=1)[0]


def test_the_page_equals_the_json() -> None:
    """`python -m benchmarks docs` writes it."""
    page = PAGE.read_text()
    assert with_results(page) == page
    for name in BENCHMARKS:
        assert part(page, name).strip(), f"{name} has no place on the page"


def test_each_goal_that_is_missed_has_its_reason_on_the_page() -> None:
    reasons = PAGE.read_text().split("## Goals that are missed, and why\n")[1].split("\n## ")[0]
    for file in sorted(RESULTS.glob("*.json")):
        for goal in json.loads(file.read_text())["goals"]:
            assert goal["is_met"] or f"{goal['text']}:" in reasons, f"{file.name}: no reason for: {goal['text']}"


def test_a_changed_figure_is_seen(tmp_path: Path) -> None:
    page = "# B\n\n<!-- results: import -->\nold\n<!-- end -->\n\nkept\n\n<!-- results: logs -->\n<!-- end -->\n"
    found: Report = report(rows=({"side": "a|b <i>", "time": Spread(80.0, 70.0, 95.5)},))
    written(found, tmp_path)
    once = with_results(page, tmp_path)
    assert "old" not in once
    assert "\nkept\n" in once
    assert part(once, "logs").strip() == NOT_MEASURED
    assert "| side | time [ms] |\n| --- | ---: |\n| a\\|b &lt;i> | 80 (70\u201395.5) |" in once
    assert "* met: time of ours: 80 ms (goal &lt; 100 ms)" in once
    assert "* MISSED: calls: 17 (goal &lt;= 16)" in once
    assert "of 5 rounds on A CPU" in once
    assert with_results(once, tmp_path) == once
    written(report(columns=(Column("side", "who"),)), tmp_path)
    assert with_results(once, tmp_path) != once
