"""Nodes come and go as managed clusters do it: training goes on inside the same job, from the newest commit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from airflow_provider.core import layout
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import TrainingSpec
from airflow_provider.core.spec import FailureConfig, ScalingConfig
from tests.stack.ray_cluster import RayCluster, RayNode
from tests.stack.s3 import S3Server
from tests.support.job_package import Experiment
from tests.support.runtime_case import EPOCHS, assert_equal_weights, new_experiment, weights, when_committed

NOTICE_S = 15
"""Seconds between a cloud's notice and the end of the machine."""
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[RayCluster]:
    """A head without a place for workers: they need a `slot`, which other nodes have."""
    with RayCluster(tmp_path_factory.mktemp("nodes"), num_cpus=1, env=s3.env()) as cluster:
        yield cluster


@pytest.fixture
def experiment(request: pytest.FixtureRequest, s3: S3Server, cluster: RayCluster) -> Experiment:
    experiment = new_experiment(request.node.name, s3, cluster)
    experiment.env["RAY_DEDUP_LOGS"] = "0"  # Ray folds lines that differ in their numbers only
    return experiment


def on_slots(
    num_workers: int | tuple[int, int], *, failure: FailureConfig | None = None, **config: object
) -> TrainingSpec:
    return TrainingSpec(
        kind=TrainingKind.TRAIN_LOOP,
        target="case:train_loop",
        train_loop_config={"epochs": EPOCHS, "epoch_s": 0.5, **config},
        scaling=ScalingConfig(
            num_workers=num_workers,
            resources_per_worker={"CPU": 1, "slot": 1},
            elastic_resize_monitor_interval_s=5,
        ),
        failure=failure or FailureConfig(),
        progress_metric="epoch",
    )


def phase(experiment: Experiment) -> str:
    return str(experiment.json(layout.alive(1, 1))["phase"])


@pytest.mark.slow
def test_lost_node_is_waited_for_and_training_goes_on_in_the_same_job(
    experiment: Experiment, cluster: RayCluster, healthy: Experiment
) -> None:
    """A node leaves and a repaired one joins: no new attempt, no lost commit, the weights of an unharmed run."""
    with RayNode(cluster, "first", num_cpus=2, resources={"slot": 2}) as node:
        job = experiment.start(on_slots(2), 1)
        when_committed(experiment, job, 1, 2)
        node.kill()
        committed = experiment.committed(1)
        experiment.until(lambda: phase(experiment) == "waiting", job=job, what="waiting for nodes")
    with RayNode(cluster, "repaired", num_cpus=2, resources={"slot": 2}):
        assert experiment.wait(job)["status"] == "SUCCEEDED", experiment.log(job)
    outcome = experiment.json(layout.outcome(1, 1))
    assert (outcome["num_fits"], outcome["num_restarts"] >= 1, outcome["num_commits"]) == (1, True, EPOCHS)
    assert experiment.committed(1)[: len(committed)] == committed
    assert_equal_weights(weights(experiment, 1), weights(healthy, 1))


@pytest.mark.slow
def test_node_that_is_taken_away_with_notice_leaves_a_checkpoint_in_time(
    experiment: Experiment, cluster: RayCluster
) -> None:
    """A drained spot node: the loop saves what the next regular checkpoint would have; no failure is counted."""
    names = ("taken", "other", "spare")
    nodes = [RayNode(cluster, name, num_cpus=1, resources={"slot": 1}) for name in names]
    taken, other, spare = nodes
    with taken, other:
        job = experiment.start(
            on_slots(2, epochs=60, every=40, watch_preemption=True, failure=FailureConfig(max_failures=0)), 1
        )
        experiment.until(lambda: "LOOP starts" in experiment.log(job), job=job, what="training")
        with spare:
            reclaimed_at = time.monotonic() + NOTICE_S + 1
            cluster.drain(taken.node_id(), deadline_s=NOTICE_S)
            when_committed(experiment, job, 1, 1)
            # The cloud takes the machine when its notice is over; Ray counts a node that dies before as a failure.
            time.sleep(max(0.0, reclaimed_at - time.monotonic()))
            taken.kill()
            assert experiment.wait(job)["status"] == "SUCCEEDED", experiment.log(job)
    log = plain(experiment.log(job))
    assert "LOOP saves in time at epoch" in log
    saved = int(log.split("LOOP saves in time at epoch ")[1].split()[0])
    assert saved < 39, "the checkpoint came before the regular one"
    assert f"LOOP starts at epoch {saved + 1}" in log
    outcome = experiment.json(layout.outcome(1, 1))
    assert (outcome["num_fits"], outcome["state"]) == (1, "success")


@pytest.mark.slow
def test_elastic_run_shrinks_and_grows_with_its_nodes(experiment: Experiment, cluster: RayCluster) -> None:
    """Between one and two workers, whatever nodes there are."""
    with RayNode(cluster, "stays", num_cpus=1, resources={"slot": 1}):
        with RayNode(cluster, "leaves", num_cpus=1, resources={"slot": 1}) as leaving:
            job = experiment.start(on_slots((1, 2), epochs=400), 1)
            experiment.until(lambda: sizes(experiment, job)[-1:] == [2], job=job, what="two workers")
            when_committed(experiment, job, 1, 1)
            leaving.kill()
            experiment.until(lambda: sizes(experiment, job)[-1:] == [1], job=job, what="one worker")
        with RayNode(cluster, "joins", num_cpus=1, resources={"slot": 1}):
            experiment.until(lambda: sizes(experiment, job) == [2, 1, 2], job=job, what="two workers again")
            experiment.stop(1, k=1)
            experiment.wait(job)
    outcome = experiment.json(layout.outcome(1, 1))
    assert (outcome["num_fits"], outcome["num_commits"] > 0) == (1, True)


def sizes(experiment: Experiment, job: str) -> list[int]:
    """World sizes one after another, as each first rank says it.

    Each node on this machine forwards what all of them write, so a line comes several times, and late.
    """
    return [int(size) for size in dict(re.findall(r"pid=(\d+).*rank 0 of (\d+)", plain(experiment.log(job)))).values()]


def plain(log: str) -> str:
    """Without the colours that Ray gives to workers' lines."""
    return re.sub(r"\x1b\[\d+m", "", log)
