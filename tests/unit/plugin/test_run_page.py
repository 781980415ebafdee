"""The tab of a DAG run: its trainings, and the goodput of all of them together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_provider.core.goodput import Cause, TimeSpent, goodput_xcom
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.plugin import run_goodput
from airflow_provider.plugin.run_goodput import spent_from_xcom
from tests.support.lineage_page import KEY, Tables

QUERY = {"dag_id": KEY.dag_id, "run_id": KEY.run_id}


def told(wall_s: float, *, rework_s: float) -> dict[str, Any]:
    lost = dict.fromkeys(Cause, 0.0) | {Cause.REWORK: rework_s}
    return {"goodput": goodput_xcom(TimeSpent(wall_s, wall_s - rework_s, lost))}


def sweep(tables: Tables, count: int) -> list[TaskInstanceKey]:
    keys = [TaskInstanceKey(KEY.dag_id, KEY.run_id, "sweep", i) for i in range(count)]
    for key in keys:
        tables.add_task(key)
        tables.keep(key)
    return keys


def test_the_run_shows_the_goodput_of_its_trainings_together(reader: TestClient, tables: Tables) -> None:
    first, second, third, running, odd = sweep(tables, 5)
    tables.push("return_value", json.dumps(told(100.0, rework_s=0.0)), first)
    tables.push("return_value", told(100.0, rework_s=50.0), second)
    tables.push("ray_train_failure", told(200.0, rework_s=150.0), third)
    tables.push("return_value", {"goodput": {"wall_s": "much"}}, odd)
    other = TaskInstanceKey(KEY.dag_id, KEY.run_id, "no_training")
    tables.add_task(other)
    tables.push("return_value", told(9_000.0, rework_s=0.0), other)
    text = reader.get("/run", params=QUERY).text
    assert "<strong>50%</strong>" in text, "200 of 400 seconds"
    assert "of 6 min 40 s ended in the result" in text
    assert "3 of 6 trainings together" in text
    assert "rework: 3 min 20 s (50.0 %)" in text
    assert f"sweep[{running.map_index}]" in text


def test_a_result_counts_before_a_failure_of_the_same_training(reader: TestClient, tables: Tables) -> None:
    (only,) = sweep(tables, 1)
    tables.push("ray_train_failure", told(100.0, rework_s=100.0), only)
    tables.push("return_value", told(100.0, rework_s=0.0), only)
    assert "<strong>100%</strong>" in reader.get("/run", params=QUERY).text


def test_while_nobody_has_told_there_is_no_goodput(reader: TestClient, tables: Tables) -> None:
    sweep(tables, 2)
    assert "Goodput" not in reader.get("/run", params=QUERY).text
    assert "Goodput" not in reader.get("/experiments").text


def test_an_unchanged_poll_reads_no_xcoms(reader: TestClient, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results have up to 48 kB each, and everybody who looks at the run asks every few seconds."""
    read: list[str] = []
    monkeypatch.setattr(run_goodput, "from_json", lambda value: read.append("xcom") or value)
    first, second = sweep(tables, 2)
    tables.push("return_value", told(100.0, rework_s=0.0), first)
    tables.push("return_value", told(100.0, rework_s=20.0), second)
    shown = reader.get("/run", params=QUERY)
    assert (len(read), "<strong>90%</strong>" in shown.text) == (2, True)
    again = reader.get("/run", params=QUERY, headers={"If-None-Match": shown.headers["etag"]})
    assert again.status_code == 304
    assert reader.get("/run", params=QUERY).content == shown.content, "a second viewer"
    assert len(read) == 2
    tables.push("return_value", told(100.0, rework_s=60.0), second)
    assert "<strong>70%</strong>" in reader.get("/run", params=QUERY).text
    tables.set_state(first, "running")
    assert "running" in reader.get("/run", params=QUERY).text


@pytest.mark.parametrize(
    "value",
    [
        None,
        "x",
        {},
        {"goodput": None},
        {"goodput": {"wall_s": 1, "productive_s": 1}},
        {"goodput": {"wall_s": float("nan"), "productive_s": 1, "lost_s": {}}},
        {"goodput": {"wall_s": 1, "productive_s": -1, "lost_s": {}}},
        {"goodput": {"wall_s": True, "productive_s": 1, "lost_s": {}}},
        {"goodput": {"wall_s": 1, "productive_s": 1, "lost_s": {"rework": "x"}}},
        {"goodput": {"wall_s": 10**400, "productive_s": 1, "lost_s": {}}},
    ],
)
def test_what_does_not_add_up_is_nothing(value: Any) -> None:
    assert spent_from_xcom(value) is None


def test_what_was_pushed_is_what_is_read() -> None:
    spent = TimeSpent(10.0, 4.0, dict.fromkeys(Cause, 0.0) | {Cause.DETECTION: 6.0})
    assert spent_from_xcom({"goodput": goodput_xcom(spent)}) == spent
