"""The fit loop over a local bucket with a stand-in for Ray: refits, fallbacks, outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import RayJobFailed
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import EXIT_SUPERSEDED, JobSpec, Timings, TrainingKind, TrainingSpec
from airflow_provider.core.manifest import Manifest, ManifestEntry, parse_manifest
from airflow_provider.core.records import AttemptRef, OutcomeState, QuarantineRecord, RestoredRecord
from airflow_provider.core.spec import FailureConfig
from airflow_provider.runtime.ending import Ending
from airflow_provider.runtime.events import CommitEvent, ReportEvent, append_event
from airflow_provider.runtime.fit_loop import FitLoop
from airflow_provider.runtime.restoring import Resolved, read_attempts
from airflow_provider.runtime.scribe import Scribe
from airflow_provider.runtime.standing import Standing
from airflow_provider.runtime.storage import ExperimentStore

AT = datetime(2026, 11, 29, tzinfo=timezone.utc)
Fit = Callable[["FakeRay"], None]


@dataclass
class FakeRay:
    """Commits as Ray does: files, then manifest, then the callback's event."""

    store: ExperimentStore
    ref: AttemptRef
    events_path: str
    fits: list[Fit]
    is_fenced: bool = True
    starts: list[str | None] = field(default_factory=list)

    @property
    def has_own_manifest(self) -> bool:
        return self.is_fenced

    def prepare(self) -> None:
        """Nothing to prepare."""

    def kill(self) -> None:
        """Nothing runs."""

    @property
    def manifest_key(self) -> str:
        g, n = self.ref.rank
        return layout.manifest(g, n) if self.is_fenced else layout.published_manifest(g)

    def fit(self, start: Resolved, *, fit: int) -> None:
        self.starts.append(start.checkpoint)
        self.fits[fit - 1](self)

    def commit(self, epoch: int) -> None:
        name = f"checkpoint_{epoch}" if not self.is_fenced else f"attempts/{self.ref.attempt:06d}/checkpoint_{epoch}"
        self.store.write(f"g000001/{name}/w", b"1")
        before = parse_manifest(self.store.read(self.manifest_key) or b"", key="m")
        entry = ManifestEntry(name, {"epoch": epoch})
        entries = (*before.entries, entry)
        body = Manifest(entries, entry, tuple(range(len(entries)))).body(ray_version="2.60.0")
        self.store.write(self.manifest_key, body)
        append_event(self.events_path, CommitEvent(at=AT, checkpoint=name, metrics={"epoch": epoch}))


def fails(kind: FailureKind, *epochs: int) -> Fit:
    def fit(ray: FakeRay) -> None:
        for epoch in epochs:
            ray.commit(epoch)
        raise RayJobFailed("broken", failure=Failure(kind=kind, reason="a test"))

    return fit


def ends(*epochs: int) -> Fit:
    return lambda ray: [ray.commit(epoch) for epoch in epochs] and None


