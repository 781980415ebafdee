"""Who gets a page, and that others get nothing: Airflow's own rights decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_provider.core.identity import TaskInstanceKey
from tests.support.lineage_page import JOB, KEY, URI, Tables
from tests.unit.plugin.conftest import Bucket

QUERY: dict[str, Any] = {"dag_id": KEY.dag_id, "run_id": KEY.run_id, "task_id": KEY.task_id}
PAGES = ["/lineage", "/api/lineage", "/run", "/experiments"]


@pytest.mark.parametrize("path", PAGES)
def test_without_a_token_nothing_is_said(client: TestClient, tables: Tables, path: str) -> None:
    tables.add_task()
    tables.keep()
    for query in (QUERY, {}):
        answer = client.get(path, params=query)
        assert answer.status_code == 401
        assert URI not in answer.text


@pytest.mark.parametrize("path", PAGES)
def test_a_wrong_token_is_refused(reader: TestClient, bucket: Bucket, path: str) -> None:
    reader.cookies.clear()
    answer = reader.get(path, params=QUERY, headers={"Authorization": "Bearer eyJhbGciOiJub25lIn0.e30."})
    assert answer.status_code == 403
    assert bucket.asked == []


@pytest.mark.parametrize("path", ["/lineage", "/api/lineage", "/run"])
@pytest.mark.parametrize("role", ["reader of e", "reader of d, no xcom", "reader of d, no task_instance", "nobody"])
def test_without_the_right_to_the_dag_and_its_xcoms_nothing_is_said(
    reader: TestClient, token: Callable[[str], str], bucket: Bucket, path: str, role: str
) -> None:
    """The lineage is what the XComs hold."""
    reader.cookies.set("_token", token(role))
    answer = reader.get(path, params=QUERY)
    assert answer.status_code == 403
    assert URI not in answer.text
    assert bucket.asked == []


def test_a_bearer_token_does_as_well(reader: TestClient, token: Callable[[str], str]) -> None:
    reader.cookies.clear()
    headers = {"Authorization": f"Bearer {token('reader of d')}"}
    assert reader.get("/api/lineage", params=QUERY, headers=headers).status_code == 200


def test_the_checked_dag_is_the_shown_one(reader: TestClient, tables: Tables, token: Callable[[str], str]) -> None:
    """Two ids in one address must not be read by two rules."""
    other = TaskInstanceKey("e", "r", "train")
    tables.add_task(other)
    tables.keep(other, JOB | {"experiment": "s3://models/secret"})
    for query in (
        [("dag_id", "e"), ("dag_id", "d"), ("run_id", "r"), ("task_id", "train")],
        [("dag_id", "d"), ("dag_id", "e"), ("run_id", "r"), ("task_id", "train")],
        [("dag_id", "~"), ("run_id", "r"), ("task_id", "train")],
    ):
        answer = reader.get("/api/lineage", params=query)
        assert answer.status_code in (403, 404)
        assert "secret" not in answer.text


def test_the_list_has_the_readable_dags_only(reader: TestClient, tables: Tables, token: Callable[[str], str]) -> None:
    other = TaskInstanceKey("e", "r", "hidden-task")
    tables.add_task(other)
    tables.keep(other, JOB | {"experiment": "s3://models/secret"})
    text = reader.get("/experiments").text
    assert URI in text
    assert "hidden-task" not in text
    reader.cookies.set("_token", token("reader of e, reader of d"))
    assert "hidden-task" in reader.get("/experiments").text


@pytest.mark.parametrize("lacking", ["no xcom", "no task_instance"])
def test_the_list_tells_nothing_that_the_page_would_refuse(
    reader: TestClient, token: Callable[[str], str], lacking: str
) -> None:
    """The right to read a DAG alone is not the right to its task instances and their XComs."""
    reader.cookies.set("_token", token(f"reader of d, {lacking}"))
    text = reader.get("/experiments").text
    assert URI not in text
    assert KEY.task_id + "</a>" not in text


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
@pytest.mark.parametrize("path", PAGES)
def test_nothing_can_be_changed(reader: TestClient, path: str, method: str) -> None:
    assert getattr(reader, method)(path, params=QUERY).status_code == 405
