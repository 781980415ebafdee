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
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.job import TrainingKind, TrainVersion
from airflow_provider.core.job_spec import JobSpec, TrainingSpec
from airflow_provider.core.layout_v1 import parse_run, state_checkpoint
from airflow_provider.core.manifest import Manifest, parse_manifest
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import ClaimRecord, OutcomeRecord, OutcomeState, RecordSegment
from airflow_provider.core.spec import CheckpointConfig, FailureConfig, StorageConfig
from tests.stack.ray_cluster import RayCluster
from tests.stack.s3 import S3Server

pytestmark = [pytest.mark.timeout(400)]
REPO = Path(__file__).parents[2]
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

    def start(
        self, attempt: int, training: TrainingSpec, *, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
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
        for_workers = {"RAY_TRAIN_V2_ENABLED": "0", "PYTHONPATH": str(REPO), "V1_GATE": str(self.gate)}
        own = {
            "RAY_ADDRESS": f"127.0.0.1:{self.cluster.port}",
            "PYTHONPATH": str(REPO),
            # As the Jobs API hands a job its runtime environment.
            "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"env_vars": for_workers}}),
        }
        with (self.folder / f"driver-{attempt}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "airflow_provider.runtime.driver", "--spec", str(spec)],
                env={**self.cluster.env(), **self.s3.env(), **own, **(env or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )

    def finish(self, attempt: int, training: TrainingSpec) -> OutcomeRecord:
        """Run an attempt to its end."""
        process = self.start(attempt, training)
        try:
            process.wait(timeout=200)
        finally:
            process.kill()
        body = self.read(layout.outcome(1, attempt))
        assert body is not None, self.log(attempt)
        return OutcomeRecord.parse(body, key="outcome")

    def kill_when(self, process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
        """SIGKILL the driver once the condition holds; a driver that ended before proves nothing."""
        try:
            self.wait_until(condition, process)
        finally:
            process.kill()
        assert process.wait(timeout=10) == -signal.SIGKILL

    def wait_until(self, condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 150
        while not condition():
            assert process.poll() is None, self.log(1)
            assert time.monotonic() < end, self.log(1)
            time.sleep(0.1)

    def log(self, attempt: int) -> str:
        return (self.folder / f"driver-{attempt}.log").read_text(errors="replace")

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


def short(names: tuple[str, ...]) -> list[str]:
    """Checkpoint names without their folders."""
    return [name.rpartition("/")[2] for name in names]


def test_a_killed_driver_is_restored_in_its_run_directory(experiment: Experiment) -> None:
    """The mission on V1: can_restore and restore on the S3 path, nothing trained again, datasets given again."""
    first = experiment.start(1, spec())
    experiment.kill_when(
        first, lambda: experiment.state() == "checkpoint_000001" and len(experiment.manifest(1).entries) == 2
    )
    assert [e.metrics["epoch"] for e in experiment.manifest(1).entries] == [0, 1]
    experiment.gate.touch()

    outcome = experiment.finish(2, spec())
    assert outcome.state is OutcomeState.SUCCESS, experiment.log(2)
    assert "restore of attempts/000001/v1" in experiment.log(2)
    manifest = experiment.manifest(2)
    assert manifest.latest is not None
    assert manifest.latest.metrics == {"epoch": 3, "first": 2, "rows": 8, "epochs": 4, "training_iteration": 4}
    # Ray's retention is followed: two are kept, both exist, in the run directory that attempt 1 started.
    assert short(manifest.names) == ["checkpoint_000002", "checkpoint_000003"]
    assert all(name.startswith("attempts/000001/v1/") and experiment.exists(name) for name in manifest.names)
    assert (outcome.latest_checkpoint, outcome.fenced, outcome.train_version) == (manifest.latest.name, False, "v1")
    assert outcome.restore_proven == "yes"
    body = experiment.read(layout.segment(1, 2, "000001"))
    assert body is not None
    segment = RecordSegment.parse(body, key="segment")
    recorded, phases = segment.checkpoints, [p.phase.value for p in segment.phases]
    assert phases == ["starting", "restoring", "starting", "waiting", "training", "finishing"]
    assert short(tuple(e.checkpoint for e in recorded)) == ["checkpoint_000002", "checkpoint_000003"]
    assert [short((e.parent or "",)) for e in recorded] == [["checkpoint_000001"], ["checkpoint_000002"]]
    assert [f.key for f in recorded[-1].files] == ["state.json"]


@pytest.mark.slow
def test_a_user_error_ends_the_fit_and_a_corrected_config_resumes_in_a_new_directory(experiment: Experiment) -> None:
    """V1 wraps a KeyError in three Ray errors and repeats it; and its restore would ignore the corrected config."""
    experiment.gate.touch()
    buggy = spec(train_loop_config={"epochs": 4, "bug_in": 2}, failure=FailureConfig(max_failures=20))
    outcome = experiment.finish(1, buggy)
    assert outcome.failure is not None, experiment.log(1)
    # Ray would have repeated it 20 times (G6). The second fit asked whether the newest checkpoint was to blame: it was not.
    assert (outcome.num_fits, outcome.num_restarts) == (2, 4), experiment.log(1)
    assert "is released from quarantine: it fails without" in experiment.log(1)
    assert "the same error 2 times" in outcome.failure.reason
    assert (outcome.failure.kind, outcome.failure.exception_type) == (FailureKind.USER, "KeyError")
    assert outcome.failure.reason.count("'labels'") == 1
    old = experiment.manifest(1).names
    assert short(old) == ["checkpoint_000000", "checkpoint_000000"]
    assert [name.split("/")[2] for name in old] == ["v1", "v1-2"], "a fit in the same directory would have overwritten"

    outcome = experiment.finish(2, spec(train_loop_config={"epochs": 6}))
    assert outcome.state is OutcomeState.SUCCESS, experiment.log(2)
    assert "resume_from_checkpoint" in experiment.log(2)
    manifest = experiment.manifest(2)
    assert manifest.latest is not None
    assert (manifest.latest.metrics["first"], manifest.latest.metrics["epoch"], manifest.latest.metrics["epochs"]) == (
        2,
        5,
        6,
    )
    assert manifest.latest.name.startswith("attempts/000002/v1/")
    # A run directory of its own prunes nothing of the other.
    assert set(old) < set(manifest.names)
    assert all(experiment.exists(name) for name in manifest.names)


@pytest.mark.slow
def test_a_commit_that_rays_state_does_not_know_yet_is_not_trained_again(experiment: Experiment) -> None:
    """Ray's own restore would go back: its state lags ten seconds behind. Our manifest doesn't (G2)."""
    training = spec(checkpoint=CheckpointConfig(), datasets=None)
    first = experiment.start(1, training, env={"TUNE_GLOBAL_CHECKPOINT_S": "10000"})
    experiment.kill_when(first, lambda: len(experiment.manifest(1).entries) == 2)
    assert experiment.state() != "checkpoint_000001", "Ray's state was not behind: this proves nothing"
    experiment.gate.touch()
    outcome = experiment.finish(2, training)
    assert outcome.state is OutcomeState.SUCCESS, experiment.log(2)
    latest = experiment.manifest(2).latest
    assert latest is not None
    assert (latest.metrics["first"], latest.metrics["epoch"]) == (2, 3)
    assert "not from checkpoint_000001" in experiment.log(2)


@pytest.mark.slow
def test_a_trainer_factory_is_restored_with_the_class_it_returns(experiment: Experiment) -> None:
    """All built-in trainers: the factory is called again, for what restore must be given again."""
    training = spec(
        kind=TrainingKind.TRAINER, target="tests.e2e.v1_training:make_trainer", train_loop_config=None, datasets=None
    )
    first = experiment.start(1, training)
    experiment.kill_when(
        first, lambda: experiment.state() == "checkpoint_000001" and len(experiment.manifest(1).entries) == 2
    )
    experiment.gate.touch()
    outcome = experiment.finish(2, training)
    assert outcome.state is OutcomeState.SUCCESS, experiment.log(2)
    assert "restore of attempts/000001/v1" in experiment.log(2)
    latest = experiment.manifest(2).latest
    assert latest is not None
    assert (latest.metrics["first"], latest.metrics["epoch"], latest.metrics["rows"]) == (2, 3, 8)
