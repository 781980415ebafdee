"""What ends a fit or a job, or must not: errors of the code, poisonous checkpoints, a Ray without our seams."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch

import airflow_provider
from airflow_provider.core import layout
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import TrainingSpec
from airflow_provider.core.spec import CheckpointConfig, FailureConfig
from tests.support.job_package import Experiment
from tests.support.runtime_case import (
    EPOCHS,
    assert_equal_weights,
    drivers,
    kill,
    loop,
    weights,
)

# Longer than one test's usual minute: each job costs Ray's start-up, and a shared machine may be busy.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.mark.slow
def test_same_user_error_twice_ends_the_fit(experiment: Experiment) -> None:
    """G6: GPU time isn't burnt on a deterministic error, whatever max_failures says."""
    job = experiment.start(loop(raise_at=1, num_workers=1, failure=FailureConfig(max_failures=20)), 1)
    assert experiment.wait(job)["driver_exit_code"] == 1
    outcome = experiment.json(layout.outcome(1, 1))
    failure = outcome["failure"]
    assert (outcome["state"], failure["kind"], outcome["num_commits"]) == ("failed", "user", 1)
    assert "bad batch in epoch 1" in failure["reason"]
    assert failure["exception_type"] == "ValueError"
    assert outcome["num_restarts"] == 1


def test_poisonous_checkpoint_is_set_aside_and_the_run_finishes(experiment: Experiment, healthy: Experiment) -> None:
    """G3: training fails from the newest checkpoint each time, and not from the one before it."""
    job = experiment.start(loop(poison_at=2), 1)
    assert experiment.wait(job)["status"] == "SUCCEEDED", experiment.log(job)
    [key] = experiment.keys("g000001/quarantine/")
    record = experiment.json(key)
    assert record["released_by"] is None
    assert "loss is nan in epoch 3" in record["reason"]
    assert record["checkpoint"] not in experiment.committed(1)
    assert len(experiment.committed(1)) == EPOCHS
    assert experiment.json(layout.outcome(1, 1))["num_fits"] == 2
    assert_equal_weights(weights(experiment, 1), weights(healthy, 1))


@pytest.mark.slow
def test_error_of_the_code_releases_the_checkpoint(experiment: Experiment) -> None:
    """G2, G6: the one before fails alike, so nothing is wrong with the newest: kept, listed, and a user error."""
    job = experiment.start(loop(raise_at=2, num_workers=1), 1)
    assert experiment.wait(job)["driver_exit_code"] == 1
    outcome = experiment.json(layout.outcome(1, 1))
    assert (outcome["failure"]["kind"], outcome["num_fits"], outcome["failure"]["repeats"]) == ("user", 2, 2)
    [key] = experiment.keys("g000001/quarantine/")
    record = experiment.json(key)
    assert record["released_by"] == "g1/a1"
    # The fit from the one before committed epoch 1 once more: what is newest now is that.
    assert outcome["latest_checkpoint"] == experiment.committed(1)[-1]


@pytest.mark.slow
def test_ray_without_the_seams_trains_unfenced_and_says_so(experiment: Experiment, healthy: Experiment) -> None:
    """The self-check fails: Ray's plain run directory, a warning, the same restore."""
    check = (Path(airflow_provider.__file__).parent / "runtime/seams.py").read_bytes()
    # As if this Ray's manifest lacked a key that ours needs.
    assert b'_SNAPSHOT_KEYS = {"checkpoint_results"' in check
    experiment.package["airflow_provider/runtime/seams.py"] = check.replace(b'{"checkpoint_results"', b'{"another_key"')
    first = experiment.start(loop(), 1)
    experiment.until(lambda: len(published(experiment)) >= 2, job=first, what="2 commits")
    kill(drivers(experiment.ray))
    assert experiment.wait(first)["status"] == "FAILED"
    committed = published(experiment)
    second = experiment.start(loop(), 2)
    assert experiment.wait(second)["status"] == "SUCCEEDED", experiment.log(second)
    assert "NOT FENCED" in experiment.log(second)
    restored, outcome = experiment.json(layout.restored(1, 2)), experiment.json(layout.outcome(1, 2))
    assert (restored["checkpoint"], restored["fenced"], outcome["fenced"]) == (committed[-1], False, False)
    body = experiment.read(f"g000001/{outcome['latest_checkpoint']}/state.pt")
    assert body is not None
    assert_equal_weights(torch.load(io.BytesIO(body), weights_only=True), weights(healthy, 1))


