"""Reported failures that need Airflow's own processes: how a triggerer ends, and what a mark by hand sets off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.test_operator import jobs_of, wait_for_commits, wait_for_end
from tests.stack.process import wait_until
from tests.support.training_run import TrainingRun, driver_processes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]
Start = Callable[..., TrainingRun]


@pytest.mark.slow
@pytest.mark.scenario("C61")
def test_a_triggerer_that_is_told_to_end_leaves_the_job_alone(start: Start) -> None:
    """SIGTERM, as in a rolling upgrade, runs the triggers' clean-up: nothing is stopped, another triggerer goes on."""
    run = start("train_deferred", epochs=8, epoch_seconds=1)
    wait_for_commits(run, 1)
    job_id = run.xcom("ray_train_job")["submission_id"]
    triggerer = run.stack.airflow.triggerer
    triggerer.stop()
    assert driver_processes(run.stack.ray), "the training goes on without a triggerer"
    triggerer.start()
    assert wait_for_end(run)["state"] == "success"
    assert run.task()["try_number"] == 1
    assert jobs_of(run) == [job_id]
    assert run.xcom()["new_checkpoints"] == 8


@pytest.mark.slow
@pytest.mark.scenario("C60")
def test_marking_a_deferred_task_successful_stops_its_job(start: Start) -> None:
    """A person is content with what there is: the GPUs are freed, and the lineage says that it was ended by hand."""
    run = start("train_deferred", epochs=60, epoch_seconds=1)
    wait_for_commits(run, 1)
    run.airflow.set_task_state(*run.key, "success")
    wait_until(lambda: not driver_processes(run.stack.ray), timeout_s=60, what="the driver to end")
    assert run.task()["state"] == "success"
    assert run.lineage().attempts[0].state in ("cancelled", "unknown")
    # The listener works beside the trigger, in another process: which of the two ends the driver first is open.
    wait_until(lambda: run.lineage().tries[-1].final, timeout_s=60, what="the final owner")
