"""Records from events, completed from the manifest; progress, and what is overdue."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow.fs
import pytest

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec, Timings, TrainingSpec
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.phases import MAX_PHASES
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import Phase, RecordSegment
from airflow_provider.runtime import recorder as recording
from airflow_provider.runtime.events import CommitEvent, FailureEvent, PhaseEvent, ReportEvent, append_event
from airflow_provider.runtime.progress import Progress
from airflow_provider.runtime.recorder import Recorder, complete_quietly
from airflow_provider.runtime.scribe import Scribe
from airflow_provider.runtime.storage import ExperimentStore

AT = datetime(2026, 11, 29, tzinfo=timezone.utc)
REF = AttemptRef(generation=1, attempt=1)


@pytest.fixture
def store(tmp_path: Path) -> ExperimentStore:
    return ExperimentStore(pyarrow.fs.LocalFileSystem(), str(tmp_path))


def name(i: int) -> str:
    return f"attempts/000001/checkpoint_{i}"


def commit(store: ExperimentStore, i: int) -> CommitEvent:
    store.write(f"g000001/{name(i)}/model.pt", b"x" * i)
    return CommitEvent(at=AT, checkpoint=name(i), metrics={"epoch": i})


def segments(store: ExperimentStore) -> dict[str, RecordSegment]:
    folder = layout.segments(1, 1)
    found = {key: store.read_record(RecordSegment, folder + key) for key in store.names(folder.rstrip("/"))}
    return {key: segment for key, segment in found.items() if segment is not None}


def test_open_segment_is_written_again_until_it_is_full(
    store: ExperimentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one object per checkpoint for ever, and never more than the limit in one."""
    monkeypatch.setattr(recording, "MAX_ENTRIES", 3)
    recorder = Recorder(store, REF)
    for i in range(1, 6):
        recorder.take([commit(store, i)])
        recorder.flush(is_final=True)
    found = segments(store)
    assert {key: [c.metrics["epoch"] for c in s.checkpoints] for key, s in found.items()} == {
        "000001.json": [1, 2, 3],
        "000002.json": [4, 5],
    }
    assert found["000001.json"].checkpoints[0].files[0].size == 1
    assert [c.parent for c in found["000002.json"].checkpoints] == [name(3), name(4)]


def test_failures_are_recorded_with_the_commits_before_them(store: ExperimentStore) -> None:
    recorder = Recorder(store, REF)
    failure = Failure(kind=FailureKind.INFRASTRUCTURE, reason="worker died")
    restarting = FailureEvent(at=AT, failure=failure, decision="Ray: restarting")
    ended = FailureEvent(at=AT, failure=failure, decision="ended the fit", is_final=True)
    recorder.take([commit(store, 1), restarting, ended])
    recorder.flush(is_final=True)
    (segment,) = segments(store).values()
    assert [(r.failure.kind, r.commits_before, r.is_restart) for r in segment.restarts] == [
        (FailureKind.INFRASTRUCTURE, 1, True),
        (FailureKind.INFRASTRUCTURE, 1, False),
    ]


