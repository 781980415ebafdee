"""`on_kill` also runs when a worker is evicted: stopping then would throw away a healthy training."""

from __future__ import annotations

import pytest

from airflow_provider.core.failure import FailureKind
from airflow_provider.core.kill import KillFacts, KillVerdict, decide_kill, decide_trigger_kill
from airflow_provider.core.record_parts import AttemptRef

REF = AttemptRef(generation=1, attempt=4)


def judge(
    task_state: str | None = "failed",
    *,
    newest: int | None = 3,
    k: int = 3,
    timed_out: bool = False,
    on: bool = True,
    is_deadline: bool = False,
) -> KillVerdict:
    facts = KillFacts(REF, k, newest)
    return decide_kill(facts, task_state=task_state, is_timed_out=timed_out, is_enabled=on, is_deadline=is_deadline)


def judge_trigger(task_state: str | None, *, is_readable: bool = True) -> KillVerdict:
    return decide_trigger_kill(ref=REF, k=3, task_state=task_state, is_readable=is_readable)


@pytest.mark.parametrize("state", ["failed", "success", "restarting", "removed", "skipped"])
def test_a_persons_wish_stops_the_job(state: str) -> None:
    verdict = judge(state)
    assert verdict.is_stop
    assert verdict.reason == f"stopping the job: the task is {state} (g1/a4, owner 3)"


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", "upstream_failed", "restarting", None])
def test_a_stop_says_whether_a_try_follows_it(state: str | None) -> None:
    """Somebody may wait for the training in another DAG, and reads the bucket only."""
    ends = None if state in ("restarting", None) else FailureKind.STOPPED
    assert judge(state).ends is ends
    assert judge_trigger(state).ends is ends
    assert judge("running", timed_out=True).ends is None, "Airflow tries again"
    assert judge("running", timed_out=True, is_deadline=True).ends is FailureKind.TIMEOUT


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
    verdict = judge(state, newest=4, timed_out=timed_out)
    assert not verdict.is_stop
    assert "a newer try owns the experiment, owner 4 came after (g1/a4, owner 3)" in verdict.reason


@pytest.mark.parametrize("timed_out", [False, True])
@pytest.mark.parametrize("newest", [0, 1])
def test_a_try_that_owns_nothing_stops_nothing(newest: int, timed_out: bool) -> None:
    """Killed before it could create its owner record: whoever has the experiment is not it."""
    verdict = judge("failed", k=0, newest=newest, timed_out=timed_out)
    assert not verdict.is_stop
    assert "owns nothing yet" in verdict.reason


@pytest.mark.parametrize("timed_out", [False, True])
def test_an_unreadable_owner_leaves_the_job(timed_out: bool) -> None:
    verdict = judge("failed", newest=None, timed_out=timed_out)
    assert not verdict.is_stop
    assert "owner" in verdict.reason


@pytest.mark.parametrize("timed_out", [False, True])
def test_it_can_be_switched_off(timed_out: bool) -> None:
    verdict = judge("failed", timed_out=timed_out, on=False)
    assert not verdict.is_stop
    assert "stop_on_kill" in verdict.reason


@pytest.mark.parametrize(("state", "shown"), [("failed", "failed"), ("success", "success"), (None, "cleared")])
def test_a_trigger_stops_what_a_person_ended(state: str | None, shown: str) -> None:
    verdict = judge_trigger(state)
    assert verdict.is_stop
    assert verdict.reason.endswith(f"it is {shown} (g1/a4, owner 3)")


@pytest.mark.parametrize(("state", "is_readable"), [("deferred", True), ("failed", False), (None, False)])
def test_a_trigger_leaves_a_job_that_another_one_waits_for(state: str | None, is_readable: bool) -> None:
    assert not judge_trigger(state, is_readable=is_readable).is_stop