class World:
    """One experiment on a local bucket."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = ExperimentStore(pyarrow.fs.LocalFileSystem(), str(root / "bucket"))

    def attempt(self, n: int, *fits: Fit, is_fenced: bool = True, **failure: Any) -> tuple[FitLoop, FakeRay]:
        spec = JobSpec(
            experiment_uri=str(self.root / "bucket"),
            ref=AttemptRef(generation=1, attempt=n),
            k=n,
            submission_id=f"job-{n}",
            timings=Timings(refit_backoff_s=0.0),
            training=TrainingSpec(
                kind=TrainingKind.TRAIN_LOOP, target="m:f", failure=FailureConfig(**failure), progress_metric="epoch"
            ),
        )
        events_path = str(self.root / f"events-{n}.jsonl")
        scribe = Scribe(self.store, spec, run_uid="me", events_path=events_path)
        standing = Standing(self.store, spec, run_uid="me")
        ending = Ending(self.store, spec, standing=standing, scribe=scribe)
        ray = FakeRay(self.store, spec.ref, events_path, list(fits), is_fenced)
        return FitLoop(self.store, spec, scribe, ending, ray, "2.60.0"), ray


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_refit_goes_on_from_the_last_commit(world: World) -> None:
    """A refused manifest write kills a fit whatever max_failures says: the driver fits again within the job."""
    loop, ray = world.attempt(1, fails(FailureKind.NETWORK, 0, 1), fails(FailureKind.INFRASTRUCTURE, 2), ends(3))
    assert loop.run() is None
    assert ray.starts == [None, "attempts/000001/checkpoint_1", "attempts/000001/checkpoint_2"]
    assert loop.ending.facts.num_fits == 3
    restored = world.store.read_record(RestoredRecord, layout.restored(1, 1))
    assert restored is not None
    assert restored.checkpoint is None, "the record holds the first fit's"


def test_user_error_is_not_fitted_again(world: World) -> None:
    loop, ray = world.attempt(1, fails(FailureKind.USER, 0), ends())
    failure = loop.run()
    assert failure is not None
    assert failure.kind is FailureKind.USER
    assert len(ray.starts) == 1


def test_refits_are_bounded(world: World) -> None:
    """Three in a row without a commit, or max_refits in all: Airflow's retry is next."""
    barren, ray = world.attempt(1, *[fails(FailureKind.INFRASTRUCTURE)] * 9)
    assert barren.run() is not None
    assert len(ray.starts) == 3
    fits = [fails(FailureKind.INFRASTRUCTURE, i) for i in range(9)]
    fertile, ray = world.attempt(2, *fits, max_refits=2)
    assert fertile.run() is not None
    assert len(ray.starts) == 3


def test_next_attempt_restores_and_lists_what_the_first_kept(world: World) -> None:
    first, _ = world.attempt(1, fails(FailureKind.USER, 0, 1))
    first.run()
    second, ray = world.attempt(2, ends(2))
    assert second.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_1"]
    names = parse_manifest(world.store.read(layout.manifest(1, 2)) or b"", key="m").names
    assert names == ("attempts/000001/checkpoint_0", "attempts/000001/checkpoint_1", "attempts/000002/checkpoint_2")


def test_without_fencing_the_plain_run_directory_is_used_and_found_again(world: World) -> None:
    """The fallback for a Ray that lacks our seams: its own run directory is the generation's folder."""
    first, _ = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 0), fails(FailureKind.USER, 1), is_fenced=False)
    first.run()
    second, ray = world.attempt(2, ends(2))
    assert second.run() is None
    assert ray.starts == ["checkpoint_1"]
    names = parse_manifest(world.store.read(layout.manifest(1, 2)) or b"", key="m").names
    assert names == ("checkpoint_0", "checkpoint_1", "attempts/000002/checkpoint_2")


def test_outcome_says_what_the_records_say(world: World) -> None:
    loop, _ = world.attempt(1, ends(0, 1))
    loop.run()
    outcome = loop.ending.outcome(OutcomeState.SUCCESS, None)
    assert (outcome.num_commits, outcome.latest_checkpoint) == (2, "attempts/000001/checkpoint_1")
    assert loop.ending.write_outcome(OutcomeState.SUCCESS, None, for_s=1.0)


def test_superseded_driver_writes_no_outcome(world: World) -> None:
    """PROTOCOL 3.5."""
    loop, _ = world.attempt(1, ends(0))
    loop.run()
    world.store.write(layout.claim(1, 2), b"{}")
    assert not loop.ending.write_outcome(OutcomeState.SUCCESS, None, for_s=1.0)
    assert not world.store.exists(layout.outcome(1, 1))


@pytest.mark.parametrize("is_twin_first", [True, False])
def test_a_driver_that_froze_leaves_the_attempt_to_the_run_that_began_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, is_twin_first: bool
) -> None:
    """Its first look found nothing and its sign of life hid the other's: the manifest still tells them apart."""

    class Left(Exception):
        """Stands in for the end of the process."""

    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr("airflow_provider.runtime.ending.os._exit", leave)
    loop, ray = world.attempt(1, fails(FailureKind.INFRASTRUCTURE, 0), ends(1))
    if not is_twin_first:
        assert loop.run() is None, "a refit finds a manifest of its own"
        return
    twin = Manifest((), None).body(ray_version="2.60.0")
    world.store.write(layout.manifest(1, 1), twin)
    with pytest.raises(Left, match=str(EXIT_SUPERSEDED)):
        loop.run()
    assert ray.starts == []
    assert world.store.read(layout.manifest(1, 1)) == twin
    assert not world.store.exists(layout.restored(1, 1))
    assert not world.store.exists(layout.outcome(1, 1))


