"""The driver's memory: a thread that reads the controller's events, prints them, writes records and signs of life."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider.core import layout
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.fit_rules import RestoreProof, prove_restore
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.core.records import AliveRecord, Phase, RestartEntry
from airflow_provider.core.watch import WAITING_WARNING_S, no_checkpoint_warning
from airflow_provider.runtime.events import (
    CommitEvent,
    Event,
    EventReader,
    FailureEvent,
    PhaseEvent,
    StartEvent,
)
from airflow_provider.runtime.progress import Progress
from airflow_provider.runtime.recorder import Recorder
from airflow_provider.runtime.speech import say, shown_metrics
from airflow_provider.runtime.storage import ExperimentStore

_TICK_S = 0.5
_CLOCK_STEP = timedelta(seconds=5)
"""A clock that moved so much against the steady one was set anew; less is a busy machine."""


def utc_now() -> datetime:
    """The driver's clock."""
    return datetime.now(timezone.utc)


class Scribe:
    """Owns progress, recorder and `alive.json` of one attempt. Store errors are tried again at the next tick."""

    def __init__(self, store: ExperimentStore, spec: JobSpec, *, run_uid: str, events_path: str) -> None:
        """`on_fatal` is set by the driver before `start`."""
        self.store, self.spec, self.run_uid = store, spec, run_uid
        self.events = EventReader(events_path)
        self.recorder = Recorder(store, spec.ref)
        self.progress = Progress(phase=Phase.STARTING, phase_since=utc_now())
        self.recorder.note_phase(self.progress.phase, self.progress.phase_since)
        self._entered: deque[tuple[Phase, datetime]] = deque()
        """Phases that the driver told and the recorder does not know yet: telling one never waits for the store."""
        self.proof: RestoreProof | None = None
        self._is_warned = False
        self.train_run_id = ""
        self.last_failure: Failure | None = None
        self.on_fatal: Callable[[Failure], None] = lambda _failure: None
        self.afterthoughts: list[Callable[[], object]] = []
        """Slow work that may wait until training runs, for example completing older attempts' records."""
        self.find_shortage: Callable[[], str | None] = lambda: None
        """What the cluster lacks for the wanted workers; set by who can ask Ray."""
        self._num_warned = 0
        self._is_wait_told = False
        self._base: Mapping[str, Any] | None = None
        self._lock = threading.RLock()  # a fatal finding ends the process from inside a tick
        self._wake = threading.Event()
        self._is_stopped = False
        self._clocks = (utc_now(), time.monotonic())
        self._last_alive = 0.0
        self._alive_phase: Phase | None = None

    def start(self) -> None:
        """Write the first sign of life, which must succeed, and start the thread."""
        self.write_alive()
        threading.Thread(target=self._run, name="scribe", daemon=True).start()

    def stop(self) -> None:
        """The end is near: no more signs of life."""
        self._is_stopped = True

    def enter(self, phase: Phase) -> None:
        """The driver itself changes phase."""
        now = utc_now()
        self.progress = self.progress.entered(phase, now)
        self._entered.append((phase, now))
        self._wake.set()

    def begin_fit(
        self, *, parent: str | None, metrics: Mapping[str, Any] | None, warm_started_from: str | None = None
    ) -> None:
        """A fit starts from `parent`; its first report must not lie before `metrics`.

        Whether it waits for nodes or trains is the controller's to tell: a script that prepares its data for hours, or
        never asks for our run config, must not count as waiting.
        """
        with self._lock:
            self._take_new()  # what the fit before told, if a slow store kept the lock until now
            self.recorder.parent, self._base, self.last_failure = parent, metrics, None
            self.recorder.warm_started_from = warm_started_from
            self.recorder.has_begun = True
            now = utc_now()
            self.recorder.note_phase(Phase.STARTING, now)
            self.progress = replace(self.progress.entered(Phase.STARTING, now), trained_since_commit_s=0.0)

    def note_restart(self, entry: RestartEntry) -> None:
        """A failure that no controller could tell, for example its own death."""
        with self._lock:
            self.recorder.note_restart(entry)

    def settle(self, *, timeout_s: float = 10.0) -> bool:
        """Take in and write what the controller left; true if everything is in the bucket."""
        if not self._lock.acquire(timeout=timeout_s):
            return False
        try:
            self._take_new()
            self.recorder.flush(is_final=True)
        except RayTrainError:
            return False
        finally:
            self._lock.release()
        return True

    def write_alive(self) -> None:
        """Write `alive.json`."""
        progress = self.progress
        record = AliveRecord(
            run_uid=self.run_uid,
            phase=progress.phase,
            phase_since=progress.phase_since,
            wanted_workers=self.spec.training.scaling.wanted_workers,
            num_commits=progress.num_commits,
            last_commit_at=progress.last_commit_at,
            last_checkpoint=progress.last_checkpoint,
            last_metrics=dict(progress.last_metrics),
            num_restarts=progress.num_restarts,
            train_run_id=self.train_run_id,
            written_at=utc_now(),
        )
        self._last_alive, self._alive_phase = time.monotonic(), progress.phase
        self.store.write_record(layout.alive(*self.spec.ref.rank), record)

    def _run(self) -> None:
        while not self._is_stopped:
            self._wake.wait(_TICK_S)
            self._wake.clear()
            for step in (self._tick_alive, self._tick_events, self._tick_warnings, self._tick_afterthought):
                try:
                    step()
                except RayTrainError:
                    continue  # the store is away: training goes on, and the next tick tries again
                except Exception as error:  # process edge: a thread that dies in silence would end all records
                    say(f"warning: recording failed ({type(error).__name__}: {error}); training goes on")

    def _tick_alive(self) -> None:
        is_due = time.monotonic() - self._last_alive >= self.spec.timings.alive_s
        if is_due or self._alive_phase is not self.progress.phase:
            self.write_alive()

    def _follow_clock(self) -> None:
        """A clock that is set anew, or a machine that was suspended, makes no wait and no stall longer or shorter."""
        wall, steady = utc_now(), time.monotonic()
        step = wall - self._clocks[0] - timedelta(seconds=steady - self._clocks[1])
        self._clocks = (wall, steady)
        if abs(step) >= _CLOCK_STEP:
            say(f"warning: this machine's clock moved by {step.total_seconds():.0f} s; limits of time don't count that")
            self.progress = self.progress.moved(step)

    def _tick_events(self) -> None:
        with self._lock:
            self._follow_clock()
            self._take_new()
            overdue = self.progress.overdue(self.spec.timings, now=utc_now())
            if overdue is not None and self._is_really_overdue(overdue):
                self.on_fatal(overdue)
            self.recorder.flush()

    def _tick_warnings(self) -> None:
        now, progress = utc_now(), self.progress
        warning = no_checkpoint_warning(
            trained_s=progress.trained_s(now),
            num_commits=progress.num_commits,
            restored=self.recorder.parent or self.recorder.warm_started_from,
            num_told=self._num_warned,
        )
        if warning is not None:
            self._num_warned += 1
            say(f"WARNING: {warning}")
        waited_s = (now - progress.phase_since).total_seconds() if progress.phase is Phase.WAITING else 0.0
        if waited_s < WAITING_WARNING_S:
            self._is_wait_told &= progress.phase is Phase.WAITING
        elif not self._is_wait_told:
            self._is_wait_told = True
            # In a thread of its own: Ray may not answer, and signs of life must go on.
            threading.Thread(target=self._tell_wait, args=(waited_s,), name="scribe-wait", daemon=True).start()

    def _tell_wait(self, waited_s: float) -> None:
        try:
            shortage = self.find_shortage()
        except Exception as error:  # process edge: Ray raises what it likes while its head is away
            shortage = f"the cluster doesn't say what it has ({type(error).__name__})"
        say(f"WARNING: {shortage}" if shortage else f"waiting for nodes since {waited_s:.0f} s")

    def _tick_afterthought(self) -> None:
        if self.afterthoughts and self.progress.phase is Phase.TRAINING:
            self.afterthoughts.pop(0)()

    def _is_really_overdue(self, failure: Failure) -> bool:
        """Events may be lost with the controller; the manifest is the log."""
        if failure.kind is not FailureKind.STALLED:
            return True
        key = layout.manifest(*self.spec.ref.rank)
        body = self.store.read(key)
        own = f"attempts/{self.spec.ref.attempt:06d}/"
        names = [n for n in parse_manifest(body, key=key).names if n.startswith(own)] if body else []
        if set(names) <= self.recorder.recorded:
            return True
        self.recorder.recorded.update(names)
        self.progress = replace(self.progress, last_commit_at=utc_now(), trained_since_commit_s=0.0)
        return False

    def _take_new(self) -> None:
        events = self.events.read_new()
        # Before they are judged: a fatal finding ends the process, and what was read by then is recorded.
        self.recorder.take(events)
        for event in events:
            self.progress = self.progress.after(event)
            self._note(event)
        while self._entered:
            self.recorder.note_phase(*self._entered.popleft())

    def _note(self, event: Event) -> None:
        if isinstance(event, CommitEvent):
            self._base = event.metrics
            where = f"{shown_metrics(event.metrics)} ({event.checkpoint})"
            say(f"checkpoint {self.progress.num_commits} committed: {where}")
            self._warn_of_unreported(event.metrics)
        elif isinstance(event, FailureEvent):
            self.last_failure = event.failure
            say(f"failure: {event.failure.reason} [{event.failure.kind.value}]; {event.decision}")
        elif isinstance(event, PhaseEvent):
            say(f"phase {event.phase.value}")
        elif isinstance(event, StartEvent):
            self.train_run_id = event.train_run_id
        elif self._base is not None:  # a ReportEvent
            self._prove(prove_restore(self._base, event.metrics, declared=self.spec.training.progress_metric))

    def _warn_of_unreported(self, metrics: Mapping[str, Any]) -> None:
        """A misspelt progress metric must not switch the proof of a restore off in silence."""
        declared = self.spec.training.progress_metric
        if declared and declared not in metrics and not self._is_warned:
            self._is_warned = True
            known = ", ".join(sorted(map(str, metrics))[:10]) or "nothing"
            say(
                f"warning: progress_metric {declared!r} is not reported with this checkpoint, so no restore is proven by it; reported: {known}"
            )

    def _prove(self, proof: RestoreProof) -> None:
        if self.proof is None or self.proof.proven != "no" or proof.fallen_metric is not None:
            self.proof = proof
        if proof.proven == "yes":
            say(f"restore proven: {proof.reason}")
        elif proof.proven == "no" and not proof.is_declared:
            say(f"warning: {proof.reason}; declare progress_metric to fail such a run")
        elif proof.proven == "no":
            reason = f"{proof.reason}; the training loop must load ray.train.get_checkpoint()"
            self.on_fatal(Failure(kind=FailureKind.USER, reason=reason))
