"""The lineage page on a real API server: what a reader of the DAG gets, and that others get nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import httpx
import pytest

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.storage.object_store import open_object_store
from tests.stack.airflow_client import AirflowClient
from tests.stack.services import Stack
from tests.support.lineage_page import facts
from tests.support.stored_experiment import write_experiment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
URI = "s3://models/lineage-page/x"


@pytest.fixture(scope="module")
def key(stack: Stack, airflow: AirflowClient) -> TaskInstanceKey:
    """A task that trained nothing, with an experiment in the bucket that is its own, recorded as the operator does."""
    run_id = airflow.run_dag("recorded")
    airflow.wait_for_dag_run("recorded", run_id)
    key = TaskInstanceKey("recorded", run_id, "every_state")
    ids = {"dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id}
    found = facts()
    owners = tuple(owner.model_copy(update=ids) for owner in found.owners)
    write_experiment(open_object_store(URI, client_factory=stack.s3.client), replace(found, uri=URI, owners=owners))
    keep(airflow, key, URI)
    return key


def keep(airflow: AirflowClient, key: TaskInstanceKey, uri: str) -> None:
    """What the operator keeps in the task's state store."""
    path = f"/dags/{key.dag_id}/dagRuns/{key.run_id}/taskInstances/{key.task_id}/state-store/ray_train_job"
    value = {"experiment": uri, "conn_id": "ray_default", "aws_conn_id": "aws_default"}
    airflow.request("PUT", path, json={"value": value})


def test_a_reader_gets_the_page_and_its_facts_and_nobody_else_does(
    stack: Stack, airflow: AirflowClient, key: TaskInstanceKey
) -> None:
    query: dict[str, Any] = {"dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id}
    with httpx.Client(base_url=f"{stack.airflow.url}/ray-train", trust_env=False, timeout=60) as http:
        reader = {"Authorization": f"Bearer {airflow.token()}"}
        found = http.get("/api/lineage", params=query, headers=reader)
        assert found.status_code == 200, found.text
        assert found.json()["problem"] is None
        assert [a["ref"] for a in found.json()["attempts"]] == ["g1/a2", "g1/a1"]
        assert {c["state"] for c in found.json()["checkpoints"]} == {"committed", "pruned", "quarantined"}
        again = http.get("/api/lineage", params=query, headers=reader | {"If-None-Match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")

        http.cookies.set("_token", airflow.token())  # as the frame in Airflow's UI comes
        page = http.get("/lineage", params=query | {"map_index": "{MAP_INDEX}"})
        assert page.status_code == 200
        assert "node 3 died at step 1200" in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for address in re.findall(r'(?:src|href)="(static/[^"]+)"', page.text):
            assert http.get(f"/{address}").status_code == 200
        assert http.get("/experiments").text.count(key.task_id) >= 1
        for secret in (stack.s3.secret_key, stack.s3.access_key, stack.ray.token):
            assert secret not in page.text + found.text

        http.cookies.clear()
        assert http.get("/api/lineage", params=query).status_code == 401
        with stack.airflow.client_of(stack.airflow.visitor) as visitor:
            stranger = {"Authorization": f"Bearer {visitor.token()}"}
        for path in ("/lineage", "/api/lineage", "/run"):
            refused = http.get(path, params=query, headers=stranger)
            assert (refused.status_code, URI in refused.text) == (403, False), path
        assert key.task_id not in http.get("/experiments", headers=stranger).text


def test_the_tabs_are_there(airflow: AirflowClient) -> None:
    """Airflow leaves out a view whose route another one has."""
    (plugin,) = [p for p in airflow.request("GET", "/plugins")["plugins"] if p["name"] == "ray_train"]
    assert [v["destination"] for v in plugin["external_views"]] == ["task_instance", "dag_run", "nav"]
    assert [app["url_prefix"] for app in plugin["fastapi_apps"]] == ["/ray-train"]


def test_another_tasks_experiment_and_a_missing_bucket_give_a_word_and_no_lineage(
    stack: Stack, airflow: AirflowClient, key: TaskInstanceKey
) -> None:
    run_id = airflow.run_dag(key.dag_id)
    airflow.wait_for_dag_run(key.dag_id, run_id)
    other = TaskInstanceKey(key.dag_id, run_id, key.task_id)
    query: dict[str, Any] = {"dag_id": other.dag_id, "run_id": other.run_id, "task_id": other.task_id}
    headers = {"Authorization": f"Bearer {airflow.token()}"}
    for uri, said in ((URI, "belongs to another task instance"), ("s3://no-such-bucket-here/x", "bucket")):
        keep(airflow, other, uri)
        answer = httpx.get(
            f"{stack.airflow.url}/ray-train/api/lineage", params=query, headers=headers, trust_env=False, timeout=60
        )
        assert answer.status_code == 503
        assert said in answer.json()["problem"]["what"]
        assert "node 3 died" not in answer.text
