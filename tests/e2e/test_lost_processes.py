"""Airflow loses processes, replaces them and believes stale news: what becomes of a training. Each row on real processes.

Slow: whole services stop, freeze and start again. `make stops` runs it. What `make test` shows of the same kind is in
tests/e2e/test_operator.py, tests/e2e/test_scenarios_airflow.py, tests/e2e/test_stops.py and tests/e2e/test_chaos.py; other clears in test_clears.py.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core.record_parts import AttemptRef
from tests.chaos.points import is_write, path_of
from tests.e2e.test_operator import jobs_of, wait_for_commits, wait_for_end
from tests.stack.airflow_client import AirflowClient
from tests.stack.airflow_services import AirflowComponent
from tests.stack.gate import Hold, Seen, wait_for_hold
from tests.stack.process import wait_until
from tests.stack.services import Stack
from tests.support.idle_training import (
    LIMIT_S,
    freeze_at_deferral,
    live_jobs,
    lose_worker,
    owners,
    send,
    task_process,
    wait_for_log,
    wait_for_no_job,
    wait_for_owner,
)
from tests.support.training_run import TrainingRun

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
Start = Callable[..., TrainingRun]
FIRST = AttemptRef(generation=1, attempt=1)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """What a training waits for: it does not exist yet."""
    return tmp_path / "gate"


@pytest.fixture(autouse=True)
def _open_gates(stack: Stack) -> Iterator[None]:
    """A hold that did not fire must not wait for another test's request."""
    yield
    for one in stack.gates.values():
        one.release_all()


@contextmanager
def frozen(component: AirflowComponent) -> Iterator[None]:
    """A component that stands still, and goes on with what it was doing."""
    processes = component.processes()
    assert processes, "nothing to freeze"
    send(processes, signal.SIGSTOP)
    try:
        yield
    finally:
        send(processes, signal.SIGCONT)


# --- a worker is lost, once and again ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def survivor(stack: Stack, airflow: AirflowClient, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """One training in a worker that is evicted, then lost, then lost and cleared before anybody noticed."""
    gate = tmp_path_factory.mktemp("survivor") / "gate"
    run_id = airflow.run_dag("idle_blocking", conf={"gate": str(gate)})
    run = TrainingRun(stack, airflow, "idle_blocking", run_id)
    wait_for_commits(run, 1)
    task_process(run).send_signal(signal.SIGTERM)
    wait_for_log(run, "this worker is evicted")
    assert run.task()["state"] == "running"
    airflow.clear(run.dag_id, run_id, task_ids=["neighbour"])
    lose_worker(run)
    wait_for_owner(run, 2)
    wait_for_log(run, "attaching to job", try_number=2)
    lose_worker(run)
    airflow.clear(run.dag_id, run_id, task_ids=["train"])
    wait_for_owner(run, 3)
    wait_for_log(run, "attaching to job", try_number=3)
    gate.touch()
    assert wait_for_end(run)["state"] == "success", run.log(3)[-4000:]
    return run


def test_an_evicted_worker_leaves_the_job_alone(survivor: TrainingRun) -> None:
    """SIGTERM reaches `on_kill`, which can't tell who wished it but by the task's state: still running."""
    assert "leaving the job: the task is still running" in survivor.log(1)
    assert len(jobs_of(survivor)) == 1
    assert survivor.lineage().attempts[0].state == "success"
    assert survivor.xcom()["new_checkpoints"] == 2


def test_the_clear_of_a_neighbour_is_none(survivor: TrainingRun) -> None:
    """`clear_number` is one number for the whole DAG run: the retry attaches, it does not stop and restore."""
    first, second = owners(survivor)[1], owners(survivor)[2]
    assert (first.clear_number, second.clear_number) == (0, 1), "the false alarm was there"
    assert first.max_tries == second.max_tries
    assert second.acted_on == FIRST


def test_a_clear_of_a_lost_worker_before_its_heartbeat_timeout_attaches(survivor: TrainingRun) -> None:
    """`max_tries` doesn't tell: the try looks like a retry, and joins the job instead of starting another."""
    second, third = owners(survivor)[2], owners(survivor)[3]
    assert (second.max_tries, third.clear_number) == (third.max_tries, 2), "the clear was hidden"
    assert third.acted_on == FIRST
    assert live_jobs(survivor) == []


