"""How many checkpoints are new: what Airflow accepted before is not, what it never judged or refused is."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.core.lineage import AttemptRecords, ExperimentFacts
from airflow_provider.operators.collecting import project_results
from tests.support.records import NOW, attempt_records, collected, entry, outcome, owner


def attempt(number: int, count: int, *, generation: int = 1, **changes: Any) -> AttemptRecords:
    recorded = tuple(entry(f"attempts/{number:06d}/c{n}", n) for n in range(count))
    return attempt_records(number, generation=generation, recorded=recorded, **changes)


def new(*attempts: AttemptRecords) -> int:
    published = project_results(ExperimentFacts("s3://b/e", (owner(1),), attempts), now=NOW)
    assert published.result["new_checkpoints"] == published.new_checkpoints
    assert published.summary.startswith(f"{published.new_checkpoints} new checkpoints in ")
    return published.new_checkpoints


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        ({"outcome": outcome(), "collected": collected(True)}, 2),
        ({"outcome": outcome(), "collected": collected(False)}, 5),
        ({"outcome": outcome(), "collected": collected(None)}, 5),
        ({"outcome": outcome(), "collected": None}, 5),
        ({"collected": collected(True, outcome=outcome())}, 2),
        ({"collected": collected(None, outcome=outcome())}, 5),
        ({"outcome": outcome("failed")}, 5),
    ],
)
def test_only_an_accepted_success_ends_the_count(earlier: dict[str, Any], expected: int) -> None:
    """A success whose Airflow died before it was judged is carried over: with nothing new it would be refused."""
    assert new(attempt(1, 3, **earlier), attempt(2, 2, outcome=outcome())) == expected


def test_the_count_ends_at_the_newest_accepted_one() -> None:
    accepted = {"outcome": outcome(), "collected": collected(True)}
    assert new(attempt(1, 4, **accepted), attempt(2, 3), attempt(3, 2, **accepted), attempt(4, 1), attempt(5, 1)) == 2


def test_the_newest_attempt_counts_although_it_was_accepted() -> None:
    """Publishing again says the same numbers."""
    assert new(attempt(1, 3), attempt(2, 2, outcome=outcome(), collected=collected(True))) == 5


def test_an_older_generation_is_another_training() -> None:
    assert new(attempt(1, 3), attempt(1, 2, generation=2)) == 2
