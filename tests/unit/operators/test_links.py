"""Links: visible while the task waits, so they read what the operator pushed right after it submitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.decorators.ray_train import RayTrainDecoratedOperator
from airflow_provider.links.ray_train import ExperimentLink, LineageLink, RayJobLink, experiment_url, job_url
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.plugin import RayTrainPlugin


def test_the_jobs_page_is_on_the_dashboard_it_was_sent_to() -> None:
    assert job_url("https://gw.example/ray", "af-d-1") == "https://gw.example/ray/#/jobs/af-d-1"
    assert job_url("http://h:8265", "a/b") == "http://h:8265/#/jobs/a%2Fb"


@pytest.mark.parametrize(
    ("uri", "endpoint", "url"),
    [
        ("s3://models/a b/c", None, "https://s3.console.aws.amazon.com/s3/buckets/models?prefix=a%20b/c/"),
        ("s3://models/x y", "http://seaweed:8333/", "http://seaweed:8333/models/x%20y/"),
        ("/shared/x", None, "/shared/x"),
    ],
)
def test_a_folder_has_a_page_only_where_we_know_one(uri: str, endpoint: str | None, url: str) -> None:
    assert experiment_url(uri, endpoint_url=endpoint) == url


@pytest.mark.parametrize(("link", "key"), [(RayJobLink(), "ray_job_url"), (ExperimentLink(), "experiment_url")])
def test_a_link_gives_what_was_pushed_and_nothing_before(link: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow overwrites an XCom under the link's own key when the task defers."""
    pushed = {"ray_job_url": "http://job", "experiment_url": "s3://x"}
    monkeypatch.setattr(
        "airflow.sdk.execution_time.xcom.XCom.get_value", lambda *, key, ti_key: pushed.get(key) if ti_key else None
    )
    assert link.get_link(None, ti_key="ti") == pushed[key]
    assert link.get_link(None, ti_key=None) == ""
    assert link.xcom_key != key


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        (None, ""),
        ("", ""),
        ("https://airflow.example/team", "https://airflow.example/team/"),
        ("http://h/", "http://h/"),
    ],
)
def test_the_lineage_link_leads_to_the_tab(base_url: str | None, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a leading slash, so that the UI's own base address is kept where Airflow is served below a path."""
    monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)
    if base_url is not None:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    key = TaskInstanceKey("d", "manual__2026-11-29T00:00:00+00:00", "group.train")
    route = next(v["url_route"] for v in RayTrainPlugin.external_views if v["destination"] == "task_instance")
    task = f"{root}dags/d/runs/manual__2026-11-29T00%3A00%3A00%2B00%3A00/tasks/group.train"
    link: Any = LineageLink()
    assert link.get_link(None, ti_key=key) == f"{task}/plugin/{route}"
    assert link.get_link(None, ti_key=replace(key, map_index=3)) == f"{task}/mapped/3/plugin/{route}"


def test_both_ways_to_write_a_training_have_all_links() -> None:
    for operator in (RayTrainOperator, RayTrainDecoratedOperator):
        assert {link.name for link in operator.operator_extra_links} == {"Ray job", "Experiment", "Lineage"}
