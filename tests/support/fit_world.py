"""One experiment on a local bucket, with a stand-in for Ray that commits as it does. For tests of the fit loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.fs

from airflow_provider.core import layout
from airflow_provider.core.errors import RayJobFailed
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec, Timings, TrainingSpec
from airflow_provider.core.manifest import Manifest, ManifestEntry, parse_manifest
from airflow_provider.core.record_parts import AttemptRef, WarmStartRecord
from airflow_provider.core.records import OutcomeState, QuarantineRecord
from airflow_provider.core.spec import FailureConfig
from airflow_provider.runtime.ending import Ending
from airflow_provider.runtime.events import CommitEvent, ReportEvent, append_event
from airflow_provider.runtime.fit_loop import FitLoop
from airflow_provider.runtime.restoring import Resolved
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
    num_to_keep: int | None = None
    """What its manifest lists; files stay, as those do that the loop's fall keeps in the store."""
    starts: list[str | None] = field(default_factory=list)
    parents: list[str | None] = field(default_factory=list)
    """What a warm start gave the workers at each fit."""

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
        self.parents.append(start.parent)
        self.fits[fit - 1](self)

    def commit(self, epoch: int) -> None:
        name = f"checkpoint_{epoch}" if not self.is_fenced else f"attempts/{self.ref.attempt:06d}/checkpoint_{epoch}"
        self.store.write(f"g000001/{name}/w", b"1")
        before = parse_manifest(self.store.read(self.manifest_key) or b"", key="m")
        entry = ManifestEntry(name, {"epoch": epoch})
        entries = (*before.entries, entry)[-(self.num_to_keep or 0) :]
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
        self.warm_start: WarmStartRecord | None = None
        """As the claims of this generation have it."""
        self.store = ExperimentStore(pyarrow.fs.LocalFileSystem(), str(root / "bucket"))

    def attempt(self, n: int, *fits: Fit, is_fenced: bool = True, **failure: Any) -> tuple[FitLoop, FakeRay]:
        spec = JobSpec(
            experiment_uri=str(self.root / "bucket"),
            ref=AttemptRef(generation=1, attempt=n),
            k=n,
            submission_id=f"job-{n}",
            timings=Timings(refit_backoff_s=0.0),
            warm_start=self.warm_start,
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


class Killed(BaseException):
    """A driver that dies: nothing of it is done any more."""


def dies(*epochs: int) -> Fit:
    def fit(ray: FakeRay) -> None:
        for epoch in epochs:
            ray.commit(epoch)
        raise Killed

    return fit


def begins_again(*epochs: int) -> Fit:
    """A loop that ignores its checkpoint: the first report is of epoch 0, then it commits."""

    def fit(ray: FakeRay) -> None:
        append_event(ray.events_path, ReportEvent(at=AT, metrics={"epoch": 0}))
        for epoch in epochs:
            ray.commit(epoch)

    return fit


def run_to_its_fall(loop: FitLoop) -> None:
    """Run a loop whose progress metric falls, and write the outcome as the driver does at its end."""
    fatal: list[Failure] = []
    loop.scribe.on_fatal = fatal.append
    loop.run()
    loop.ending.write_outcome(OutcomeState.FAILED, fatal[0], for_s=1)
