"""What the person on call does by mouse to a training that failed for good, or must end now: the lineage page follows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.plugin.view.checkpoints import label_of
from tests.browser.test_lineage_page import lineage, serious_issues, shoot, shoot_frame, tab_address
from tests.stack.airflow_client import AirflowClient
from tests.stack.process import wait_until
from tests.stack.services import Stack
from tests.support.idle_training import live_jobs, owners, wait_for_no_job
from tests.support.training_run import TrainingRun, driver_processes, worker_processes

if TYPE_CHECKING:
    from playwright.sync_api import FrameLocator, Page

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
LogIn = Callable[..., "Page"]
ERROR = "the batch has the wrong shape"
LIMIT_MS = 240_000


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """What the training waits for: it does not exist yet."""
    return tmp_path / "gate"


def begin(stack: Stack, airflow: AirflowClient, page: Page, gate: Path) -> TrainingRun:
    """A training that has committed its first checkpoint and idles, with its lineage page open."""
    run = TrainingRun(stack, airflow, "idle_deferred", airflow.run_dag("idle_deferred", conf={"gate": str(gate)}))
    airflow.wait_for_task(*run.key, states={"deferred"})
    page.goto(tab_address(TaskInstanceKey(*run.key)))
    lineage(page).locator("#part-checkpoints tbody tr").first.wait_for(timeout=LIMIT_MS)
    return run


def open_gate(gate: Path, error: str = "") -> None:
    """Let the training go on, or raise. The file is there at once with all it says."""
    written = gate.with_suffix(".new")
    written.write_text(error)
    written.rename(gate)


def wait_for_state(frame: FrameLocator, state: str) -> None:
    """Wait until the page's title row tells this state of the task. Nobody reloads the page."""
    badge = frame.locator("#part-summary header .badge", has_text=re.compile(f"^{state}$"))
    badge.wait_for(timeout=LIMIT_MS)


def told(frame: FrameLocator, table: int) -> list[str]:
    """The rows below "Attempts and failures": table 0 has the attempts, the newest first; table 1 the failures."""
    rows = frame.locator("#part-attempts table").nth(table).locator("tbody tr")
    return [" ".join(row.inner_text().split()) for row in rows.all()]


def confirm(page: Page, shot: str) -> None:
    """Airflow's dialog of what is about to be done."""
    dialog = page.get_by_role("dialog")
    button = dialog.get_by_role("button", name=re.compile("confirm", re.IGNORECASE)).last
    button.wait_for()
    shoot(page, shot)
    button.click()
    dialog.wait_for(state="detached")


def clear(page: Page, shot: str) -> None:
    """Airflow's own button, which is called by its key."""
    page.get_by_role("button", name=re.compile("to clear|clear task instance", re.IGNORECASE)).first.click()
    confirm(page, shot)


def mark_failed(page: Page, shot: str) -> None:
    """Airflow's own menu."""
    page.get_by_role("button", name=re.compile("mark task instance as", re.IGNORECASE)).first.click()
    page.get_by_role("menuitem").filter(has_text=re.compile("failed", re.IGNORECASE)).click()
    confirm(page, shot)


def test_a_training_that_failed_for_good_is_retried_by_mouse(
    log_in: LogIn, stack: Stack, airflow: AirflowClient, gate: Path
) -> None:
    """G6, G9: its code is mended, a click on Clear, and it goes on from its last checkpoint."""
    page = log_in()
    run = begin(stack, airflow, page, gate)
    frame = lineage(page)
    open_gate(gate, ERROR)
    wait_for_state(frame, "failed")
    gate.unlink()
    assert run.task()["try_number"] == 1, "Airflow's retries are no cure for an error in the code"
    frame.locator("#part-attempts tbody tr").filter(has_text=re.compile(r"g1/a1\s+failed")).wait_for()
    shoot(page, "mouse-failed")
    shoot_frame(page, "mouse-failed-whole")
    [ended, *restarts] = told(frame, 1)
    assert re.search(rf"g1/a1 user .*{ERROR}.* the attempt ended: failed$", ended), ended
    assert restarts, "each worker that failed has its row too"
    assert all(ERROR in row for row in restarts), restarts
    assert serious_issues(page) == []

    clear(page, "mouse-clear-dialog")
    kept = run.lineage().checkpoints[0].name
    restored = f"restored from {label_of(kept)}"
    second = frame.locator("#part-attempts tbody tr").filter(has_text=re.compile(rf"g1/a2\s.*{restored}", re.DOTALL))
    second.wait_for(timeout=LIMIT_MS)
    assert re.search(r"^g1/a1 failed ", told(frame, 0)[1])
    frame.locator("#part-summary .badge", has_text=re.compile("^training$")).wait_for(timeout=LIMIT_MS)
    shoot(page, "mouse-training-again")
    open_gate(gate)
    wait_for_state(frame, "success")
    frame.locator("#part-checkpoints tbody tr").nth(1).wait_for()
    shoot(page, "mouse-success")
    shoot_frame(page, "mouse-success-whole")
    first, last = told(frame, 0)[::-1]
    assert re.search(r"^g1/a1 failed 1 from the start", first), first
    assert re.search(rf"^g1/a2 success 2 {restored}", last), last
    assert told(frame, 1) == [ended, *restarts], "what failed once stays told"
    assert [frame.locator(f"#part-timeline li.{kind}").count() for kind in ("try", "attempt")] == [2, 2]
    assert [c.metrics["epoch"] for c in run.lineage().checkpoints] == [0, 1], "no epoch is trained twice"
    wait_for_no_job(run)


def test_a_running_training_is_marked_failed_by_mouse(
    log_in: LogIn, stack: Stack, airflow: AirflowClient, gate: Path
) -> None:
    """G4: its job ends with it, for good, and the page says that a person ended it."""
    page = log_in(theme="dark")
    run = begin(stack, airflow, page, gate)
    frame = lineage(page)
    assert len(live_jobs(run)) == 1
    assert driver_processes(stack.ray)
    mark_failed(page, "mouse-mark-dialog")
    wait_for_state(frame, "failed")
    shoot(page, "mouse-marked-at-once")
    wait_for_no_job(run)
    frame.locator("#part-summary .badge", has_text=re.compile("^cancelled$")).wait_for(timeout=60_000)
    shoot(page, "mouse-marked")
    shoot_frame(page, "mouse-marked-whole")
    assert re.search(r"^g1/a1 cancelled 1 from the start", told(frame, 0)[0])
    [stopped] = told(frame, 1)
    assert re.search(r"g1/a1 stopped .*for good: the task was marked failed the attempt ended: cancelled$", stopped), (
        stopped
    )
    assert serious_issues(page) == []
    open_gate(gate)
    wait_until(
        lambda: not driver_processes(stack.ray) + worker_processes(stack.ray),
        timeout_s=60,
        what="the end of every process of the training",
    )
    assert live_jobs(run) == []
    assert owners(run)[max(owners(run))].created_by == "listener"
    assert [c.metrics["epoch"] for c in run.lineage().checkpoints] == [0], "nobody trained on"
    assert (run.task()["state"], run.task()["try_number"]) == ("failed", 1)
