"""The example DAGs that no other test runs on the real stack: quickstart, an existing script, nodes that come and go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.test_operator import wait_for_commits, wait_for_end
from tests.support.training_run import TrainingRun, driver_processes, kill, worker_processes

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]


def epochs(run: TrainingRun) -> list[int]:
    """Epochs of all committed checkpoints, in order."""
    return [c.metrics["epoch"] for c in run.lineage().checkpoints if c.state != "uncommitted"]


def test_quickstart_trains(start: Callable[..., TrainingRun]) -> None:
    run = start("quickstart")
    assert wait_for_end(run)["state"] == "success", run.log()[-4000:]
    result = run.xcom()
    assert (result["state"], result["attempts"], result["new_checkpoints"]) == ("success", 1, 3)
    assert result["latest_checkpoint"]["metrics"]["accuracy"] > 0.6


def test_an_existing_script_is_restored_after_its_driver_died(start: Callable[..., TrainingRun]) -> None:
    run = start("existing_script", epochs=8, epoch_seconds=1)
    wait_for_commits(run, 2)
    assert kill(driver_processes(run.stack.ray)), "the fault did not fire"
    assert wait_for_end(run)["state"] == "success", run.log(2)[-4000:]
    result, attempts = run.xcom(), run.lineage().attempts
    assert [a.state for a in attempts] == ["failed", "success"]
    assert attempts[1].restored_from is not None
    assert (result["restore_proven"], result["fenced"]) == ("yes", True)
    assert epochs(run) == list(range(8)), "none was trained twice"


@pytest.mark.parametrize("dag_id", ["spot_cluster", "replaced_nodes"])
def test_a_lost_worker_costs_no_try_and_no_more_than_the_cadence(
    start: Callable[..., TrainingRun], dag_id: str
) -> None:
    """A checkpoint every 2 s of epochs of 1 s: after the loss of a worker Ray goes on from the newest one, in the same job."""
    run = start(dag_id, epochs=10, epoch_seconds=1, checkpoint_every_s=2)
    wait_for_commits(run, 2)
    (*_, victim) = worker_processes(run.stack.ray)
    assert kill([victim]), "the fault did not fire"
    ended = wait_for_end(run)
    assert (ended["state"], ended["try_number"]) == ("success", 1), run.log()[-4000:]
    (attempt,) = run.lineage().attempts
    assert attempt.state == "success"
    committed = epochs(run)
    assert committed == sorted(set(committed)), "each commit is a step forward"
    assert committed[-1] == 9
    assert 3 <= len(committed) < 10, "the cadence is the clock's, not the epochs'"
    assert run.xcom()["restore_proven"] in {"yes", "unknown"}