def test_loop_that_begins_again_is_fatal(world: World) -> None:
    """G8: found at the first report after the restore."""
    first, _ = world.attempt(1, fails(FailureKind.USER, 4))
    first.run()
    fatal: list[Failure] = []

    def ignores(ray: FakeRay) -> None:
        append_event(ray.events_path, ReportEvent(at=AT, metrics={"epoch": 0}))

    second, _ = world.attempt(2, ignores)
    second.scribe.on_fatal = fatal.append
    second.run()
    assert [failure.kind for failure in fatal] == [FailureKind.USER]
    assert "epoch fell from 4 in the restored checkpoint to 0" in fatal[0].reason
    assert second.ending.outcome(OutcomeState.FAILED, fatal[0]).restore_proven == "no"


def test_earlier_attempts_are_read_in_order(world: World) -> None:
    for n in (1, 2, 3):
        world.attempt(n, fails(FailureKind.USER, n))[0].run()
    found = read_attempts(world.store, AttemptRef(generation=1, attempt=2), say=lambda _text: None)
    assert [a.ref.attempt for a in found] == [1, 2]


def repeats(*epochs: int) -> Fit:
    """A user error that came twice from one checkpoint, as our rule in Ray's controller reports it."""

    def fit(ray: FakeRay) -> None:
        for epoch in epochs:
            ray.commit(epoch)
        failure = Failure(kind=FailureKind.USER, reason="loss is nan", exception_type="ValueError", repeats=2)
        raise RayJobFailed("ended", failure=failure)

    return fit


def quarantine(world: World, epoch: int, attempt: int = 1) -> QuarantineRecord:
    name = f"attempts/{attempt:06d}/checkpoint_{epoch}"
    record = world.store.read_record(QuarantineRecord, layout.quarantine(1, name))
    assert record is not None
    return record


def test_poisonous_checkpoint_is_set_aside_and_training_goes_on(world: World) -> None:
    """G3: it fails from checkpoint 1 again and again, and not from the one before."""
    loop, ray = world.attempt(1, repeats(0, 1), ends(2))
    assert loop.run() is None
    assert ray.starts == [None, "attempts/000001/checkpoint_0"]
    assert quarantine(world, 1).released_by is None
    assert "loss is nan" in quarantine(world, 1).reason
    later, ray = world.attempt(2, ends(3))
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_2"]


@pytest.mark.parametrize("is_fenced", [True, False])
def test_error_of_the_code_releases_the_checkpoint(world: World, is_fenced: bool) -> None:
    """G2, G6: the same error from the one before, so the code is corrected and training goes on from the newest."""
    loop, ray = world.attempt(1, repeats(0, 1), repeats(), is_fenced=is_fenced)
    failure = loop.run()
    assert failure is not None
    assert failure.kind is FailureKind.USER
    folder = "attempts/000001/" if is_fenced else ""
    assert ray.starts == [None, f"{folder}checkpoint_0"]
    record = world.store.read_record(QuarantineRecord, layout.quarantine(1, f"{folder}checkpoint_1"))
    assert record is not None
    assert record.released_by == "g1/a1"
    later, ray = world.attempt(2, ends(2), is_fenced=is_fenced)
    assert later.run() is None
    assert ray.starts == [f"{folder}checkpoint_1"]


def test_error_of_the_code_after_new_commits_keeps_those(world: World) -> None:
    loop, _ = world.attempt(1, repeats(0, 1), repeats(5))
    assert loop.run() is not None
    assert quarantine(world, 1).released_by == "g1/a1"
    later, ray = world.attempt(2, ends())
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_5"]


def test_only_checkpoint_is_given_back(world: World) -> None:
    """There is none before it: a user error, and the checkpoint is restored when the code is corrected."""
    loop, ray = world.attempt(1, repeats(0))
    failure = loop.run()
    assert failure is not None
    assert (failure.kind, failure.reason) == (FailureKind.USER, "loss is nan")
    assert ray.starts == [None]
    assert quarantine(world, 0).released_by == "g1/a1"
    later, ray = world.attempt(2, ends())
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_0"]


