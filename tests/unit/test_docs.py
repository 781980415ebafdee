"""The documentation names tests, files, make targets, parameters and defaults: what it names exists and is as it says."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

from airflow_provider.operators.budgets import budget_table
from airflow_provider.operators.ray_train import RayTrainOperator
from tests.support.training_try import request as training_request

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
GUARANTEES = [f"G{number}" for number in range(1, 13)]
_NAMED_TEST = re.compile(r"\b(tests/[\w/.-]+\.py)::(\w+)")
_TEST_LINK = re.compile(r"\[(test_\w+)\]\(([^)#]+\.py)\)")
_TEST_PATH = re.compile(r"\b(tests/[\w/.-]*\w)")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PYTHON_FILE = re.compile(r"`([\w/]+\.py)`")
_DEFAULT = re.compile(r"^\| `(\w+)` \| `([\w.]+)` \|", re.MULTILINE)


@cache
def defined_tests(path: Path) -> frozenset[str]:
    """Names of the test functions in a file."""
    functions = (
        n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def missing_tests(text: str, *, folder: Path) -> list[str]:
    """Tests that a page names by path or by link, and that are not there."""
    named = [(ROOT / path, name) for path, name in _NAMED_TEST.findall(text)]
    named += [((folder / path).resolve(), name) for name, path in _TEST_LINK.findall(text)]
    return [f"{path}::{name}" for path, name in named if not path.is_file() or name not in defined_tests(path)]


def anchors(page: Path) -> set[str]:
    """What a link to a heading of a page may say."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, *, folder: Path) -> list[str]:
    """Links to files or headings of this repository that lead nowhere."""
    broken = []
    for link in _LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = folder / path
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            broken.append(link)
    return broken


def sections() -> dict[str, str]:
    """The guarantees' sections by their number."""
    parts = re.split(r"^## (?=G\d+ )", (DOCS / "guarantees.md").read_text(), flags=re.MULTILINE)[1:]
    return {part.split(maxsplit=1)[0]: part for part in parts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    assert missing_tests(text, folder=page.parent) == []
    assert broken_links(text, folder=page.parent) == []
    assert [path for path in _TEST_PATH.findall(text) if not (ROOT / path).exists()] == []


def test_each_guarantee_is_there_once_with_limits_and_tests() -> None:
    found = sections()
    assert list(found) == GUARANTEES
    for number, text in found.items():
        assert _NAMED_TEST.search(text), f"{number} names no test"
        for part in ("**Promise.**", "**How.**", "**Limits.**"):
            assert text.count(part) == 1, (number, part)


def test_a_guarantee_is_shown_on_real_processes_or_says_that_it_is_not() -> None:
    """Whoever reads the page must not take a unit test for a proof on the real thing."""
    for number, text in sections().items():
        is_real = any(path.startswith("tests/e2e/") for path, _ in _NAMED_TEST.findall(text))
        assert is_real is not ("\nShown by unit tests only" in text), number


def test_files_that_the_model_follows_exist() -> None:
    files = [
        str(path.relative_to(ROOT)) for part in ("airflow_provider", "tests") for path in (ROOT / part).rglob("*.py")
    ]
    named = set(_PYTHON_FILE.findall((DOCS / "protocol-model.md").read_text()))
    assert named
    assert [name for name in sorted(named) if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []


def test_budgets_are_printed_as_the_page_says() -> None:
    retries = inspect.signature(RayTrainOperator.__init__).parameters["retries"].default
    assert f"```\n{budget_table(training_request(), retries=retries)}\n```" in (DOCS / "budgets.md").read_text()


def test_defaults_of_times_are_the_operators() -> None:
    known = inspect.signature(RayTrainOperator.__init__).parameters
    said = dict(_DEFAULT.findall((DOCS / "budgets.md").read_text()))
    assert set(said) == {n for n in known if n.endswith(("timeout_s", "_after_s"))}
    assert said == {name: repr(known[name].default) for name in said}


def test_make_targets_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)", (ROOT / "README.md").read_text()))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named >= {"test", "demo", "scenarios", "model", "chaos"}
    assert named <= targets


def test_the_checks_find_what_is_wrong() -> None:
    """A check that finds nothing anywhere would pass on any page."""
    text = (
        "`tests/unit/test_docs.py::test_gone` `tests/gone.py::test_x` [test_gone](test_docs.py) [a](gone.md) [b](#gone)"
    )
    assert len(missing_tests(text, folder=ROOT / "tests/unit")) == 3
    assert broken_links("[a](gone.md) [b](README.md#gone) [c](README.md#see-it)", folder=ROOT) == [
        "gone.md",
        "README.md#gone",
    ]
