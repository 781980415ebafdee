"""The example DAGs that no other test runs on the real stack: quickstart, an existing script, nodes that come and go."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider.storage.object_store import ObjectStore
from airflow_provider.testing.cluster import RayTrainCluster
from airflow_provider.testing.dag_files import load_dags
from airflow_provider.testing.outcomes import Succeeds
from tests.e2e.conftest import EXAMPLES
from tests.e2e.test_operator import wait_for_commits, wait_for_end
from tests.support.otlp_server import OtlpServer
from tests.support.training_run import TrainingRun, driver_processes, kill, worker_processes

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]
KNOWN_GAPS = {"train_run_id"}
"""Fields that only a driver on a cluster can fill."""


def epochs(run: TrainingRun) -> list[int]:
    """Epochs of all committed checkpoints, in order."""
    return [c.metrics["epoch"] for c in run.lineage().checkpoints if c.state != "uncommitted"]


def shape(value: Any) -> Any:
    """What a reader of a value relies on: its keys and types, at any depth; of lists the first entry's."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


def records_of(store: ObjectStore) -> dict[str, Any]:
    """Our records and Ray's manifests by name, as JSON; checkpoints are named by Ray's clock, and are no records."""
    names = [info.key for info in store.list("") if not re.search(r"/checkpoint_(?!manager)", info.key)]
    bodies = {name: found.body for name in names if (found := store.read(name)) is not None}
    return {name: json.loads(body) for name, body in bodies.items() if name.endswith(".json")}


def filled(record: dict[str, Any]) -> set[str]:
    """The fields that say something."""
    return {name for name, value in record.items() if value not in (None, "", [], {}, 0, False)}


def test_quickstart_trains_and_the_test_mode_leaves_the_same(
    start: Callable[..., TrainingRun], ray_train_cluster: RayTrainCluster, metrics: OtlpServer
) -> None:
    """What a DAG author's test sees must be what a real cluster gives: results, XComs and records, field by field."""
    run = start("quickstart")
    assert wait_for_end(run)["state"] == "success", run.log()[-4000:]
    result = run.xcom()
    assert (result["state"], result["attempts"], result["new_checkpoints"]) == ("success", 1, 3)
    assert result["latest_checkpoint"]["metrics"]["accuracy"] > 0.6
    assert_goodput(run, metrics)
    task = load_dags(EXAMPLES / "quickstart.py")["quickstart"].get_task("train")
    fake = ray_train_cluster.run(task, outcomes=[Succeeds(*(c.metrics for c in run.lineage().checkpoints))])
    assert shape(fake.return_value) == shape(result)
    assert shape(fake.xcoms["checkpoint_lineage"]) == shape(run.xcom("checkpoint_lineage"))
    assert fake.submissions[0].submission_id.partition("-train-")[0] == result["submission_id"].partition("-train-")[0]
    real_records = run.records()
    assert real_records is not None
    real, made = (
        records_of(real_records.store),
        records_of(ray_train_cluster.experiment(fake.return_value["experiment"])),
    )
    assert set(made) == set(real)
    for name, record in real.items():
        assert set(made[name]) == set(record), name
        assert filled(record) - filled(made[name]) <= KNOWN_GAPS, name


def assert_goodput(run: TrainingRun, metrics: OtlpServer) -> None:
    """Of one unharmed try: in its result, at the end of its log, and where its Airflow sends metrics to."""
    spent = run.xcom()["goodput"]
    assert 0 < spent["productive_s"] < spent["wall_s"]
    assert {cause for cause, seconds in spent["lost_s"].items() if seconds} == {"queueing", "start_up", "waiting"}
    assert re.search(r"goodput \d+% of .* productive; lost: ", run.log())
    sent = metrics.of_dag(run.dag_id)
    assert sent["airflow.ray_train.goodput"] == spent["fraction"]
    assert sent["airflow.ray_train.wall_seconds"] == pytest.approx(spent["wall_s"], abs=0.6)
    assert sent["airflow.ray_train.lost_seconds.queueing"] == pytest.approx(spent["lost_s"]["queueing"], abs=0.6)


@pytest.mark.parametrize("dag_id", ["resilient_training", "existing_script"])
def test_a_retry_restores_after_the_driver_died(start: Callable[..., TrainingRun], dag_id: str) -> None:
    run = start(dag_id, epochs=8, epoch_seconds=1)
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
