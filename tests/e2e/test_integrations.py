"""Ray's integrations that people use, on real data: Lightning with Ray Data, and Hugging Face Transformers."""

from __future__ import annotations

import pytest

from tests.stack.airflow_client import AirflowClient
from tests.stack.process import wait_until
from tests.stack.services import Stack
from tests.support.training_run import TrainingRun, driver_processes, kill

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(540)]
LIMIT_S = 400.0


def kill_driver_of(run: TrainingRun) -> bool:
    """Kill the run's driver once it has committed a checkpoint, and no other run's."""
    if run.records() is None or not run.lineage().checkpoints:
        return False
    job = run.lineage().attempts[-1].submission_id
    assert kill([p for p in driver_processes(run.stack.ray) if job in str(p.environ())]), "the fault did not fire"
    return True


def test_lightning_and_transformers_restore_as_they_do_by_themselves(stack: Stack, airflow: AirflowClient) -> None:
    """Both drivers are killed after a commit: each retry goes on from the library's own checkpoint, with its rows again."""
    dag_id, epochs = "lightning_and_transformers", 8
    run_id = airflow.run_dag(dag_id, conf={"epochs": epochs, "epoch_seconds": 1})
    metrics = {"lightning": "accuracy", "transformers": "eval_accuracy"}
    runs = {name: TrainingRun(stack, airflow, dag_id, run_id, name) for name in metrics}
    alive = dict(runs)

    def all_killed() -> bool:
        for name in [name for name, run in alive.items() if kill_driver_of(run)]:
            del alive[name]
        return not alive

    wait_until(all_killed, timeout_s=LIMIT_S, what="a commit of each", every_s=0.5)
    for name, run in runs.items():
        assert airflow.wait_for_task(*run.key, timeout_s=LIMIT_S)["state"] == "success", run.log()[-4000:]
        result, attempts = run.xcom(), run.lineage().attempts
        assert [a.state for a in attempts] == ["failed", "success"]
        assert attempts[1].restored_from is not None
        assert (result["restore_proven"], result["fenced"], result["new_checkpoints"]) == ("yes", True, epochs)
        assert result["latest_checkpoint"]["metrics"][metrics[name]] > 0.6