# --- clears that max_tries misses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_hidden", [False, True], ids=["seen", "hidden"])
def test_a_clear_right_after_the_post_leaves_one_job(start: Start, stack: Stack, gate: Path, is_hidden: bool) -> None:
    """Without retries, in the moment in which Ray has taken the job and the task does not know it yet.

    Where the process dies of it, `max_tries` stays 0: the next try looks like a retry and joins the job. Else it stops it.
    """
    runs: list[TrainingRun] = []

    def clear(_: Seen) -> None:
        wait_until(lambda: bool(runs), timeout_s=30, what="the run to be known")
        process = task_process(runs[0])
        runs[0].airflow.clear("idle_once", runs[0].run_id)
        if is_hidden:
            process.kill()

    def posts_job(seen: Seen) -> bool:
        return seen.method == "POST" and path_of(seen) == "/api/jobs/"

    hold = stack.gates["ray"].hold(Hold(posts_job, clear, is_before=False))
    run = start("idle_once", gate=str(gate))
    runs.append(run)
    wait_for_hold(hold, timeout_s=LIMIT_S)
    second = wait_for_owner(run, 2)
    assert (second.try_number, second.clear_number) == (2, 1)
    if is_hidden:
        assert (owners(run)[1].max_tries, second.max_tries) == (0, 0), "the clear was hidden"
    wait_for_commits(run, 1)
    assert len(live_jobs(run)) == 1
    gate.touch()
    assert wait_for_end(run)["state"] == "success", run.log(2)[-4000:]
    assert len(jobs_of(run)) == (1 if second.max_tries == 0 else 2), "joined, or stopped and restored"
    assert sorted({c.metrics["epoch"] for c in run.lineage().checkpoints}) == [0, 1]
    wait_for_no_job(run)


def test_a_late_on_kill_spares_the_job_that_a_newer_try_attached_to(start: Start, stack: Stack, gate: Path) -> None:
    """The DAG was edited from 3 retries to 2, which hides the clear; the old trigger's `on_kill` comes after the attach."""
    edited = stack.airflow.home / "retries_of_idle_edited"
    run = start("idle_edited", gate=str(gate))
    try:
        wait_for_commits(run, 1)
        edited.write_text("2")
        wait_until(lambda: retries_of(run) == 2, timeout_s=120, what="the edited DAG", every_s=1)
        with frozen(stack.airflow.triggerer):
            run.airflow.clear(run.dag_id, run.run_id)
            second = wait_for_owner(run, 2)
        assert second.max_tries == owners(run)[1].max_tries, "the clear was hidden"
        assert second.acted_on == FIRST
        wait_for_log(run, "invoking on_kill")
        wait_until(lambda: any(leaves in run.log(1) for leaves in LEAVES), timeout_s=60, what="the old trigger's word")
        assert live_jobs(run) == jobs_of(run)
        gate.touch()
        assert wait_for_end(run)["state"] == "success", run.log(2)[-4000:]
        assert len(jobs_of(run)) == 1
        assert run.xcom()["new_checkpoints"] == 2
    finally:
        edited.unlink(missing_ok=True)


LEAVES = ("leaving the job: the task is still deferred", "not stopping g1/a1: owner 2 owns the experiment")
"""Which of the two depends on how far the new try has come."""


def retries_of(run: TrainingRun) -> int:
    """The task's retries as Airflow has parsed them last."""
    return int(run.airflow.request("GET", f"/dags/{run.dag_id}/tasks/{run.task_id}")["retries"])


# --- services ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_marked_dag_run_stops_all_its_jobs_even_without_a_triggerer(start: Start, stack: Stack, state: str) -> None:
    """Airflow deletes a trigger's row before a triggerer that is down could run its `on_kill`; the listener is the cure."""
    deferred = start("idle_pair", task_id="deferred")
    blocking = TrainingRun(stack, deferred.airflow, deferred.dag_id, deferred.run_id, "blocking")
    for run in (deferred, blocking):
        wait_for_commits(run, 1)
        assert len(live_jobs(run)) == 1
    stack.airflow.triggerer.kill()
    try:
        deferred.airflow.set_dag_run_state(deferred.dag_id, deferred.run_id, state)
        for run in (deferred, blocking):
            wait_for_no_job(run)
            assert any(owner.final for owner in owners(run).values()), run.task_id
            assert run.lineage().attempts[0].state in ("cancelled", "unknown")
            assert run.task()["state"] == state
    finally:
        stack.airflow.triggerer.start()
        stack.airflow.wait_until_healthy()


def test_a_dag_run_that_is_ended_between_two_tries_stops_the_job(start: Start) -> None:
    """The task waits for its retry, its job trains on; Airflow skips it and calls neither `on_kill` nor a task's listener."""
    run = start("idle_patient")
    wait_for_commits(run, 1)
    task_process(run).kill()
    run.airflow.wait_for_task(*run.key, states={"up_for_retry"}, timeout_s=LIMIT_S)
    assert len(live_jobs(run)) == 1, "the job goes on"
    run.airflow.set_dag_run_state(run.dag_id, run.run_id, "failed")
    wait_for_no_job(run)
    assert run.task()["state"] == "skipped"
    assert any(owner.final for owner in owners(run).values())


