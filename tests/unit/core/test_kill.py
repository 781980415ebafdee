"""`on_kill` also runs when a worker is evicted: stopping then would throw away a healthy training."""

from __future__ import annotations

import pytest

from airflow_provider.core.failure import FailureKind
from airflow_provider.core.kill import decide_kill, decide_trigger_kill


def judge(task_state: str | None = "failed", *, is_owner: bool | None = True, timed_out: bool = False, on: bool = True):
    return decide_kill(task_state=task_state, is_owner=is_owner, is_timed_out=timed_out, is_enabled=on)


@pytest.mark.parametrize("state", ["failed", "success", "restarting", "removed", "skipped"])
def test_a_persons_wish_stops_the_job(state: str) -> None:
    verdict = judge(state)
    assert verdict.is_stop
    assert verdict.reason == f"stopping the job: the task is {state}"


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", "upstream_failed", "restarting", None])
def test_a_stop_says_whether_a_try_follows_it(state: str | None) -> None:
    """Somebody may wait for the training in another DAG, and reads the bucket only."""
    ends = None if state in ("restarting", None) else FailureKind.STOPPED
    assert judge(state).ends is ends
    assert decide_trigger_kill(task_state=state, is_readable=True).ends is ends
    assert judge("running", timed_out=True).ends is None, "Airflow tries again"
    last = decide_kill(task_state="running", is_owner=True, is_timed_out=True, is_enabled=True, is_deadline=True)
    assert last.ends is FailureKind.TIMEOUT


def test_an_evicted_worker_leaves_the_job() -> None:
    verdict = judge("running")
    assert not verdict.is_stop
    assert "evicted" in verdict.reason


@pytest.mark.parametrize("state", ["running", None, "failed"])
def test_a_timeout_stops_although_the_state_is_running(state: str | None) -> None:
    verdict = judge(state, timed_out=True)
    assert verdict.is_stop
    assert "execution_timeout" in verdict.reason


def test_an_unknown_state_leaves_the_job() -> None:
    """The next try, the listener or the driver's deadline still end what must end."""
    verdict = judge(None)
    assert not verdict.is_stop
    assert "couldn't be read" in verdict.reason


@pytest.mark.parametrize("timed_out", [False, True])
@pytest.mark.parametrize("state", ["failed", "running", None])
def test_a_job_of_a_newer_try_is_never_touched(state: str | None, timed_out: bool) -> None:
    verdict = judge(state, is_owner=False, timed_out=timed_out)
    assert not verdict.is_stop
    assert "newer try" in verdict.reason


@pytest.mark.parametrize("timed_out", [False, True])
def test_an_unreadable_owner_leaves_the_job(timed_out: bool) -> None:
    verdict = judge("failed", is_owner=None, timed_out=timed_out)
    assert not verdict.is_stop
    assert "owner" in verdict.reason


@pytest.mark.parametrize("timed_out", [False, True])
def test_it_can_be_switched_off(timed_out: bool) -> None:
    verdict = judge("failed", timed_out=timed_out, on=False)
    assert not verdict.is_stop
    assert "stop_on_kill" in verdict.reason


@pytest.mark.parametrize(("state", "shown"), [("failed", "failed"), ("success", "success"), (None, "cleared")])
def test_a_trigger_stops_what_a_person_ended(state: str | None, shown: str) -> None:
    verdict = decide_trigger_kill(task_state=state, is_readable=True)
    assert verdict.is_stop
    assert verdict.reason.endswith(f"it is {shown}")


@pytest.mark.parametrize(("state", "is_readable"), [("deferred", True), ("failed", False), (None, False)])
def test_a_trigger_leaves_a_job_that_another_one_waits_for(state: str | None, is_readable: bool) -> None:
    assert not decide_trigger_kill(task_state=state, is_readable=is_readable).is_stop
