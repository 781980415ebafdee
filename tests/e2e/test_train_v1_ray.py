"""Ray Train V1 on a real Ray and a real S3: a retry is Trainer.restore, and where that would lose work, a resume."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.job import JobSpec, TrainingKind, TrainingSpec, TrainVersion
from airflow_provider.core.layout_v1 import parse_run, state_checkpoint
from airflow_provider.core.manifest import Manifest, parse_manifest
from airflow_provider.core.records import AttemptRef, CheckpointFile, ClaimRecord
from airflow_provider.core.spec import CheckpointConfig, FailureConfig, StorageConfig
from tests.stack.ray_cluster import RayCluster
from tests.stack.s3 import S3Server

pytestmark = [pytest.mark.timeout(240)]
REPO = Path(__file__).parents[2]
DRIVER = REPO / "tests" / "e2e" / "v1_driver.py"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with RayCluster(tmp_path_factory.mktemp("ray"), env=s3.env()) as head:
        yield head


class Experiment:
    """One experiment in the bucket, and its attempts as local driver processes."""

    def __init__(self, s3: S3Server, cluster: RayCluster, folder: Path) -> None:
        self.s3, self.cluster, self.folder = s3, cluster, folder
        self.name = f"v1/experiment {next(_numbers)}"  # a space: V1 must not encode it
        self.client = s3.client()
        self.gate = folder / "gate"

    def read(self, key: str) -> bytes | None:
        try:
            return self.client.get_object(Bucket="models", Key=f"{self.name}/{key}")["Body"].read()
        except self.client.exceptions.NoSuchKey:
            return None

    def start(self, attempt: int, training: TrainingSpec, *, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        ref = AttemptRef(generation=1, attempt=attempt)
        claim = ClaimRecord(
            k=attempt, generation=1, attempt=attempt, submission_id=f"s{attempt}", address="x", try_number=attempt, intent="test",
            spec_digest=training.model_dump_json(), code_digest="c", created_at=datetime.now(timezone.utc),
        )  # fmt: skip
        self.client.put_object(Bucket="models", Key=f"{self.name}/{layout.claim(1, attempt)}", Body=claim.body())
        job = JobSpec(
            experiment_uri=f"s3://models/{self.name}",
            storage=StorageConfig(endpoint_url=self.s3.endpoint_url, region="us-east-1"),
            ref=ref, k=attempt, submission_id=f"s{attempt}", training=training,
        )  # fmt: skip
        spec = self.folder / f"spec-{attempt}.json"
        spec.write_bytes(job.body())
        own = {
            "RAY_ADDRESS": f"127.0.0.1:{self.cluster.port}",
            "RAY_TRAIN_V2_ENABLED": "0",
            "PYTHONPATH": str(REPO),
            "V1_GATE": str(self.gate),
        }
        with (self.folder / f"driver-{attempt}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(DRIVER), str(spec), str(self.answer_path(attempt))],
                env={**self.cluster.env(), **self.s3.env(), **own, **(env or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )

    def finish(self, attempt: int, training: TrainingSpec) -> dict[str, Any]:
        """Run an attempt to its end."""
        process = self.start(attempt, training)
        try:
            process.wait(timeout=120)
        finally:
            process.kill()
        assert self.answer_path(attempt).exists(), self.log(attempt)
        return json.loads(self.answer_path(attempt).read_text())

    def kill_when(self, process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
        """SIGKILL the driver once the condition holds; a driver that ended before proves nothing."""
        try:
            self.wait_until(condition, process)
        finally:
            process.kill()
        assert process.wait(timeout=10) == -signal.SIGKILL

    def wait_until(self, condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 100
        while not condition():
            assert process.poll() is None, self.log(1)
            assert time.monotonic() < end, self.log(1)
            time.sleep(0.1)

    def answer_path(self, attempt: int) -> Path:
        return self.folder / f"answer-{attempt}.json"

    def log(self, attempt: int) -> str:
        return (self.folder / f"driver-{attempt}.log").read_text(errors="replace")[-6000:]

    def manifest(self, attempt: int) -> Manifest:
        body = self.read(layout.manifest(1, attempt))
        return Manifest() if body is None else parse_manifest(body, key="manifest")

    def state(self) -> str | None:
        """What the newest experiment state of the first run directory knows."""
        prefix = f"{self.name}/g000001/attempts/000001/v1/"
        items = self.client.list_objects_v2(Bucket="models", Prefix=prefix).get("Contents", [])
        run = parse_run(CheckpointFile(key=i["Key"].removeprefix(prefix), size=i["Size"]) for i in items)
        body = self.read(f"g000001/attempts/000001/v1/{run.newest_state}") if run.newest_state else None
        return state_checkpoint(body) if body else None

    def exists(self, checkpoint: str) -> bool:
        return self.read(f"g000001/{checkpoint}/state.json") is not None


@pytest.fixture
def experiment(s3: S3Server, cluster: RayCluster, tmp_path: Path) -> Experiment:
    return Experiment(s3, cluster, tmp_path)


def spec(**changes: Any) -> TrainingSpec:
    """Four epochs, the newest two checkpoints kept."""
    values: dict[str, Any] = {
        "kind": TrainingKind.TRAIN_LOOP,
        "target": "tests.e2e.v1_training:train_loop",
        "train_loop_config": {"epochs": 4},
        "datasets": "tests.e2e.v1_training:datasets",
        "failure": FailureConfig(max_failures=0),
        "checkpoint": CheckpointConfig(num_to_keep=2),
        "train_version": TrainVersion.V1,
    }
    return TrainingSpec(**{**values, **changes})


def test_a_killed_driver_is_restored_in_its_run_directory_and_a_new_config_resumes_in_another(experiment: Experiment) -> None:
    """The mission on V1: can_restore and restore on the S3 path, datasets given again; then the same with 6 epochs."""
    first = experiment.start(1, spec())
    experiment.kill_when(first, lambda: experiment.state() == "checkpoint_000001" and len(experiment.manifest(1).entries) == 2)
    assert [e.metrics["epoch"] for e in experiment.manifest(1).entries] == [0, 1]
    experiment.gate.touch()

    answer = experiment.finish(2, spec())
    assert answer["mode"] == "restore", answer
    assert answer["metrics"]["epoch"] == 3
    assert answer["metrics"]["first"] == 2  # nothing trained again
    assert answer["metrics"]["rows"] == 8  # the datasets were given again
    assert "config" not in answer["metrics"]
    names = experiment.manifest(2).names
    assert [name.rpartition("/")[2] for name in names] == ["checkpoint_000002", "checkpoint_000003"]
    assert all(name.startswith("attempts/000001/v1/") and experiment.exists(name) for name in names)

    answer = experiment.finish(3, spec(train_loop_config={"epochs": 6}))
    assert answer["mode"] == "resume", answer
    assert "train_loop_config" in answer["reason"]
    assert (answer["metrics"]["first"], answer["metrics"]["epoch"], answer["metrics"]["epochs"]) == (4, 5, 6)
    third = experiment.manifest(3)
    assert third.latest is not None
    assert third.latest.name.startswith("attempts/000003/v1/")
    # A run directory of its own prunes nothing of the other.
    assert all(experiment.exists(name) for name in (*names, *third.names))


def test_a_commit_that_rays_state_does_not_know_yet_is_not_trained_again(experiment: Experiment) -> None:
    """Ray's own restore would go back: its state lags ten seconds behind. Our manifest doesn't (G2)."""
    first = experiment.start(1, spec(), env={"TUNE_GLOBAL_CHECKPOINT_S": "10000", "TUNE_MAX_PENDING_TRIALS_PG": "1"})
    experiment.kill_when(first, lambda: len(experiment.manifest(1).entries) == 2)
    experiment.gate.touch()
    behind = experiment.state() != "checkpoint_000001"
    answer = experiment.finish(2, spec())
    assert answer["metrics"]["first"] == 2
    assert answer["metrics"]["epoch"] == 3
    assert answer["mode"] == ("resume" if behind else "restore"), answer


def test_a_user_error_in_a_factory_training_is_told_once_and_a_corrected_one_restores(experiment: Experiment) -> None:
    """V1 wraps a KeyError in three Ray errors; what reaches the DAG author is the KeyError."""
    experiment.gate.touch()
    failure = experiment.finish(1, spec(train_loop_config={"epochs": 4, "bug_in": 2}))["failure"]
    assert failure["kind"] == "user"
    assert failure["exception_type"] == "KeyError"
    assert failure["reason"].count("'labels'") == 1

    answer = experiment.finish(
        2, spec(kind=TrainingKind.TRAINER, target="tests.e2e.v1_training:make_trainer", train_loop_config=None, datasets=None)
    )
    assert (answer["mode"], answer["metrics"]["first"], answer["metrics"]["epoch"]) == ("resume", 2, 3)
    again = experiment.finish(
        3, spec(kind=TrainingKind.TRAINER, target="tests.e2e.v1_training:make_trainer", train_loop_config=None, datasets=None)
    )
    assert again["metrics"]["epoch"] == 3
    assert again["mode"] == "restore", again