def test_a_thawed_triggerer_leaves_the_jobs_of_the_one_that_took_over(start: Start, stack: Stack, gate: Path) -> None:
    """It finds triggers that are no longer its own and ends them as if a person had wished it."""
    run = start("idle_deferred", gate=str(gate))
    wait_for_commits(run, 1)
    folder = stack.state_dir / "spare"
    folder.mkdir(exist_ok=True)
    spare = AirflowComponent("triggerer", folder, env=stack.airflow.env)
    first = triggerer_of(run)
    try:
        with frozen(stack.airflow.triggerer):
            spare.start()
            wait_until(lambda: triggerer_of(run) not in (None, first), timeout_s=120, what="the other triggerer")
        wait_for_log(run, "invoking on_kill")
        wait_for_log(run, "leaving the job: the task")
        assert live_jobs(run) == jobs_of(run)
        gate.touch()
        task = wait_for_end(run)
        assert (task["state"], task["try_number"]) == ("success", 1), run.log()[-4000:]
        assert len(jobs_of(run)) == 1
    finally:
        spare.stop()


def triggerer_of(run: TrainingRun) -> Any:
    """The id of the triggerer that has the task's trigger."""
    trigger = run.task()["trigger"]
    return trigger["triggerer_id"] if trigger else None


def test_the_driver_keeps_the_deadline_while_airflow_is_dead(start: Start, stack: Stack) -> None:
    """G10: all four services are gone; the job ends by its own clock, and Airflow learns of it when it is back."""
    run = start("idle_deadline")
    wait_for_commits(run, 1)
    records = run.records()
    assert records is not None
    stack.airflow.kill()
    try:
        wait_until(lambda: records.outcome(FIRST) is not None, timeout_s=120, what="the driver's outcome", every_s=0.5)
        wait_for_no_job(run)
    finally:
        stack.airflow.start()
    outcome = records.outcome(FIRST)
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.kind.value == "timeout"
    task = wait_for_end(run)
    assert (task["state"], task["try_number"]) == ("failed", 1), run.log()[-4000:]
    assert run.xcom("ray_train_failure")["kind"] == "timeout"


# --- stale news ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def misled(stack: Stack, airflow: AirflowClient, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """The executor's word on a deferral comes while the resumed task collects a success: Airflow gives that one up.

    Held at its first write, the resumed process goes on when it is replaced already.
    """
    gate = tmp_path_factory.mktemp("misled") / "gate"
    run = TrainingRun(stack, airflow, "idle_outlet", airflow.run_dag("idle_outlet", conf={"gate": str(gate)}))
    supervisor = freeze_at_deferral(run)

    def tell_the_executor(_: Seen) -> None:
        resumed = run.task()
        assert resumed["state"] == "running"
        supervisor.send_signal(signal.SIGCONT)
        wait_until(lambda: run.task()["id"] != resumed["id"], timeout_s=45, what="Airflow to replace it", every_s=0.2)

    def collects(seen: Seen) -> bool:
        return is_write(seen) and "/idle/" in path_of(seen) and path_of(seen).endswith("/collected.json")

    try:
        wait_for_commits(run, 1)
        hold = stack.gates["s3"].hold(Hold(collects, tell_the_executor, is_before=True))
        gate.touch()
        wait_for_hold(hold, timeout_s=LIMIT_S)
    finally:
        supervisor.send_signal(signal.SIGCONT)
    assert wait_for_end(run)["state"] == "success", run.log(2)[-4000:]
    return run


def test_a_stale_event_after_the_end_trains_nothing_again_and_publishes_once(misled: TrainingRun) -> None:
    assert misled.task()["try_number"] == 2, "the stale event was believed"
    assert len(jobs_of(misled)) == 1
    assert misled.xcom()["new_checkpoints"] == 2
    query = {"source_dag_id": misled.dag_id, "source_run_id": misled.run_id}
    events = misled.airflow.request("GET", "/assets/events", params=query)["asset_events"]
    assert [event["source_task_id"] for event in events] == ["train"], "one event of the model, not none and not two"
    assert events[0]["extra"]["checkpoint"] == misled.xcom()["latest_checkpoint"]["uri"]


def test_a_replaced_process_publishes_nothing(misled: TrainingRun) -> None:
    assert "Airflow has replaced this process" in misled.log(1)
    assert "finished:" not in misled.log(1)
    assert misled.log(2).count("finished:") == 1
