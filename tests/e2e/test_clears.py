"""The ways to clear, mark and repeat a part of a DAG run: one mapped index, Airflow's own command, a backfill, a run made again.

With tests/e2e/test_stops.py and tests/e2e/test_lost_processes.py, each on real processes. Slow; `make stops` runs it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_operator import jobs_of, wait_for_commits, wait_for_end
from tests.stack.airflow_client import AirflowClient
from tests.stack.process import program, wait_until
from tests.stack.services import Stack
from tests.support.idle_training import LIMIT_S, live_jobs, owners, wait_for_no_job, wait_for_owner
from tests.support.training_run import TrainingRun

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
Start = Callable[..., TrainingRun]
DAY = "2000-01-01T00:00:00Z"
"""The logical date of runs that `airflow tasks clear` and a backfill must find: both pass over a run without one."""


@pytest.fixture
def open_gate(tmp_path: Path) -> str:
    """Lets a training end as soon as it can."""
    gate = tmp_path / "gate"
    gate.touch()
    return str(gate)


def run_of_day(airflow: AirflowClient, dag_id: str, gate: str) -> str:
    """A DAG run by hand with a logical date."""
    airflow.wait_for_dag(dag_id)
    airflow.unpause(dag_id)
    body = {"logical_date": DAY, "conf": {"gate": gate}}
    return str(airflow.request("POST", f"/dags/{dag_id}/dagRuns", json=body)["dag_run_id"])


def states_of(run: TrainingRun) -> dict[str, str]:
    """The attempts as the lineage tells them. Whether a job that was stopped early could still say so is open."""
    return {a.ref: a.state for a in run.lineage().attempts}


# --- one index of a mapped task ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mapped(stack: Stack, airflow: AirflowClient, tmp_path_factory: pytest.TempPathFactory) -> list[TrainingRun]:
    """Two mapped trainings: one index is cleared through the API, then all by `airflow tasks clear`, then the gate opens."""
    gate = tmp_path_factory.mktemp("mapped") / "gate"
    run_id = run_of_day(airflow, "idle_mapped", str(gate))
    runs = [TrainingRun(stack, airflow, "idle_mapped", run_id, "train", index) for index in (0, 1)]
    for run in runs:
        wait_for_commits(run, 1)
    one, other = runs
    [untouched] = jobs_of(other)
    body = {"dry_run": False, "only_failed": False, "dag_run_id": run_id, "task_ids": [["train", 0]]}
    airflow.request("POST", "/dags/idle_mapped/clearTaskInstances", json=body)
    wait_for_owner(one, 2)
    airflow.wait_for_task(*one.key, map_index=0, states={"deferred"}, try_number=2, timeout_s=LIMIT_S)
    assert set(jobs_of(one)) & set(live_jobs(one)) == {jobs_of(one)[1]}, "stopped before the next one was claimed"
    assert untouched in live_jobs(other), "the neighbour's job goes on"
    assert (other.task()["state"], other.task()["try_number"]) == ("deferred", 1)
    assert list(owners(other)) == [1]
    clear_by_command(stack, "idle_mapped")
    wait_until(lambda: [len(jobs_of(r)) for r in runs] == [3, 2], timeout_s=LIMIT_S, what="the next claims")
    gate.touch()
    for run in runs:
        assert wait_for_end(run)["state"] == "success", run.log(run.task()["try_number"])[-4000:]
    return runs


def clear_by_command(stack: Stack, dag_id: str) -> None:
    """Clear what ran on the day, as a person at a terminal does."""
    words = ["tasks", "clear", dag_id, "--start-date", DAY, "--end-date", DAY, "--yes"]
    done = subprocess.run(
        [program("airflow"), *words],
        env=stack.airflow.env(),
        cwd=stack.state_dir,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_clear_of_one_mapped_index_restores_it_and_leaves_the_other_alone(mapped: list[TrainingRun]) -> None:
    """The clear is seen by `max_tries`; `clear_number`, one for the whole DAG run, would have named the other one, too."""
    one, other = mapped
    first, second = owners(one)[1], owners(one)[2]
    assert second.max_tries > first.max_tries
    assert (first.clear_number, second.clear_number) == (0, 1)
    assert owners(other)[1].clear_number == 0
    restored = {a.ref: a.restored_from for a in one.lineage().attempts}
    assert restored["g1/a2"] == one.lineage().checkpoints[0].name
    assert one.xcom()["experiment"] != other.xcom()["experiment"]


def test_a_clear_by_airflow_s_own_command_restores_every_index(mapped: list[TrainingRun]) -> None:
    for run, attempts in zip(mapped, (["g1/a1", "g1/a2", "g1/a3"], ["g1/a1", "g1/a2"]), strict=True):
        states = states_of(run)
        assert list(states) == attempts
        assert states.popitem()[1] == "success"
        assert set(states.values()) <= {"cancelled", "lost"}, states
        last, before = owners(run)[len(attempts)], owners(run)[len(attempts) - 1]
        assert (last.clear_number, last.max_tries > before.max_tries) == (2, True)
        assert [c.metrics["epoch"] for c in run.lineage().checkpoints] == [0, 1], "no epoch is trained twice"
        assert run.xcom()["restore_proven"] == "yes"
        wait_for_no_job(run)


# --- one mark ------------------------------------------------------------------------------------------------------


def test_marking_one_deferred_task_successful_without_a_triggerer_stops_its_job_alone(
    start: Start, stack: Stack, tmp_path: Path
) -> None:
    """G4: Airflow deletes the trigger's row, so no `on_kill` ever comes; the listener in the API server is the cure."""
    gate = tmp_path / "gate"
    marked = start("idle_pair", task_id="deferred", gate=str(gate))
    other = TrainingRun(stack, marked.airflow, marked.dag_id, marked.run_id, "blocking")
    for run in (marked, other):
        wait_for_commits(run, 1)
        assert len(live_jobs(run)) == 1
    marked.airflow.wait_for_task(*marked.key, states={"deferred"}, timeout_s=LIMIT_S)
    stack.airflow.triggerer.kill()
    try:
        marked.airflow.set_task_state(*marked.key, "success")
        wait_for_no_job(marked)
        assert owners(marked)[max(owners(marked))].created_by == "listener"
        assert any(owner.final for owner in owners(marked).values())
        assert set(states_of(marked).values()) <= {"cancelled", "unknown"}
        assert len(live_jobs(other)) == 1, "its neighbour in the same DAG run was not marked"
        assert list(owners(other)) == [1]
        gate.touch()
        assert wait_for_end(other)["state"] == "success", other.log()[-4000:]
    finally:
        stack.airflow.triggerer.start()
        stack.airflow.wait_until_healthy()
    assert marked.task()["state"] == "success"
    assert [c.metrics["epoch"] for c in marked.lineage().checkpoints] == [0], "nobody trained on"


