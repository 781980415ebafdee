"""The driver's own code on the bucket in memory: its threads are steps, Ray is a stand-in that commits as Ray does."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider.core import layout
from airflow_provider.core.errors import RayJobFailed, Superseded
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.runtime.claim_watch import ClaimWatch
from airflow_provider.runtime.driver import Driver
from airflow_provider.runtime.ending import Ending
from airflow_provider.runtime.events import CommitEvent, ReportEvent, append_event
from airflow_provider.runtime.fit_loop import FitLoop
from airflow_provider.runtime.held_deletions import RestoreWatch, is_held
from airflow_provider.runtime.restoring import Resolved
from airflow_provider.runtime.scribe import Scribe
from airflow_provider.runtime.sigterm import SigtermWatch
from tests.support.fit_world import FakeRay
from tests.unit.machine.processes import GO, Call, Killed, Process

if TYPE_CHECKING:
    from airflow_provider.runtime.standing import Hit
    from tests.unit.machine.world import World

COMMITS = 3
"""After so many commits of its own an attempt's loop is over."""
KEEP = 2
FILES = ("model.pt", "optim.pt")
BODY = b"weights!"


class Left(BaseException):
    """Stands in for the end of the driver's process."""


class SteppedEnding(Ending):
    """Whoever comes second stands still until the first has ended the process."""

    world: World
    _owner: Process | None = None

    def begin(self) -> None:
        me = self.world.scheduler.current
        assert me is not None
        self._owner = self._owner or me
        while self._owner is not me:
            me.pause(Call("driver", "parked"))

    def leave(self, code: int) -> None:
        self.world.driver_of(self.spec.submission_id, self.standing.run_uid).leaves(code)
        raise Left(code)


class SteppedScribe(Scribe):
    """No thread: signs of life and records are steps of the test."""

    _is_busy = False

    def start(self) -> None:
        self.write_alive()

    def settle(self, *, timeout_s: float = 10.0) -> bool:
        if self._is_busy:
            return False  # the lock is held by a thread that stands still
        self._is_busy = True
        try:
            return super().settle(timeout_s=timeout_s)
        finally:
            self._is_busy = False


class SteppedWatch(ClaimWatch):
    def start(self) -> None:
        """No thread: polls are steps of the test."""


class SteppedSigterm(SigtermWatch):
    def arm(self) -> None:
        """No signal: Ray's stop is a step of the test."""


class SteppedDriver(Driver):
    """One attempt, without Ray."""

    def _connect(self) -> None:
        """No cluster to join."""

    def _fit(self) -> Failure | None:
        self.ending.facts.ray_version, self.ending.facts.fenced = "2.60.0", True
        return FitLoop(self.store, self.spec, self.scribe, self.ending, self.training, "2.60.0").run()


@dataclass
class SteppedRay(FakeRay):
    """A training that commits as Ray Train V2 does through our fence: ask, upload, manifest, ask, delete or wait, event."""

    driver: DriverProcess = None  # type: ignore[assignment]
    entries: list[ManifestEntry] = field(default_factory=list)
    epoch: int = 0
    """That the loop does next."""
    has_reported: bool = False
    watch: RestoreWatch = field(default_factory=lambda: RestoreWatch(object(), declared="epoch"))

    def fit(self, start: Resolved, *, fit: int) -> None:
        self.starts.append(start.checkpoint)
        self.entries = list(start.manifest.entries)
        restored = start.point.candidate
        self.epoch, self.has_reported = (int(restored.metrics["epoch"]) + 1 if restored else 0), False
        self.watch = RestoreWatch(object(), declared="epoch")  # in a controller of its own
        self.watch.begin(restored.metrics if restored else None)
        self.watch.workers_started()
        scribe = self.driver.driver.scribe
        while scribe.afterthoughts and not self.driver.lags:
            scribe.afterthoughts.pop(0)()
        while True:
            what = self.driver.next_step()
            if what == "finish":
                return
            if what == "commit":
                self.commit(self.epoch)
            elif what == "begin again":
                self._begin_again()
            else:
                raise RayJobFailed("the fit ended", failure=_FAILURES[what])

    def _begin_again(self) -> None:
        """A loop that looks at no checkpoint: told by its first report, if what it ignored lies further on."""
        if not self.has_reported and self.epoch > 1:
            self.epoch, self.driver.began_again = 0, True

    def commit(self, epoch: int) -> None:
        name = f"attempts/{self.ref.attempt:06d}/checkpoint_{self.driver.num_commits:06d}"
        generation = layout.generation(self.ref.generation)
        self._ask()
        for file in FILES:
            self.store.write(f"{generation}/{name}/{file}", BODY)
        entry = ManifestEntry(name, {"epoch": epoch})
        kept, doomed = [*self.entries, entry][-KEEP:], [*self.entries, entry][:-KEEP]
        manifest = Manifest(tuple(kept), entry, tuple(range(len(kept))))
        self.driver.num_commits += 1
        self.store.write(self.manifest_key, manifest.body(ray_version="2.60.0"))
        self.entries = kept
        for old in doomed:
            self._delete(f"{generation}/{old.name}")
        at = self.driver.world.clocks.driver()
        if not self.has_reported:
            append_event(self.events_path, ReportEvent(at=at, metrics={"epoch": epoch}))
            self.watch.first_report({"epoch": epoch})
        self.epoch, self.has_reported = epoch + 1, True
        append_event(self.events_path, CommitEvent(at=at, checkpoint=name, metrics={"epoch": epoch}))
        self.watch.committed({"epoch": epoch})
        if not self.driver.lags:
            self.driver.driver.scribe.settle()

    def _delete(self, folder: str) -> None:
        """As the fenced filesystem does."""
        if not is_held(self.watch.fence, partial(self._delete, folder)):
            self._ask()
            self.store.delete_folder(folder)  # type: ignore[attr-defined]

    def _ask(self) -> None:
        """As `Fence.check` does in create_dir and delete_dir, which needs Ray to be installed."""
        hit = self.driver.driver.standing.newer_claim()
        if hit is not None:
            raise Superseded("The attempt may not write any more", known=hit.reason)