def test_store_that_is_away_loses_nothing(store: ExperimentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(store, REF)
    recorder.take([commit(store, 1), commit(store, 2)])
    real, calls = store.files, []

    def flaky(folder: str):
        calls.append(folder)
        if len(calls) == 2:
            raise recording.RayTrainError("away")
        return real(folder)

    monkeypatch.setattr(store, "files", flaky)
    with pytest.raises(recording.RayTrainError):
        recorder.flush(is_final=True)
    recorder.flush(is_final=True)
    (segment,) = segments(store).values()
    assert [c.checkpoint for c in segment.checkpoints] == [name(1), name(2)]


def test_what_the_thread_missed_is_completed_and_marked_late(store: ExperimentStore) -> None:
    """G7: SIGKILL of the driver loses records, never commits."""
    for i in (1, 2, 3):
        commit(store, i)
    foreign = ManifestEntry("attempts/000007/checkpoint_0", {})
    entries = (foreign, *(ManifestEntry(name(i), {"epoch": i, "loss": float("nan")}) for i in (1, 2, 3)))
    manifest = Manifest(entries, entries[-1], (0, 1, 2, 3))
    written = complete_quietly(store, REF, manifest=manifest, known={name(2)}, writer="000002")
    assert written == 2
    found = segments(store)
    assert list(found) == ["late-000002-1.json"]
    entries_found = found["late-000002-1.json"].checkpoints
    assert [(c.checkpoint, c.parent, c.late) for c in entries_found] == [
        (name(1), foreign.name, True),
        (name(3), name(2), True),
    ]
    assert entries_found[0].metrics == {"epoch": 1, "loss": "NaN"}
    assert complete_quietly(store, REF, manifest=manifest, known={name(1), name(2), name(3)}, writer="000003") == 0
    assert list(segments(store)) == ["late-000002-1.json"]


def at(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def test_stall_counts_training_without_commits_and_not_waiting() -> None:
    """Log lines are no progress, and nodes that come late are no stall."""
    timings = Timings(stall_timeout_s=100, resource_timeout_s=1000)
    progress = Progress(phase=Phase.STARTING, phase_since=at(0))
    for event in (
        PhaseEvent(at=at(10), phase=Phase.TRAINING),
        PhaseEvent(at=at(70), phase=Phase.WAITING),
        PhaseEvent(at=at(500), phase=Phase.TRAINING),
    ):
        progress = progress.after(event)
    assert progress.overdue(timings, now=at(539)) is None
    overdue = progress.overdue(timings, now=at(541))
    assert overdue is not None
    assert (overdue.kind, overdue.reason.split(" (")[0]) == (FailureKind.STALLED, "no commit in 101 s of training")
    progress = progress.after(CommitEvent(at=at(541), checkpoint="c", metrics={}))
    assert progress.overdue(timings, now=at(640)) is None


def test_waiting_for_nodes_is_bounded_and_counts_on_over_failed_starts() -> None:
    timings = Timings(resource_timeout_s=100)
    progress = Progress(phase=Phase.STARTING, phase_since=at(0)).after(PhaseEvent(at=at(10), phase=Phase.WAITING))
    progress = progress.after(PhaseEvent(at=at(70), phase=Phase.WAITING))
    assert progress.overdue(timings, now=at(110)) is None
    overdue = progress.overdue(timings, now=at(111))
    assert overdue is not None
    assert overdue.kind is FailureKind.CAPACITY
    assert progress.overdue(Timings(resource_timeout_s=None), now=at(99_999)) is None


def test_phases_are_written_once_the_attempt_is_this_runs(store: ExperimentStore) -> None:
    """Before its manifest is written another run may hold the attempt, with records under the same names."""
    recorder = Recorder(store, REF)
    recorder.note_phase(Phase.STARTING, at(0))
    recorder.flush()
    assert segments(store) == {}
    recorder.has_begun = True
    recorder.take([PhaseEvent(at=at(9), phase=Phase.TRAINING), commit(store, 1)])
    recorder.note_phase(Phase.WAITING, at(5))
    recorder.flush()
    (segment,) = segments(store).values()
    assert [(p.phase, p.at) for p in segment.phases] == [
        (Phase.STARTING, at(0)),
        (Phase.WAITING, at(5)),
        (Phase.TRAINING, at(9)),
    ]


def test_a_driver_that_fails_before_its_fit_leaves_its_phases_at_the_end(store: ExperimentStore) -> None:
    recorder = Recorder(store, REF)
    recorder.note_phase(Phase.STARTING, at(0))
    recorder.flush(is_final=True)
    (segment,) = segments(store).values()
    assert [p.phase for p in segment.phases] == [Phase.STARTING]


def test_a_run_that_never_began_leaves_another_runs_records_alone(store: ExperimentStore) -> None:
    """A job that was posted twice: one run froze before its fit while the other one trained, and is terminated as it thaws."""
    frozen, other = Recorder(store, REF), Recorder(store, REF)
    frozen.note_phase(Phase.STARTING, at(0))
    other.take([commit(store, 1)])
    other.flush(is_final=True)
    frozen.flush(is_final=True)
    (segment,) = segments(store).values()
    assert [c.checkpoint for c in segment.checkpoints] == [name(1)]


def test_a_phase_that_is_told_again_writes_nothing(store: ExperimentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(store, REF)
    recorder.has_begun = True
    recorder.note_phase(Phase.WAITING, at(0))
    recorder.flush(is_final=True)
    monkeypatch.setattr(store, "write_record", lambda *_: pytest.fail("written again"))
    recorder.note_phase(Phase.WAITING, at(3))
    recorder.flush(is_final=True)


def test_phases_neither_fill_a_segment_nor_grow_without_end(
    store: ExperimentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_ENTRIES", 3)
    recorder = Recorder(store, REF)
    for second in range(3_000):
        recorder.note_phase((Phase.WAITING, Phase.TRAINING, Phase.LOST)[second % 3], at(second))
    recorder.take([commit(store, i) for i in range(1, 5)])
    recorder.flush(is_final=True)
    first, second_one = segments(store).values()
    assert len(first.checkpoints) == 3
    assert 10 < len(first.phases) <= MAX_PHASES
    assert second_one.phases == first.phases[-1:], "the next segment says the present phase, and what follows"


def test_the_driver_and_the_controller_tell_phases_of_one_history(store: ExperimentStore, tmp_path: Path) -> None:
    """What the driver enters by itself is told without waiting for the thread that records."""
    watched = scribe(store, tmp_path)
    watched.enter(Phase.RESTORING)
    watched.begin_fit(parent=None, metrics=None)
    now = datetime.now(timezone.utc)
    for number, phase in enumerate((Phase.WAITING, Phase.TRAINING), 1):
        append_event(str(tmp_path / "events"), PhaseEvent(at=now + timedelta(seconds=number), phase=phase))
    assert watched.settle()
    watched.enter(Phase.FINISHING)
    assert watched.settle()
    (segment,) = segments(store).values()
    assert {p.phase for p in segment.phases} == set(Phase) - {Phase.LOST}
    assert [p.at for p in segment.phases] == sorted(p.at for p in segment.phases)


def test_a_fit_that_tells_nothing_does_not_count_as_waiting(store: ExperimentStore, tmp_path: Path) -> None:
    """A script that prepares its data, or asks for no run config of ours, may take longer than any node."""
    watched = scribe(store, tmp_path)
    watched.begin_fit(parent=None, metrics=None)
    later = datetime.now(timezone.utc) + timedelta(days=2)
    assert watched.progress.overdue(Timings(resource_timeout_s=3600), now=later) is None
    append_event(str(tmp_path / "events"), PhaseEvent(at=datetime.now(timezone.utc), phase=Phase.WAITING))
    assert watched.settle()
    overdue = watched.progress.overdue(Timings(resource_timeout_s=3600), now=later)
    assert overdue is not None
    assert overdue.kind is FailureKind.CAPACITY


def scribe(store: ExperimentStore, tmp_path: Path) -> Scribe:
    spec = JobSpec(
        experiment_uri=str(tmp_path),
        ref=REF,
        k=1,
        submission_id="job-1",
        training=TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f"),
    )
    return Scribe(store, spec, run_uid="me", events_path=str(tmp_path / "events"))


def test_training_without_a_checkpoint_is_told_early(
    store: ExperimentStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = scribe(store, tmp_path)
    since = datetime.now(timezone.utc) - timedelta(seconds=700)
    watched.progress = Progress(phase=Phase.TRAINING, phase_since=since)
    watched._tick_warnings()
    watched._tick_warnings()
    said = capsys.readouterr().out
    assert said.count("WARNING: no checkpoint in 70") == 1
    watched.progress = watched.progress.after(commit(store, 1))
    watched._num_warned = 0
    watched._tick_warnings()
    assert capsys.readouterr().out == ""


def test_nodes_that_the_cluster_does_not_have_are_told_once_for_each_wait(
    store: ExperimentStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = scribe(store, tmp_path)
    watched.find_shortage = lambda: "it has no GPU"
    since = datetime.now(timezone.utc) - timedelta(seconds=70)
    for phase in (Phase.WAITING, Phase.WAITING, Phase.TRAINING, Phase.WAITING):
        watched.progress = Progress(phase=phase, phase_since=since)
        watched._tick_warnings()
        for thread in threading.enumerate():
            if thread.name == "scribe-wait":
                thread.join(10)
    assert capsys.readouterr().out.splitlines() == ["[ray-train] WARNING: it has no GPU"] * 2


def test_what_was_read_with_a_fatal_report_is_recorded_before_the_process_ends(
    store: ExperimentStore, tmp_path: Path
) -> None:
    """Report and commit come in one breath; what that commit descends from tells the next attempt that it is a beginning."""
    training = TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f", progress_metric="epoch")
    spec = JobSpec(experiment_uri=str(tmp_path), ref=REF, k=1, submission_id="s", training=training)
    events = str(tmp_path / "events.jsonl")
    scribe = Scribe(store, spec, run_uid="u", events_path=events)

    def ends(failure: Failure) -> None:
        scribe.settle()
        raise SystemExit(failure.reason)

    scribe.on_fatal = ends
    scribe.begin_fit(parent="attempts/000009/c4", metrics={"epoch": 4})
    append_event(events, ReportEvent(at=AT, metrics={"epoch": 0}))
    append_event(events, commit(store, 0))
    with pytest.raises(SystemExit, match="epoch fell from 4"):
        scribe.settle()
    (segment,) = segments(store).values()
    assert [(c.checkpoint, c.parent) for c in segment.checkpoints] == [(name(0), "attempts/000009/c4")]


def test_a_fall_of_a_guessed_metric_hides_no_later_fall_of_the_declared_one(
    store: ExperimentStore, tmp_path: Path
) -> None:
    """The outcome names the metric that ended the job, or the next attempt would go on from the beginning."""
    training = TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f", progress_metric="epoch")
    spec = JobSpec(experiment_uri=str(tmp_path), ref=REF, k=1, submission_id="s", training=training)
    events = str(tmp_path / "events.jsonl")
    scribe = Scribe(store, spec, run_uid="u", events_path=events)
    scribe.begin_fit(parent="attempts/000009/c4", metrics={"step": 9})  # of code that reported no epoch yet
    append_event(events, ReportEvent(at=AT, metrics={"step": 1}))
    append_event(events, commit(store, 5))
    append_event(events, ReportEvent(at=AT, metrics={"epoch": 0}))
    scribe.settle()
    assert scribe.proof is not None
    assert scribe.proof.fallen_metric == "epoch"


def test_a_progress_metric_that_is_not_reported_is_said_once(
    store: ExperimentStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Misspelt, it would switch the proof of a restore off in silence."""
    training = TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f", progress_metric="epoche")
    spec = JobSpec(experiment_uri=str(tmp_path), ref=REF, k=1, submission_id="s", training=training)
    events = tmp_path / "events.jsonl"
    for i in (1, 2):
        append_event(str(events), commit(store, i))
    scribe = Scribe(store, spec, run_uid="u", events_path=str(events))
    scribe.settle()
    said = capsys.readouterr().out
    assert said.count("progress_metric 'epoche' is not reported with this checkpoint") == 1
    assert "reported: epoch" in said
