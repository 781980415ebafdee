"""What reading and recording a lineage cost, in calls: the part of benchmark 7 that doesn't depend on the machine."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.fs
import pytest

from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec, TrainingSpec
from airflow_provider.core.lineage import project
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.spec import FailureConfig
from airflow_provider.operators.collecting import read_experiment
from airflow_provider.runtime.events import CommitEvent
from airflow_provider.runtime.reporting import ControllerEvents, adapted_report
from airflow_provider.runtime.scribe import Scribe
from airflow_provider.runtime.storage import ExperimentStore
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.testing.memory_store import MemoryStore
from benchmarks.fit import steepest
from benchmarks.lineage_experiment import NUM_ATTEMPTS, SEGMENT, experiment
from tests.support.counted_work import num_calls
from tests.support.counting_store import CountingStore
from tests.support.stored_experiment import write_experiment

REF = AttemptRef(generation=1, attempt=1)
SPEC = JobSpec(
    experiment_uri="/x",
    ref=REF,
    k=1,
    submission_id="s",
    training=TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f"),
)
Report = Callable[[int], None]


def stored(num: int) -> CountingStore:
    store = MemoryStore()
    write_experiment(store, experiment(store.uri, num))
    return CountingStore(store)


def test_reading_ten_thousand_checkpoints_takes_few_calls_and_linear_work() -> None:
    small = stored(100)
    assert len(project(read_experiment(ExperimentRecords(small))).checkpoints) == 100
    large = stored(10_000)
    found = read_experiment(ExperimentRecords(large))
    assert len(project(found).checkpoints) == 10_000
    more_segments = 10_000 // SEGMENT + 2 - NUM_ATTEMPTS  # of 2,500 checkpoints each attempt has three
    assert large.num_calls - small.num_calls == more_segments, large.log
    work = []
    for size in (100, 400, 1_600):
        records = ExperimentRecords(stored(size))
        work.append((size, num_calls(lambda records=records: project(read_experiment(records)))))
    assert steepest(work) < 1.1, work


def test_a_checkpoint_costs_few_calls_and_little_memory() -> None:
    """Its part of reading and projecting, with eight files and in up to four manifests; the calls and bytes of a Python."""
    size = 1_000
    records = ExperimentRecords(stored(size))
    project(read_experiment(records))  # what is made once is made
    assert num_calls(lambda: project(read_experiment(records))) < 300 * size
    tracemalloc.start()
    try:
        found = project(read_experiment(records))
        assert len(found.checkpoints) == size
        assert tracemalloc.get_traced_memory()[1] < 5_500 * size
    finally:
        tracemalloc.stop()


@pytest.fixture
def events(tmp_path: Path) -> str:
    return str(tmp_path / "events.jsonl")


def rays_report(metrics: dict[str, Any], checkpoint: object = None) -> None:
    """In the place of Ray's."""


@pytest.fixture
def report(events: str) -> Report:
    """What a loop's report runs of ours: in the worker, and in Ray's controller once the checkpoint is committed."""
    hooks = ControllerEvents(events, run_folder="b", failure_config=FailureConfig())
    in_worker = adapted_report(rays_report, storage=None)

    def one(number: int) -> None:
        metrics = {"step": number, "loss": 0.5}
        in_worker(metrics)
        path = f"b/attempts/000001/checkpoint_{number}"
        hooks.after_report(SimpleNamespace(metrics=metrics, checkpoint=SimpleNamespace(path=path)), [metrics])

    return one


class HangingStore(ExperimentStore):
    """Answers nothing until it is released."""

    def __init__(self, root: Path) -> None:
        super().__init__(pyarrow.fs.LocalFileSystem(), str(root))
        self.asked, self.released = threading.Event(), threading.Event()
        self.is_up = True

    def _do(self, action: str, key: str, call):  # type: ignore[no-untyped-def]
        if not self.is_up:
            self.asked.set()
            self.released.wait()
        return super()._do(action, key, call)


def test_reports_do_not_wait_for_a_store_that_hangs(tmp_path: Path, events: str, report: Report) -> None:
    """While the driver's thread hangs in a request; were a report to wait for it, this test would never end."""
    store = HangingStore(tmp_path)
    scribe = Scribe(store, SPEC, run_uid="u", events_path=events)
    scribe.start()
    scribe.begin_fit(parent=None, metrics=None)
    store.is_up = False
    report(0)
    assert store.asked.wait(20), "the thread that records is in the request that hangs"
    for number in range(1, 50):
        report(number)
    assert len(scribe.recorder.recorded) == 0
    store.is_up = True
    store.released.set()
    assert scribe.settle()
    scribe.stop()
    assert len(scribe.recorder.recorded) == 50, "and nothing is lost once it answers"


def test_a_report_costs_the_same_however_many_came_before(report: Report) -> None:
    report(0)  # the first one of a worker group is told apart
    first = num_calls(lambda: report(1))
    for number in range(2, 500):
        report(number)
    assert num_calls(lambda: report(500)) <= first


def test_recording_what_was_reported_is_linear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open segment is written again until it is full: less often the longer it is, so not the square of its length."""
    at = datetime(2026, 11, 30, tzinfo=timezone.utc)
    work = []
    for size in (250, 1_000):
        clock = [0.0]
        monkeypatch.setattr("airflow_provider.runtime.recorder.time.monotonic", lambda clock=clock: clock[0])
        store = ExperimentStore(pyarrow.fs.LocalFileSystem(), str(tmp_path / str(size)))
        scribe = Scribe(store, SPEC, run_uid="u", events_path=str(tmp_path / "none"))
        written: list[int] = []
        monkeypatch.setattr(store, "write", lambda _, body, written=written: written.append(len(body)))
        for number in range(size):
            clock[0] += 1.0  # a checkpoint each second, and the thread looks as often
            scribe.recorder.take(
                [CommitEvent(at=at, checkpoint=f"attempts/000001/c{number}", metrics={"step": number})]
            )
            scribe.recorder.flush()
        scribe.recorder.flush(is_final=True)
        work.append((size, sum(written)))
    assert steepest(work) < 1.5, work
