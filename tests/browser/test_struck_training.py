"""A training that was struck as in the chaos runs, found from its task in Airflow's UI: what the person on call sees, and where to go."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from airflow_provider.plugin.view.checkpoints import label_of
from tests.browser.test_lineage_page import TAB, lineage, serious_issues, shoot, shoot_frame
from tests.chaos.faults import Target
from tests.chaos.points import Point
from tests.chaos.run import ChaosRun
from tests.chaos.table import Pair
from tests.stack.airflow_client import AirflowClient
from tests.stack.services import Stack

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.training_run import TrainingRun

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
LogIn = Callable[..., "Page"]
EXTRA_LINK = "a[rel='noopener noreferrer']"
"""As Airflow's page of a task instance shows them; its tabs, one of which has the same name, are no such links."""


@pytest.fixture(scope="module", params=[Target.DRIVER, Target.TRAINING_WORKER], ids=lambda target: target.value)
def struck(request: pytest.FixtureRequest, stack: Stack, airflow: AirflowClient) -> tuple[Target, TrainingRun]:
    """Killed while it trains, at the very request that the chaos runs wait for; then it goes on to its end."""
    target: Target = request.param
    chaos = ChaosRun(stack, airflow, Pair(target, Point.TRAINING))
    report = chaos.execute({})  # its weights are the chaos runs' own matter
    assert "pids" in report.fault, "the fault did not fire"
    assert chaos.run.task()["state"] == "success", chaos.run.log()[-4000:]
    assert report.attempts == (2 if target is Target.DRIVER else 1)
    return target, chaos.run


def test_the_person_on_call_finds_what_happened(
    log_in: LogIn, stack: Stack, struck: tuple[Target, TrainingRun]
) -> None:
    target, run = struck
    word = target.value.replace(" ", "-")
    lineage_now, result = run.lineage(), run.xcom()
    page = log_in()
    page.goto(f"/dags/{run.dag_id}/runs/{quote(run.run_id, safe='')}/tasks/{run.task_id}/details")
    links = page.locator(EXTRA_LINK)
    links.filter(has_text="Lineage").wait_for()
    shoot(page, f"struck-{word}-links")
    found = {name: links.filter(has_text=re.compile(f"^{name}$")) for name in ("Ray job", "Experiment", "Lineage")}
    job_url = f"{stack.ray.shown_address}/#/jobs/{result['submission_id']}"
    assert found["Ray job"].get_attribute("href") == job_url
    where = found["Experiment"].get_attribute("href") or ""
    assert where.startswith(stack.s3.shown_url)
    assert where.rstrip("/").endswith(result["experiment"].removeprefix("s3://"))

    found["Lineage"].click()
    page.wait_for_url(re.compile(f"/tasks/{run.task_id}/plugin/{TAB}$"))
    frame = lineage(page)
    frame.get_by_role("heading", name="Timeline").wait_for()
    assert frame.locator("#part-summary header .badge").inner_text().lower() == "success"
    check_attempts(page, run, target)
    assert frame.locator("#part-summary").get_by_role("link", name="Ray dashboard").get_attribute("href") == job_url
    assert frame.locator("#part-summary").get_by_role("link", name="Bucket").get_attribute("href") == where
    shoot(page, f"struck-{word}")
    shoot_frame(page, f"struck-{word}-whole")
    assert serious_issues(page) == []
    assert re.search(r"goodput \d+%", frame.locator(".share-bar").get_attribute("aria-label") or "")
    assert frame.locator("#part-chart circle").count() == sum(1 for c in lineage_now.checkpoints if c.metrics)

    frame.locator("#part-summary").get_by_role("link", name="Log of try 1").click()
    page.wait_for_url("**try_number=1")
    shoot(page, f"struck-{word}-log")


def check_attempts(page: Page, run: TrainingRun, target: Target) -> None:
    """Attempts, the failure with its kind and sentence, and what was restored after it."""
    frame = lineage(page)
    attempts, failures = frame.locator("#part-attempts table").all()[:2]
    told = [row.inner_text() for row in failures.locator("tbody tr").all()]
    first, *others = run.lineage().attempts
    if target is Target.TRAINING_WORKER:
        assert others == []
        assert first.num_restarts >= 1
        assert len(told) == first.num_restarts
        assert frame.locator("#part-timeline .m-restart").count() >= 1
    else:
        (second,) = others
        assert [one.inner_text() for one in attempts.locator("tbody th").all()] == ["g1/a2", "g1/a1"]
        assert first.failure_kind
        assert first.failure_reason
        (row,) = told
        assert first.failure_kind.replace("_", " ").lower() in row.lower()
        assert " ".join(first.failure_reason.split()) in " ".join(row.split())
        assert second.restored_from
        label = label_of(second.restored_from)
        restored = attempts.locator("tbody tr").first
        assert f"restored from {label}" in " ".join(restored.inner_text().split())
        assert frame.locator("#part-timeline li.attempt").count() == 2
        assert frame.locator("#part-timeline li.try").count() == 2
        assert frame.locator("#part-timeline .m-end").count() == 1
        # The first checkpoint of the second attempt names the restored one as its parent.
        rows = frame.locator("#part-checkpoints tbody tr").filter(has_text="g1/a2")
        assert f"restored from {label}" in " ".join(rows.last.inner_text().split())
