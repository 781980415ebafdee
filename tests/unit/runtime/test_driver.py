"""The driver from its first look to its exit code, over a local bucket with a stand-in for Ray."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.job import EXIT_FAILED, EXIT_SUPERSEDED, TrainingKind
from airflow_provider.core.job_spec import JobSpec, Timings, TrainingSpec
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import AliveRecord, ClaimRecord, OutcomeRecord, OutcomeState, Phase, StopRecord
from airflow_provider.runtime import ending
from airflow_provider.runtime.driver import Driver
from tests.support.fit_world import FakeRay, Fit, ends, fails

AT = datetime(2026, 11, 29, tzinfo=timezone.utc)


class Left(Exception):
    """Stands in for the end of the process."""


@pytest.fixture(autouse=True)
def no_exit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(ending.os, "_exit", leave)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, before)


def driver(root: Path, *fits: Fit, n: int = 1, is_fenced: bool = True, claims: bool = True, **fields: Any) -> Driver:
    spec = JobSpec(
        experiment_uri=str(root),
        ref=AttemptRef(generation=1, attempt=n),
        k=n,
        submission_id=f"job-{n}",
        timings=Timings(refit_backoff_s=0.0, claim_poll_s=60.0),
        training=TrainingSpec(kind=TrainingKind.ENTRYPOINT, command="true"),
        **fields,
    )
    made = Driver(spec, spec_file="unused")
    made.training = FakeRay(made.store, spec.ref, made.scribe.events.path, list(fits), is_fenced)
    if claims:
        record = ClaimRecord(
            k=n,
            generation=1,
            attempt=n,
            submission_id=f"job-{n}",
            address="x",
            try_number=n,
            intent="start",
            spec_digest="s",
            code_digest="c",
            created_at=AT,
        )
        made.store.write_record(layout.claim(1, n), record)
    return made


def outcome(of: Driver) -> OutcomeRecord:
    record = of.store.read_record(OutcomeRecord, layout.outcome(*of.spec.ref.rank))
    assert record is not None
    return record


def test_success_publishes_the_manifest_and_leaves_an_outcome(tmp_path: Path) -> None:
    one = driver(tmp_path, ends(0, 1))
    assert one.run() == 0
    assert outcome(one).state is OutcomeState.SUCCESS
    published = one.store.read(layout.published_manifest(1)) or b""
    assert parse_manifest(published, key="m").names == ("attempts/000001/checkpoint_0", "attempts/000001/checkpoint_1")


def test_failure_carries_its_kind(tmp_path: Path) -> None:
    one = driver(tmp_path, fails(FailureKind.USER, 0))
    assert one.run() == 1
    failure = outcome(one).failure
    assert failure is not None
    assert failure.kind is FailureKind.USER


def test_without_fencing_rays_own_manifest_stays_the_last_word(tmp_path: Path) -> None:
    """Publishing the start manifest over it would lose every commit of the attempt."""
    one = driver(tmp_path, ends(0, 1), is_fenced=False)
    assert one.run() == 0
    published = one.store.read(layout.published_manifest(1)) or b""
    assert parse_manifest(published, key="m").names == ("checkpoint_0", "checkpoint_1")
    assert outcome(one).latest_checkpoint == "checkpoint_1"


def test_finished_earlier_attempt_is_carried_over(tmp_path: Path) -> None:
    driver(tmp_path, ends(0)).run()
    two = driver(tmp_path, fails(FailureKind.USER), n=2)
    with pytest.raises(Left, match="0"):
        two.run()
    assert outcome(two).carried_from == AttemptRef(generation=1, attempt=1)
    assert outcome(two).latest_checkpoint == "attempts/000001/checkpoint_0"


def test_newer_claim_at_start_writes_nothing(tmp_path: Path) -> None:
    driver(tmp_path, n=2)
    one = driver(tmp_path, ends(0))
    with pytest.raises(Left, match=str(EXIT_SUPERSEDED)):
        one.run()
    assert one.store.names(layout.attempt(1, 1)) == ["claim.json"]


def test_stop_before_the_start_is_obeyed(tmp_path: Path) -> None:
    """PROTOCOL 5, story 8: Ray ignores a stop of a PENDING job."""
    one = driver(tmp_path, ends(0))
    one.store.write_record(layout.stop(1, 1, 1), StopRecord(k=1, reason="marked failed", created_at=AT))
    with pytest.raises(Left, match="76"):
        one.run()
    assert outcome(one).state is OutcomeState.CANCELLED
    assert not one.store.exists(layout.manifest(1, 1))


def test_same_attempt_running_elsewhere_is_left_alone(tmp_path: Path) -> None:
    one = driver(tmp_path, ends(0))
    other = AliveRecord(run_uid="other", phase=Phase.TRAINING, phase_since=AT, written_at=AT)
    one.store.write_record(layout.alive(1, 1), other)
    with pytest.raises(Left, match=str(EXIT_SUPERSEDED)):
        one.run()
    assert not one.store.exists(layout.outcome(1, 1))


def test_without_a_claim_nothing_is_written(tmp_path: Path) -> None:
    one = driver(tmp_path, ends(0), claims=False)
    assert one.run() == EXIT_FAILED  # its last line says that the cluster reads another store
    assert one.store.names(layout.attempt(1, 1)) == []
