"""The order of a task's DAG runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.run_index import RunRecord, earlier_runs, index_uri, run_key

NIGHT = datetime(2026, 11, 29, 3, tzinfo=timezone.utc)


def run(night: int, run_id: str = "", **changes: Any) -> RunRecord:
    at = NIGHT + timedelta(days=night)
    known: dict[str, Any] = {"run_after": at, "experiment": f"s3://m/{run_id or night}", "created_at": NIGHT}
    return RunRecord(dag_id="d", run_id=run_id or f"run-{night}", task_id="t", **{**known, **changes})


def test_previous_means_an_earlier_run_after_whenever_it_was_written() -> None:
    """Catch-up and backfills may run in any order; a run of the same moment is not before another."""
    keys = [run_key(run(n)) for n in (3, 1, 2)] + [run_key(run(2, "twin")), "x.json", "records/"]
    assert earlier_runs(keys, run_after=NIGHT + timedelta(days=2)) == [run_key(run(1))]
    assert earlier_runs(keys, run_after=NIGHT + timedelta(days=3))[-1] == run_key(run(1))
    assert len(earlier_runs(keys, run_after=NIGHT + timedelta(days=3))) == 3
    assert earlier_runs(keys, run_after=NIGHT + timedelta(days=1)) == []


def test_times_of_other_zones_and_microseconds_keep_the_order() -> None:
    other = timezone(timedelta(hours=5))
    early = run(0, run_after=(NIGHT - timedelta(microseconds=1)).astimezone(other))
    assert earlier_runs([run_key(early)], run_after=NIGHT) == [run_key(early)]


def test_a_run_that_got_another_experiment_is_noted_anew() -> None:
    assert run_key(run(1)) != run_key(run(1, experiment="s3://m/other"))
    assert run_key(run(1)) == run_key(run(1, created_at=NIGHT + timedelta(days=9)))


@pytest.mark.parametrize(
    "other",
    [
        TaskInstanceKey("d", "r", "t", 1),
        TaskInstanceKey("d", "r", "t-0", -1),
        TaskInstanceKey("d:x", "r", "t"),
        TaskInstanceKey("d", "r", "t:x"),
    ],
)
def test_each_task_and_map_index_has_records_of_its_own(other: TaskInstanceKey) -> None:
    mine = {index_uri("s3://models/root", TaskInstanceKey("d", "r", "t", 0)), index_uri("s3://models/root", _twin())}
    assert index_uri("s3://models/root", other) not in mine
    assert len(mine) == 2


def _twin() -> TaskInstanceKey:
    return TaskInstanceKey("d-x", "r", "t-x")


def test_runs_share_the_records_of_their_task() -> None:
    one, two = TaskInstanceKey("d", "r1", "t"), TaskInstanceKey("d", "r2", "t")
    assert index_uri("/shared/", one) == index_uri("/shared", two)
