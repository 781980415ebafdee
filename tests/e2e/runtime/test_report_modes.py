"""Every way to report a checkpoint on real Ray: recorded alike, restored alike; and a restore of the best or a named one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import TrainingSpec
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.core.spec import ScalingConfig
from tests.stack.ray_cluster import RayCluster
from tests.stack.s3 import S3Server
from tests.support import runtime_case
from tests.support.job_package import Experiment
from tests.support.runtime_case import drivers, kill, new_experiment

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
MODES = ("SYNC", "ASYNC", "NO_UPLOAD", "UPLOAD_FN")


def training(*, epochs: int, waits: bool = False) -> TrainingSpec:
    return TrainingSpec(
        kind=TrainingKind.TRAIN_LOOP,
        target="modes:train_loop",
        train_loop_config={"epochs": epochs, "waits": waits},
        scaling=ScalingConfig(num_workers=1),
        progress_metric="epoch",
    )


def entries(experiment: Experiment, n: int) -> list[dict[str, Any]]:
    """The recorded checkpoints of an attempt."""
    keys = experiment.keys(layout.segments(1, n))
    return [entry for key in keys for entry in experiment.json(key)["checkpoints"]]


def run_until_recorded(experiment: Experiment, n: int, count: int, **changes: Any) -> str:
    """Start attempt `n`, which waits after its last epoch; kill its driver once `count` checkpoints are recorded."""
    epochs = changes.pop("epochs")
    job = experiment.start(training(epochs=epochs, waits=True), n, **changes)
    experiment.until(lambda: len(entries(experiment, n)) >= count, job=job, what=f"{count} records of attempt {n}")
    kill(drivers(experiment.ray))
    experiment.wait(job)
    return job


@pytest.fixture(scope="module")
def reported(s3: S3Server, ray_cluster: RayCluster) -> Experiment:
    """One attempt that reported an epoch in each mode before its driver was killed."""
    experiment = new_experiment("report modes", s3, ray_cluster)
    experiment.files["modes.py"] = Path(runtime_case.__file__).with_name("upload_modes_case.py").read_bytes()
    run_until_recorded(experiment, 1, len(MODES), epochs=len(MODES))
    return experiment


def test_every_upload_mode_is_committed_in_order_and_recorded_with_its_files(reported: Experiment) -> None:
    names = reported.committed(1)
    own = "attempts/000001/"
    assert len(names) == len(MODES)
    assert names[0].startswith(own)
    assert names[1].startswith(own)
    # Where a training uploads itself is its own business, so it has to choose a folder for each attempt.
    assert names[2] == "mine/g1/a1/epoch_2"
    assert names[3] == f"{own}by_fn_3", "a function is given a name of the attempt's own"
    found = entries(reported, 1)
    assert [e["checkpoint"] for e in found] == names
    assert [e["metrics"]["epoch"] for e in found] == [0, 1, 2, 3]
    assert [e["parent"] for e in found] == [None, *names[:-1]]
    for entry in found:
        [file] = entry["files"]
        assert (file["key"], file["size"], bool(file["etag"])) == ("state.json", len('{"epoch": 0}'), True)
        assert reported.read(f"g000001/{entry['checkpoint']}/state.json") is not None


@pytest.mark.slow
def test_latest_best_and_explicit_restore_what_each_mode_left(reported: Experiment) -> None:
    """From an upload function's, an asynchronous and a self-uploaded checkpoint; none drops out of a later manifest."""
    by_mode = dict(zip(MODES, reported.committed(1), strict=True))
    best = RestorePolicy(mode="best", metric="score", order="max")
    explicit = RestorePolicy(mode="explicit", checkpoint=by_mode["NO_UPLOAD"])
    wanted = [(RestorePolicy(), "UPLOAD_FN", 5), (best, "ASYNC", 3), (explicit, "NO_UPLOAD", 4)]
    for n, (policy, mode, epochs) in enumerate(wanted, 2):
        is_last = policy is explicit
        if is_last:
            job = reported.start(training(epochs=epochs), n, restore=policy)
            assert reported.wait(job)["status"] == "SUCCEEDED", reported.log(job)
        else:
            job = run_until_recorded(reported, n, 1, epochs=epochs, restore=policy)
        restored = reported.json(layout.restored(1, n))
        assert (restored["checkpoint"], restored["skipped"]) == (by_mode[mode], []), mode
        assert f"LOOP starts at epoch {MODES.index(mode) + 1}" in reported.log(job)
        assert set(by_mode.values()) <= set(reported.committed(n)), f"attempt {n} forgot checkpoints"
    outcome = reported.json(layout.outcome(1, 4))
    assert (outcome["state"], outcome["restore_proven"], outcome["fenced"]) == ("success", "yes", True)
    assert outcome["latest_checkpoint"] == "attempts/000004/by_fn_3"
