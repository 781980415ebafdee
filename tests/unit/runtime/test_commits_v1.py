"""V1's committed checkpoints are ours to remember: Ray's own state lags behind them."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import RayJobFailed, StoreUnreachable
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec, TrainingSpec
from airflow_provider.core.layout_v1 import ModeV1
from airflow_provider.core.manifest import Manifest, ManifestEntry, parse_manifest
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import ClaimRecord
from airflow_provider.core.restore import Candidate, RestorePoint
from airflow_provider.core.spec import FailureConfig, StorageConfig
from airflow_provider.runtime.events import CommitEvent, EventReader, FailureEvent
from airflow_provider.runtime.storage import ExperimentStore, open_store

commits_v1 = pytest.importorskip("airflow_provider.runtime.commits_v1")
TRIAL = "attempts/000001/v1/TorchTrainer_6eea7_00000_0_x"
REF = AttemptRef(generation=1, attempt=1)


@pytest.fixture
def store(tmp_path: Path) -> ExperimentStore:
    return open_store(str(tmp_path / "experiment"), StorageConfig())


def make_log(store: ExperimentStore, tmp_path: Path, **changes: Any) -> Any:
    """A log that begins with one checkpoint of an older run directory."""
    options: dict[str, Any] = {
        "events_path": str(tmp_path / "events"),
        "start": Manifest(entries=(ManifestEntry("attempts/000001/checkpoint_old"),)),
        "failure_config": FailureConfig(),
        "is_superseded": lambda: False,
    }
    return commits_v1.CommitLog(store, REF, **{**options, **changes})


def listed(store: ExperimentStore) -> list[str]:
    """What the stored manifest lists."""
    body = store.read(layout.manifest(1, 1))
    return [] if body is None else [n.rpartition("/")[2] for n in parse_manifest(body, key="manifest").names]


def commit(log: Any, number: int, **metrics: Any) -> None:
    """Commit a checkpoint as Tune tells it."""
    log.commit(f"{log.base}{TRIAL}/checkpoint_{number:06d}", {"epoch": number, "config": {"key": "secret"}, **metrics})


def test_a_commit_is_in_the_bucket_before_tune_goes_on(store: ExperimentStore, tmp_path: Path) -> None:
    """A driver killed in the next moment has lost nothing."""
    log = make_log(store, tmp_path)
    commit(log, 0)
    assert listed(store) == ["checkpoint_old", "checkpoint_000000"]
    body = store.read(layout.manifest(1, 1))
    assert body is not None
    assert b"secret" not in body
    (event,) = EventReader(log.events_path).read_new()
    assert isinstance(event, CommitEvent)
    assert (event.checkpoint, event.metrics) == (f"{TRIAL}/checkpoint_000000", {"epoch": 0})


def test_retention_is_followed_in_its_own_trial_only(store: ExperimentStore, tmp_path: Path) -> None:
    """What another run directory holds is not this trial's to prune."""
    log = make_log(store, tmp_path)
    for number in range(3):
        commit(log, number)
    log.retain(log.base + TRIAL, {f"{log.base}{TRIAL}/checkpoint_{n:06d}" for n in (1, 2)})
    assert listed(store) == ["checkpoint_old", "checkpoint_000001", "checkpoint_000002"]


def test_a_superseded_driver_registers_nothing(store: ExperimentStore, tmp_path: Path) -> None:
    """Tune skips registration and retention when this raises: nothing that a newer attempt uses is deleted."""
    log = make_log(store, tmp_path, is_superseded=lambda: True)
    with pytest.raises(InterruptedError):
        commit(log, 0)
    assert EventReader(log.events_path).read_new() == []


def test_an_outage_loses_no_commit(store: ExperimentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest is written again with the next step; an unanswered claim check is no answer."""

    def unreachable(*_: Any) -> bool:
        raise StoreUnreachable("The object store did not answer")

    log = make_log(store, tmp_path, is_superseded=unreachable)
    with monkeypatch.context() as outage:
        outage.setattr(store, "write", unreachable)
        commit(log, 0)
    assert listed(store) == []
    log.retain(log.base + TRIAL, {f"{log.base}{TRIAL}/checkpoint_000000"})
    assert listed(store) == ["checkpoint_old", "checkpoint_000000"]
    assert len(EventReader(log.events_path).read_new()) == 1


def test_the_same_user_error_twice_ends_the_fit(store: ExperimentStore, tmp_path: Path) -> None:
    """Ray would repeat it 20 times (G6); a lost node says nothing about the code."""
    log = make_log(store, tmp_path)
    bug = Failure(kind=FailureKind.USER, reason="KeyError: 'labels'", exception_type="KeyError")
    log.judge(Failure(kind=FailureKind.INFRASTRUCTURE, reason="a node died"))
    log.judge(bug)
    with pytest.raises(RayJobFailed):
        log.judge(bug)
    assert log.ended is not None
    assert log.ended.kind is FailureKind.USER
    events = [e for e in EventReader(log.events_path).read_new() if isinstance(e, FailureEvent)]
    assert [e.decision.partition(":")[0] for e in events] == ["Ray", "Ray", "ended the fit"]


def job(attempt: int) -> JobSpec:
    """An attempt of the experiment."""
    return JobSpec(
        experiment_uri="/x",
        ref=AttemptRef(generation=1, attempt=attempt),
        k=attempt,
        submission_id="s",
        training=TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f"),
    )


def claim(store: ExperimentStore, attempt: int, digest: str) -> None:
    """Attempt `attempt` asked for what `digest` stands for."""
    record = ClaimRecord(
        k=attempt,
        generation=1,
        attempt=attempt,
        submission_id="s",
        address="x",
        try_number=attempt,
        intent="test",
        spec_digest=digest,
        code_digest="c",
        created_at=datetime.now(timezone.utc),
    )
    store.write_record(layout.claim(1, attempt), record)


def test_a_run_directory_with_an_empty_state_file_is_left_alone(store: ExperimentStore) -> None:
    """C04 in a bucket: the checkpoint is used, the directory that can't be restored is not written to."""
    train_v1 = pytest.importorskip("airflow_provider.runtime.train_v1")
    for attempt in (1, 2):
        claim(store, attempt, "same")
    store.write("g000001/attempts/000001/v1/trainer.pkl", b"")
    store.write(f"g000001/{TRIAL}/checkpoint_000003/model.pt", b"x")
    point = RestorePoint(Candidate(f"{TRIAL}/checkpoint_000003"), "latest")
    plan = train_v1.plan_of(job(2), store=store, point=point)
    assert (plan.mode, plan.run_dir) == (ModeV1.RESUME, "attempts/000002/v1")
    assert "trainer.pkl has 0 bytes" in plan.reason
    assert train_v1.plan_of(job(2), store=store, point=RestorePoint(None, "start")).mode is ModeV1.START
