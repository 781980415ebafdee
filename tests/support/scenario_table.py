"""Which reported case is shown by which test, and with what result: a pytest plugin that `make scenarios` loads.

The table is made from the run: a case without a test, or with one that did not pass, fails the run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "fixtures" / "cases"
RIGHT, FAILED, NO_TEST, NOT_YET = "right", "**WRONG**", "**NO TEST**", "not yet"
_HEAD = """# Reported failures, and what the provider does

Made by `make scenarios` from a run of the tests; don't edit it. Each case is a failure that people reported in public.
Its texts are in `tests/fixtures/cases/cases.toml`.

"""


@dataclass(frozen=True)
class Case:
    """One reported failure."""

    name: str
    kind: str
    who: str
    right: str
    note: str = ""
    open: str = ""
    """Why there is no test yet."""


def read_cases(path: Path = CASES / "cases.toml") -> dict[str, Case]:
    """All cases by id, in the order of the list."""
    tables: dict[str, dict[str, str]] = tomllib.loads(path.read_text("utf-8"))
    return {name: Case(name, table.pop("class"), **table) for name, table in tables.items()}


def verdict(case: Case, tests: Mapping[str, str]) -> str:
    """The result column. `tests` holds the worst outcome of each test function."""
    if case.open:
        return FAILED if tests else NOT_YET
    if not tests:
        return NO_TEST
    return RIGHT if set(tests.values()) == {"passed"} else FAILED


def table(cases: Mapping[str, Case], tests: Mapping[str, Mapping[str, str]]) -> str:
    """The page."""
    verdicts = {name: verdict(case, tests.get(name, {})) for name, case in cases.items()}
    num_right = sum(result == RIGHT for result in verdicts.values())
    lines = [f"{_HEAD}{num_right} of {len(cases)} cases have the right outcome."]
    kind = None
    for name, case in cases.items():
        if case.kind != kind:
            kind = case.kind
            lines += [
                "",
                f"## {kind}",
                "",
                "| case | what happened | right outcome | result | tests |",
                "|---|---|---|---|---|",
            ]
        right = f"{case.right} *{case.note}*" if case.note else case.right
        shown = "<br>".join(_link(test) for test in sorted(tests.get(name, {}))) or case.open
        cells = [name, case.who, right, verdicts[name], shown]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _link(test: str) -> str:
    file, _, function = test.partition("::")
    return f"[{function}](../{file})"


class ScenarioTable:
    """Collects outcomes by case and writes the table at the end."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.cases = read_cases()
        self.tests: dict[str, dict[str, str]] = {}
        self.is_whole = False
        """Whether the run came to its end: an interrupted one says nothing about any case."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note each test's cases where its report will carry them."""
        for item in items:
            for mark in item.iter_markers("scenario"):
                unknown = set(mark.args) - set(self.cases)
                if unknown or not mark.args:
                    raise pytest.UsageError(f"{item.nodeid} names unknown cases: {sorted(unknown)}")
                item.user_properties.extend(("scenario", name) for name in mark.args)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The worst phase of the worst parameter is a test's outcome; a skipped test shows nothing."""
        test = report.nodeid.partition("[")[0]
        for key, name in report.user_properties:
            if key == "scenario":
                seen = self.tests.setdefault(str(name), {})
                if seen.get(test, "passed") == "passed":
                    seen[test] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the page; a case that is not shown fails the run."""
        self.is_whole = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not self.is_whole or session.config.option.collectonly:
            return
        self.target.write_text(table(self.cases, self.tests), "utf-8")
        if self.wrong and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def wrong(self) -> dict[str, str]:
        """Cases whose outcome is not shown to be right, and are not open."""
        verdicts = {name: verdict(case, self.tests.get(name, {})) for name, case in self.cases.items()}
        return {name: result for name, result in verdicts.items() if result not in (RIGHT, NOT_YET)}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what a person has to look at."""
        if not self.is_whole:
            return
        terminalreporter.section("scenarios")
        for name, result in self.wrong.items():
            terminalreporter.line(f"{name} {result.strip('*')}: {self.cases[name].right}")
        for case in self.cases.values():
            if case.open:
                terminalreporter.line(f"{case.name} {NOT_YET}: {case.open}")
        num_open = sum(bool(case.open) for case in self.cases.values())
        num_right = len(self.cases) - len(self.wrong) - num_open
        terminalreporter.line(f"{num_right} of {len(self.cases)} cases right, {num_open} open; table: {self.target}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the table goes."""
    parser.addoption("--scenario-table", metavar="FILE", default=None, help="write the table of reported cases")


def pytest_configure(config: pytest.Config) -> None:
    """Without the option the plugin does nothing."""
    target = config.getoption("--scenario-table")
    if target:
        config.pluginmanager.register(ScenarioTable(Path(target)), "scenario-table")
