"""Links: visible while the task waits, so they read what the operator pushed right after it submitted."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.links.ray_train import ExperimentLink, RayJobLink, experiment_url, job_url


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