# --- a run that is made again --------------------------------------------------------------------------------------


def objects(run: TrainingRun) -> dict[str, str]:
    """Every object of the experiment with the mark of its content."""
    records = run.records()
    assert records is not None
    return {info.key: info.etag for info in records.store.list("")}


def has_heard_of_success(stack: Stack, run: TrainingRun) -> bool:
    """Whether the scheduler has taken up that the task's process ended well."""
    lines = stack.airflow.scheduler.log.read_text(errors="replace").splitlines()
    ends = (line for line in lines if f"TaskInstance Finished: dag_id={run.dag_id}," in line and run.run_id in line)
    return any(", state=success," in line for line in ends)


def test_a_dag_run_that_is_made_again_trains_beside_the_old_lineage(
    airflow: AirflowClient, stack: Stack, open_gate: str
) -> None:
    """G7, G9: as after a lost database: same ids, all of Airflow's counters and XComs gone. Nothing is overwritten."""

    def train() -> TrainingRun:
        airflow.trigger("idle_once", conf={"gate": open_gate}, run_id="made_again")
        run = TrainingRun(stack, airflow, "idle_once", "made_again")
        assert wait_for_end(run)["state"] == "success", run.log()[-4000:]
        airflow.wait_for_dag_run("idle_once", "made_again", states={"success"})
        # What it hears later it books to the next task of the same name, which would fail while it runs.
        wait_until(lambda: has_heard_of_success(stack, run), timeout_s=60, what="the executor's word at the scheduler")
        return run

    airflow.wait_for_dag("idle_once")
    airflow.unpause("idle_once")
    first = train()
    kept, checkpoints, experiment = objects(first), first.lineage().checkpoints, first.xcom()["experiment"]
    assert (states_of(first), len(checkpoints)) == ({"g1/a1": "success"}, 2)
    airflow.request("DELETE", "/dags/idle_once/dagRuns/made_again")
    second = train()
    assert second.xcom()["experiment"] == experiment
    assert (second.task()["try_number"], second.task()["max_tries"]) == (1, 0), "Airflow knows nothing of the first"
    assert states_of(second) == {"g1/a1": "success", "g2/a1": "success"}
    by_attempt = [a["ref"] for a in second.xcom("checkpoint_lineage")["attempts"]]
    assert by_attempt == ["g1/a1", "g2/a1"], "the XCom tells of the first one, too"
    lineage = second.lineage()
    assert lineage.checkpoints[:2] == checkpoints
    assert [c.metrics["epoch"] for c in lineage.checkpoints] == [0, 1, 0, 1]
    assert lineage.checkpoints[2].parent is None, "begun anew"
    assert second.xcom()["new_checkpoints"] == 2
    assert owners(second)[1].dag_run_identity != owners(second)[2].dag_run_identity
    assert kept.items() <= objects(second).items(), "every object is there as it was"


def test_a_backfill_that_reprocesses_a_finished_run_trains_anew(
    airflow: AirflowClient, stack: Stack, open_gate: str
) -> None:
    """G9: it clears the run that it finds for the day."""
    run_id = run_of_day(airflow, "idle_daily", open_gate)
    run = TrainingRun(stack, airflow, "idle_daily", run_id)
    assert wait_for_end(run)["state"] == "success", run.log()[-4000:]
    airflow.wait_for_dag_run(run.dag_id, run_id, states={"success"})
    body = {"dag_id": run.dag_id, "from_date": DAY, "to_date": DAY, "dag_run_conf": {"gate": open_gate}}
    airflow.request("POST", "/backfills", json=body | {"reprocess_behavior": "completed"})
    assert airflow.wait_for_task(*run.key, try_number=2, timeout_s=LIMIT_S)["state"] == "success", run.log(2)[-4000:]
    assert airflow.dag_run(run.dag_id, run_id)["run_type"] == "backfill"
    first, second = owners(run)[1], owners(run)[2]
    assert (second.max_tries > first.max_tries, first.clear_number, second.clear_number) == (True, 0, 1)
    assert states_of(run) == {"g1/a1": "success", "g2/a1": "success"}
    assert [c.metrics["epoch"] for c in run.lineage().checkpoints] == [0, 1, 0, 1]
    assert run.xcom()["new_checkpoints"] == 2
    wait_for_no_job(run)
