"""The driver's clock is set anew, or its machine was suspended: no healthy training may end by that, and no wait become endless."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec, Timings, TrainingSpec
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import Phase
from airflow_provider.core.spec import StorageConfig
from airflow_provider.runtime import scribe as scribe_module
from airflow_provider.runtime.progress import Progress
from airflow_provider.runtime.scribe import Scribe
from airflow_provider.runtime.storage import open_store

LIMIT_S = 600.0
START = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


class Clocks:
    """A steady clock, and one that people set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s, self.off_s = 0.0, 0.0
        monkeypatch.setattr(scribe_module, "utc_now", self.now)
        monkeypatch.setattr(scribe_module, "time", SimpleNamespace(monotonic=lambda: self.passed_s))

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed_s + self.off_s)


class Watched:
    """A scribe whose ticks are steps of the test."""

    def __init__(self, folder: Path, phase: Phase, clocks: Clocks) -> None:
        training = TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f")
        spec = JobSpec(
            experiment_uri=str(folder),
            ref=AttemptRef(generation=1, attempt=1),
            k=1,
            submission_id="job-1",
            training=training,
            timings=Timings(stall_timeout_s=LIMIT_S, resource_timeout_s=LIMIT_S),
        )
        store = open_store(str(folder), StorageConfig())
        self.ended: list[Failure] = []
        self.scribe = Scribe(store, spec, run_uid="me", events_path=str(folder / "events"))
        self.scribe.on_fatal = self.ended.append
        self.scribe.progress = Progress(phase=phase, phase_since=clocks.now())
        self.clocks = clocks

    def lives(self, seconds: float) -> None:
        """Tick until so many seconds have passed."""
        end = self.clocks.passed_s + seconds
        while self.clocks.passed_s < end and not self.ended:
            self.clocks.passed_s += 10.0
            self.scribe._tick_events()


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.WAITING])
@pytest.mark.parametrize("step_s", [7_200.0, -7_200.0])
def test_a_clock_that_is_set_anew_moves_no_limit(tmp_path: Path, clocks: Clocks, phase: Phase, step_s: float) -> None:
    watched = Watched(tmp_path, phase, clocks)
    watched.lives(300)
    clocks.off_s += step_s
    watched.lives(LIMIT_S - 300)
    assert watched.ended == []
    watched.lives(50)
    kinds = {Phase.TRAINING: FailureKind.STALLED, Phase.WAITING: FailureKind.CAPACITY}
    assert [failure.kind for failure in watched.ended] == [kinds[phase]]


def test_a_commit_before_the_step_still_counts(tmp_path: Path, clocks: Clocks) -> None:
    watched = Watched(tmp_path, Phase.TRAINING, clocks)
    watched.lives(500)
    progress = watched.scribe.progress
    watched.scribe.progress = Progress(Phase.TRAINING, progress.phase_since, num_commits=1, last_commit_at=clocks.now())
    clocks.off_s += 86_400
    watched.lives(LIMIT_S)
    assert watched.ended == []
    watched.lives(50)
    assert len(watched.ended) == 1