def test_restored_checkpoint_of_an_earlier_attempt_can_be_poisonous(world: World) -> None:
    first, _ = world.attempt(1, fails(FailureKind.USER, 0, 1))
    first.run()
    loop, ray = world.attempt(2, repeats(), ends(2))
    assert loop.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_1", "attempts/000001/checkpoint_0"]
    assert quarantine(world, 1).attempt == 2


class Killed(BaseException):
    """A driver that dies: nothing of it is done any more."""


def dies(*epochs: int) -> Fit:
    def fit(ray: FakeRay) -> None:
        for epoch in epochs:
            ray.commit(epoch)
        raise Killed

    return fit


def test_commits_since_the_suspicion_are_kept_when_it_is_released(world: World) -> None:
    """Fit 2 committed, fit 3 did not: the manifest of the suspicion's time must not come back."""
    loop, _ = world.attempt(1, repeats(0, 1), fails(FailureKind.INFRASTRUCTURE, 5), repeats())
    assert loop.run() is not None
    later, ray = world.attempt(2, ends())
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_5"]


def test_a_suspicion_lapses_with_its_driver(world: World) -> None:
    """It died before it knew: the next attempt restores the newest commit, and finds out by itself."""
    first, _ = world.attempt(1, repeats(0, 1, 2), dies())
    with pytest.raises(Killed):
        first.run()
    assert quarantine(world, 2).released_by is None
    second, ray = world.attempt(2, repeats(), repeats())
    failure = second.run()
    assert failure is not None
    assert failure.kind is FailureKind.USER
    assert ray.starts == ["attempts/000001/checkpoint_2", "attempts/000001/checkpoint_1"]
    third, ray = world.attempt(3, ends())
    assert third.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_2"]


def test_suspicions_that_lapsed_one_after_another_hide_nothing(world: World) -> None:
    for n in (1, 2):
        loop, _ = world.attempt(n, repeats(*((0, 1, 2) if n == 1 else ())), dies())
        with pytest.raises(Killed):
            loop.run()
    last, ray = world.attempt(3, ends())
    assert last.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_2"]


def test_the_only_checkpoint_is_restored_although_its_driver_died_before_it_gave_it_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, _ = world.attempt(1, repeats(0))
    monkeypatch.setattr(loop.poison, "settle", lambda **_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        loop.run()
    later, ray = world.attempt(2, ends(1))
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_0"]


def test_a_suspect_that_was_never_judged_is_released_at_the_end(world: World) -> None:
    """The fit without it ended for another reason."""
    loop, _ = world.attempt(1, repeats(0, 1), fails(FailureKind.OUT_OF_MEMORY))
    assert loop.run() is not None
    assert quarantine(world, 1).released_by == "g1/a1"
    later, ray = world.attempt(2, ends())
    assert later.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_1"]


def test_a_suspect_that_training_went_past_stays_in_quarantine(world: World) -> None:
    loop, _ = world.attempt(1, repeats(0, 1), ends(2))
    assert loop.run() is None
    assert (quarantine(world, 1).is_suspicion, quarantine(world, 1).released_by) == (False, None)
    best, ray = world.attempt(2, ends())
    assert best.run() is None
    assert ray.starts == ["attempts/000001/checkpoint_2"]


def test_a_newer_attempt_is_not_written_over_by_one_that_gives_a_suspect_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, _ = world.attempt(1, repeats(0))
    ended: list[str] = []

    def obey(hit: Any) -> None:
        ended.append(hit.reason)
        raise Killed

    monkeypatch.setattr(loop.ending, "obey", obey)
    real = loop.training.fit

    def superseded(start: Resolved, *, fit: int) -> None:
        world.store.write(layout.claim(1, 2), b"{}")
        real(start, fit=fit)

    monkeypatch.setattr(loop.training, "fit", superseded)
    with pytest.raises(Killed):
        loop.run()
    assert "newer claim" in ended[0]
    assert world.store.names("g000001/quarantine") == []
