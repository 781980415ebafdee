"""docs/benchmarks.md shows what the JSON says, and nothing else."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import page as page_module
from benchmarks.__main__ import BENCHMARKS
from benchmarks.measure import Spread
from benchmarks.options import RESULTS
from benchmarks.page import NOT_MEASURED, PAGE, ResultUnreadable, with_results
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
    assert "* met: time of ours: 80 ms (goal < 100 ms)" in once
    assert "* MISSED: calls: 17 (goal <= 16)" in once
    assert "of 5 rounds on A CPU" in once
    assert with_results(once, tmp_path) == once
    written(report(columns=(Column("side", "who"),)), tmp_path)
    assert with_results(once, tmp_path) != once


@pytest.mark.parametrize("damaged", ["{", "", "{}", "[]", '{"goals": [1]}'])
def test_results_that_cannot_be_read_are_named(
    damaged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback of the JSON module does not say which file to restore."""
    file = tmp_path / "import.json"
    file.write_text(damaged)
    page = "<!-- results: import -->\n<!-- end -->\n"
    with pytest.raises(ResultUnreadable, match="measure it anew") as caught:
        with_results(page, tmp_path)
    assert caught.value.file == file
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own

    def write() -> bool:
        return bool(with_results(page, tmp_path))

    monkeypatch.setattr(page_module, "write", write)
    monkeypatch.setattr(program, "measured", lambda name, _: report(name=name))
    monkeypatch.setattr(program, "written", lambda *_: [])
    for arguments in (["docs"], ["lineage"]):
        assert program.main(arguments) == 1
        assert str(file) in capsys.readouterr().err
