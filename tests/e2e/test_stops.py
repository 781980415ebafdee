"""What a clear, a mark and a time-out do to a training, deferred and in a worker, on real processes.

The trainings idle behind a gate, so that no time goes into training; a DAG run with a time-out waits beside the others.
`make stops` runs all of it, with tests/e2e/test_lost_processes.py and tests/e2e/test_clears.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_operator import jobs_of, wait_for_commits, wait_for_end
from tests.stack.airflow_client import AirflowClient
from tests.stack.process import wait_until
from tests.stack.services import Stack
from tests.support.idle_training import LIMIT_S, live_jobs, owners, wait_for_no_job
from tests.support.training_run import TrainingRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
Start = Callable[..., TrainingRun]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """What a training waits for: it does not exist yet."""
    return tmp_path / "gate"


@pytest.fixture(scope="module")
def overdue(stack: Stack, airflow: AirflowClient) -> dict[str, TrainingRun]:
    """Two trainings whose `execution_timeout` passes while the tests do something else."""
    run_id = airflow.run_dag("idle_overdue")
    return {name: TrainingRun(stack, airflow, "idle_overdue", run_id, name) for name in ("deferred", "blocking")}


@pytest.mark.usefixtures("overdue")
@pytest.mark.slow
@pytest.mark.parametrize("dag_id", ["idle_deferred", "idle_blocking"])
def test_a_clear_stops_the_job_and_restores_and_a_clear_of_a_success_trains_anew(
    start: Start, gate: Path, dag_id: str
) -> None:
    """G4, G9: one job at a time, nothing lost; and a finished training that is cleared begins again beside the old one."""
    run = start(dag_id, gate=str(gate))
    wait_for_commits(run, 1)
    [first] = jobs_of(run)
    run.airflow.clear(run.dag_id, run.run_id, task_ids=["train"])
    wait_until(lambda: len(jobs_of(run)) == 2, timeout_s=LIMIT_S, what="the next attempt's claim")
    assert first not in live_jobs(run), "the old job ends before the next attempt is claimed"
    gate.touch()
    assert wait_for_end(run)["state"] == "success", run.log(2)[-4000:]
    lineage = run.lineage()
    assert [a.ref for a in lineage.attempts] == ["g1/a1", "g1/a2"]
    assert [a.state for a in lineage.attempts] == ["cancelled", "success"]
    assert lineage.attempts[1].restored_from is not None
    assert [c.metrics["epoch"] for c in lineage.checkpoints] == [0, 1]
    assert run.xcom()["restore_proven"] == "yes"
    run.airflow.clear(run.dag_id, run.run_id, task_ids=["train"])
    assert run.airflow.wait_for_task(*run.key, try_number=3, timeout_s=LIMIT_S)["state"] == "success", run.log(3)[
        -4000:
    ]
    assert [a.ref for a in run.lineage().attempts] == ["g1/a1", "g1/a2", "g2/a1"]
    assert run.lineage().attempts[2].restored_from is None
    assert run.xcom()["new_checkpoints"] == 2
    wait_for_no_job(run)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_one_task_ends_its_job_and_no_other(start: Start, stack: Stack, state: str) -> None:
    """G4: the blocking task by its process's `on_kill`, then its deferred neighbour by the trigger's."""
    deferred = start("idle_pair", task_id="deferred")
    blocking = TrainingRun(stack, deferred.airflow, deferred.dag_id, deferred.run_id, "blocking")
    for run in (deferred, blocking):
        wait_for_commits(run, 1)
        assert len(live_jobs(run)) == 1
    deferred.airflow.wait_for_task(*deferred.key, states={"deferred"}, timeout_s=LIMIT_S)
    for run, others in ((blocking, [deferred]), (deferred, [])):
        run.airflow.set_task_state(*run.key, state)
        wait_for_no_job(run)
        wait_until(
            lambda run=run: any(owner.final for owner in owners(run).values()), timeout_s=60, what="the stop for good"
        )
        assert [len(live_jobs(other)) for other in others] == [1] * len(others), "its neighbour was not marked"
        task = run.task()
        assert (task["state"], task["try_number"], len(jobs_of(run))) == (state, 1, 1), run.log()[-4000:]
        assert run.lineage().attempts[0].state in ("cancelled", "unknown")
        assert [c.metrics["epoch"] for c in run.lineage().checkpoints] == [0], (
            "its checkpoint is there, and nobody trained on"
        )


def test_an_execution_timeout_while_deferred_ends_the_training_for_good(overdue: dict[str, TrainingRun]) -> None:
    """G10: Airflow itself does not enforce it on a deferred task."""
    run = overdue["deferred"]
    task = wait_for_end(run)
    assert (task["state"], task["try_number"]) == ("failed", 1), run.log()[-4000:]
    failure = run.xcom("ray_train_failure")
    assert (failure["kind"], failure["retryable"]) == ("timeout", False)
    assert run.lineage().attempts[0].failure_kind == "timeout"
    assert len(jobs_of(run)) == 1
    wait_for_no_job(run)


@pytest.mark.slow
def test_an_execution_timeout_in_a_worker_stops_the_job_too_and_is_not_retried(
    overdue: dict[str, TrainingRun],
) -> None:
    """Airflow's own alarm rings a little earlier than the deadline: the same end in both modes."""
    run = overdue["blocking"]
    task = wait_for_end(run)
    assert (task["state"], task["try_number"]) == ("failed", 1), run.log()[-4000:]
    assert "stopping the job: execution_timeout" in run.log()
    wait_for_no_job(run)
    assert len(jobs_of(run)) == 1
    assert run.lineage().attempts[0].state == "cancelled"