def published(experiment: Experiment) -> list[str]:
    """Names in the generation's own manifest, oldest first."""
    body = experiment.read(layout.published_manifest(1))
    return [e["checkpoint_dir_name"] for e in json.loads(body)["checkpoint_results"]] if body else []


def newest_epoch(experiment: Experiment, n: int) -> int:
    """Of the newest checkpoint in an attempt's manifest; -1 for none."""
    latest = json.loads(experiment.read(layout.manifest(1, n)) or b"{}").get("latest_checkpoint_result")
    return int(latest["metrics"]["epoch"]) if latest else -1


def test_loop_that_ignores_the_checkpoint_fails(experiment: Experiment, healthy: Experiment) -> None:
    """G8: a restore is proven, or the run fails at its first report; G2: the one checkpoint that retention keeps is the good one."""
    keeps_one = CheckpointConfig(num_to_keep=1)
    first = experiment.start(loop(checkpoint=keeps_one), 1)
    experiment.until(lambda: newest_epoch(experiment, 1) >= 2, job=first, what="3 commits")
    kill(drivers(experiment.ray))
    experiment.wait(first)
    [good] = experiment.committed(1)
    state = experiment.read(f"g000001/{good}/state.pt")
    second = experiment.start(loop(ignore_checkpoint=True, checkpoint=keeps_one), 2)
    assert experiment.wait(second)["driver_exit_code"] == 1
    outcome = experiment.json(layout.outcome(1, 2))
    assert (outcome["restore_proven"], outcome["failure"]["kind"]) == ("no", "user")
    assert "began again" in outcome["failure"]["reason"]
    assert good not in experiment.committed(2), "Ray's retention did drop it, so this test shows something"
    assert experiment.read(f"g000001/{good}/state.pt") == state
    third = experiment.start(loop(checkpoint=keeps_one), 3)
    assert experiment.wait(third)["status"] == "SUCCEEDED", experiment.log(third)
    restored = experiment.json(layout.restored(1, 3))
    copy = layout.copy_name(3, good)
    assert (restored["checkpoint"], len(restored["skipped"])) == (copy, 1)
    assert experiment.json(layout.outcome(1, 3))["restore_proven"] == "yes"
    assert_equal_weights(weights(experiment, 3), weights(healthy, 1))
    assert experiment.read(f"g000001/{copy}/state.pt") is None, "retention goes on once the restore is proven"


@pytest.mark.parametrize(
    ("training", "says"),
    [
        pytest.param(loop(target="case:no_such"), "has no 'no_such'", marks=pytest.mark.slow, id="no function"),
        pytest.param(
            loop(target="not_there:train"), "no module named 'not_there'", marks=pytest.mark.slow, id="no module"
        ),
        pytest.param(
            TrainingSpec(kind=TrainingKind.TRAINER, target="factory:forgets"),
            "doesn't use the run config",
            marks=pytest.mark.slow,
            id="run config forgotten",
        ),
    ],
)
def test_wrong_code_path_is_a_config_error(experiment: Experiment, training: TrainingSpec, says: str) -> None:
    """Bad input ends retries at once, before any worker starts."""
    job = experiment.start(training, 1)
    assert experiment.wait(job)["driver_exit_code"] == 1
    failure = experiment.json(layout.outcome(1, 1))["failure"]
    assert failure["kind"] == "config"
    assert says in failure["reason"]
