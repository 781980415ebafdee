"""Answers that are kept: exactly as long as nothing that they were made of has changed, and within bounds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider.core.records import AliveRecord, Phase
from airflow_provider.plugin.answers import Answer, Answers, facts_key
from airflow_provider.plugin.rendering import Addresses, Shown, key_query, lineage_page
from airflow_provider.plugin.view.facts import Problem, Recorded, Seen
from airflow_provider.plugin.view.page import Choice, build_page
from tests.support.lineage_page import facts, recorded, seen
from tests.support.records import NOW


def html(task: Recorded, found: Seen, problem: Problem | None) -> str:
    link = Addresses("lineage", key_query(task.key))
    return lineage_page(Shown(task, found, build_page(task, found, Choice()), problem), Choice(), link)


def open_facts() -> Any:
    first, second = facts().attempts
    alive = AliveRecord(run_uid="u", phase=Phase.TRAINING, phase_since=NOW, written_at=NOW)
    return replace(facts(), attempts=(first, replace(second, outcome=None, alive=alive, alive_age_s=1.0)))


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("state", ["success", "up_for_retry"])
@pytest.mark.parametrize("problem", [None, Problem("No answer")])
@pytest.mark.parametrize("later_s", [0.5, 60.0])
def test_the_same_key_is_the_same_page(is_open: bool, state: str, problem: Problem | None, later_s: float) -> None:
    """What a page is made of may be read again and again: only a reading that shows is another page."""
    task = recorded(state=state)
    first = seen(open_facts() if is_open else facts())
    again = replace(first, read_at=first.read_at + timedelta(seconds=later_s))
    assert again.version == first.version
    is_same_key = facts_key(task, first, problem) == facts_key(task, again, problem)
    is_same_page = html(task, first, problem) == html(task, again, problem)
    assert is_same_key <= is_same_page
    if problem is None and (later_s < 1 or not (is_open or task.is_live)):
        assert is_same_key, "else every poll would make the page of a training that is over"


@pytest.mark.parametrize(
    "change",
    [
        {"state": "failed"},
        {"tries": ()},
        {"job_url": None},
        {"experiment_url": "https://s3/x"},
        {"experiment": "s3://models/y"},
    ],
)
def test_what_airflow_records_counts(change: dict[str, Any]) -> None:
    found = seen()
    assert facts_key(recorded(), found, None) != facts_key(recorded(**change), found, None)


def test_an_error_is_not_kept() -> None:
    answers = Answers()

    def fail() -> Answer:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        answers.get("k", fail)
    assert answers.get("k", lambda: Answer.of("fine")).body == b"fine"


def test_answers_have_a_limit_in_bytes() -> None:
    answers = Answers(limit=100_000)
    made: list[int] = []

    def get(number: int, size: int = 30_000) -> Answer:
        return answers.get(number, lambda: (made.append(number), Answer.of("x" * size))[1])

    for number in (1, 2, 3, 1, 4):
        get(number)
    assert made == [1, 2, 3, 4]
    get(1)
    assert made == [1, 2, 3, 4], "asked for lately"
    get(2)
    assert made == [1, 2, 3, 4, 2], "the one that nobody asked for was dropped"
    get(5, 500_000)
    get(5)
    assert made[5:] == [5], "the newest is kept whatever its size"


def test_keys_count_too() -> None:
    """An answer of few bytes is kept under what the reader chose, which may be long: choices alone must fill no memory."""
    answers = Answers(limit=100_000)
    made: list[int] = []

    def get(number: int) -> None:
        key = ("json", b"digest", (("metric", f"{number}" + "x" * 1_000),))
        answers.get(key, lambda: (made.append(number), Answer.of("{}"))[1])

    for number in range(100):
        get(number)
    get(0)
    assert made[100:] == [0], "the first must be gone: a hundred such keys are more than the limit"


class DroppedWhileMade(Answers):
    """Another thread drops the answer `slow` between its making and its counting."""

    def _count(self, key: object, slot: Any) -> None:
        if key == "slow":
            self.get("other", lambda: Answer.of("x" * 105_000))
        super()._count(key, slot)


def test_an_answer_that_is_dropped_before_it_was_counted_makes_no_room() -> None:
    answers = DroppedWhileMade(limit=100_000)
    answers.get("slow", lambda: Answer.of("x" * 80_000))
    answers.get("third", lambda: Answer.of("x" * 50_000))
    made: list[str] = []
    answers.get("other", lambda: (made.append("other"), Answer.of("x"))[1])
    assert made == ["other"], "it and the third are more than the limit"
