"""The list of reported failures and the tests that name them: a case can't be forgotten, nor shown right by nobody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.scenario_table import (
    CASES,
    FAILED,
    NO_TEST,
    NOT_YET,
    RIGHT,
    ROOT,
    Case,
    ScenarioTable,
    read_cases,
    table,
    verdict,
)

CASE = Case("C08", "Checkpoint selection", "1,105 checkpoints | pages", "The newest.")
OPEN = Case("C99", "Scale", "A sensor", "It waits.", open="there is no sensor yet")


def test_every_case_has_a_test_and_every_test_names_a_case_of_the_list() -> None:
    """Read from the files, so that `make test` notices what `make scenarios` would."""
    marks = re.compile(r"@pytest\.mark\.scenario\(([^)]*)\)")
    named = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for arguments in marks.findall(path.read_text("utf-8"))
        for name in re.findall(r'"(C\d+)"', arguments)
    }
    cases = read_cases()
    assert len(cases) >= 60
    assert named == {name for name, case in cases.items() if not case.open}


def test_the_cases_with_files_are_cases_of_the_list() -> None:
    """A fixture that no case names is a leftover."""
    folders = {path.name for path in CASES.iterdir() if path.is_dir()}
    assert folders <= read_cases().keys()


@pytest.mark.parametrize(
    ("case", "tests", "result"),
    [
        (CASE, {"a::b": "passed", "a::c": "passed"}, RIGHT),
        (CASE, {"a::b": "passed", "a::c": "failed"}, FAILED),
        (CASE, {"a::b": "skipped"}, FAILED),
        (CASE, {}, NO_TEST),
        (OPEN, {}, NOT_YET),
        (OPEN, {"a::b": "passed"}, FAILED),
    ],
)
def test_a_case_is_right_only_if_all_its_tests_ran_and_passed(case: Case, tests: dict[str, str], result: str) -> None:
    """A skipped test shows nothing, and an open case with a test is no longer open."""
    assert verdict(case, tests) == result


def test_the_page_holds_every_case_with_its_result_and_its_tests() -> None:
    """It is read where tables are rendered: a bar in a text must not end a cell."""
    page = table({"C08": CASE, "C99": OPEN}, {"C08": {"tests/x.py::test_a": "passed"}})
    assert "| C08 | 1,105 checkpoints \\| pages | The newest. | right | [test_a](../tests/x.py) |" in page
    assert "| C99 | A sensor | It waits. | not yet | there is no sensor yet |" in page
    assert "1 of 2 cases have the right outcome." in page


def test_a_case_that_nobody_shows_is_wrong(tmp_path: Path) -> None:
    """What makes the run fail: here no test at all was run."""
    plugin = ScenarioTable(tmp_path / "page.md")
    assert plugin.wrong.keys() == {name for name, case in plugin.cases.items() if not case.open}