_FAILURES = {
    "node": Failure(kind=FailureKind.INFRASTRUCTURE, reason="a node died"),
    "error": Failure(kind=FailureKind.USER, reason="loss is nan", exception_type="ValueError"),
    "poison": Failure(kind=FailureKind.USER, reason="loss is nan", exception_type="ValueError", repeats=2),
}


@dataclass(eq=False)
class DriverProcess:
    """A driver on the cluster: its main thread, the thread of its claim watch, the one of SIGTERM."""

    world: World
    spec: JobSpec
    number: int
    lags: bool
    """Whether its records are written at its end only."""
    status: str = "PENDING"
    is_unseen: bool = False
    """Its cluster was replaced under the address: nobody asks it any more."""
    is_over: bool = False
    code: int | None = None
    num_commits: int = 0
    began_again: bool = False
    """Its loop ignored what was restored."""
    driver: SteppedDriver = None  # type: ignore[assignment]
    threads: list[Process] = field(default_factory=list)
    is_stop_asked: bool = False
    started_at: int = 0
    looked_at: int = 0
    known: Any = None
    """What could be restored when it began to look, for the invariants."""

    @property
    def job_id(self) -> str:
        return self.spec.submission_id

    @property
    def name(self) -> str:
        return f"driver {self.number} of {self.spec.ref}"

    @property
    def is_live(self) -> bool:
        return not self.is_over

    @property
    def main(self) -> Process:
        return self.threads[0]

    @property
    def is_standing(self) -> bool:
        """Past its first look, and nothing it knows of has ended it."""
        started = bool(self.threads) and self.driver.is_claim_ours
        return started and not self.is_over and self.driver.ending._owner is None  # type: ignore[attr-defined]

    def start(self) -> None:
        """Ray finds a place for it."""
        self.status = "RUNNING"
        self.driver = SteppedDriver(self.spec, spec_file="unused")
        self.driver.training = SteppedRay(
            self.driver.store, self.spec.ref, self.driver.scribe.events.path, [], driver=self
        )
        self.driver.ending.world = self.world  # type: ignore[attr-defined]
        self._thread("", self.driver.run)

    def _thread(self, what: str, target: Any) -> Process:
        thread = self.world.spawn(f"{self.name}{what}", target, about=self, is_gone=lambda: self.is_over)
        self.threads.append(thread)
        return thread

    def poll(self) -> Process:
        """A look of the claim watch."""
        return self._thread(" polls", self.driver.watch.poll)

    def terminate(self) -> Process:
        """SIGTERM by Ray."""
        ignored = self.driver.sigterm._is_ignored
        return self._thread(" gets SIGTERM", (lambda: None) if ignored else self.driver._terminated)

    def sign_of_life(self) -> Process:
        """A tick of the scribe."""
        return self._thread(" writes alive", self.driver.scribe.write_alive)

    def next_step(self) -> str:
        """What its loop does next: as the test says, else it commits until it is over."""
        thread = self.world.scheduler.current
        assert thread is not None
        order = thread.pause(Call("driver", "train"))
        if order != GO:
            return order
        return "commit" if self.num_commits < COMMITS else "finish"

    def look(self) -> Hit | None:
        """What a look would find now; not a call."""
        from airflow_provider.runtime.standing import Standing

        mine = Standing(self.driver.store, self.spec, run_uid=self.driver.run_uid)
        return mine.look(now=self.world.clocks.driver())

    def leaves(self, code: int) -> None:
        self.code, self.is_over = code, True

    def crash(self) -> None:
        """SIGKILL, or its node is gone."""
        self.is_over = True
        self.end()

    def end(self) -> None:
        """All its threads end with it."""
        for thread in self.threads:
            with contextlib.suppress(Killed, Left):
                thread.kill()
