"""The one way out: whoever is first writes the outcome and ends the process; everybody else waits for the exit."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider.core import layout
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import EXIT_FAILED, EXIT_SUPERSEDED
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.manifest import Manifest, best_name
from airflow_provider.core.records import OutcomeRecord, OutcomeState
from airflow_provider.runtime.scribe import Scribe, utc_now
from airflow_provider.runtime.speech import say
from airflow_provider.runtime.standing import Hit, HitKind, Standing
from airflow_provider.runtime.storage import ExperimentStore, patiently

_STATE_OF_HIT = {HitKind.STOPPED: OutcomeState.CANCELLED, HitKind.DEADLINE: OutcomeState.FAILED}
_KIND_OF_HIT = {HitKind.STOPPED: FailureKind.STOPPED, HitKind.DEADLINE: FailureKind.TIMEOUT}

_SETTLE_S = 3.0


@dataclass
class Facts:
    """What the fit loop knows for the outcome."""

    num_fits: int = 0
    fenced: bool = True
    restored: str | None = None
    ray_version: str = ""
    manifest: Manifest | None = field(default=None, repr=False)
    """This attempt's manifest as read at the end; None when a thread ends the process in the middle."""


class Ending:
    """Ends the attempt once."""

    def __init__(self, store: ExperimentStore, spec: JobSpec, *, standing: Standing, scribe: Scribe) -> None:
        """`children` are process groups to kill before the process ends."""
        self.store, self.spec, self.standing, self.scribe = store, spec, standing, scribe
        self.facts = Facts()
        self.kill_children: Callable[[], None] = lambda: None
        self._once = threading.RLock()

    def begin(self) -> None:
        """Become the one who ends; any other caller waits here for the process to end."""
        if not self._once.acquire(blocking=False):
            time.sleep(3600)  # the winner ends the process

    def obey(self, hit: Hit) -> None:
        """End the process because of a hit. Called from a thread; never returns."""
        self.begin()
        say(f"ending: {hit.reason}")
        if hit.kind is not HitKind.SUPERSEDED:
            failure = Failure(kind=_KIND_OF_HIT[hit.kind], reason=hit.reason)
            self._write_and_leave(_STATE_OF_HIT[hit.kind], failure, hit.exit_code)
        self.leave(hit.exit_code)

    def fail(self, failure: Failure) -> None:
        """End the process with a failure found outside the fit. Called from a thread; never returns."""
        self.begin()
        say(f"ending: {failure.reason} [{failure.kind.value}]")
        self._write_and_leave(OutcomeState.FAILED, failure, EXIT_FAILED)

    def _write_and_leave(self, state: OutcomeState, failure: Failure, code: int) -> None:
        try:
            is_mine = self.write_outcome(state, failure, for_s=10.0)
        except RayTrainError as error:
            say(f"the outcome could not be written: {error}")
            is_mine = True
        if is_mine:
            self.scribe.settle(timeout_s=_SETTLE_S)
        self.leave(code if is_mine else EXIT_SUPERSEDED)

    def leave(self, code: int) -> None:
        """End at once: Ray's actors of this job die with the driver."""
        self.kill_children()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def write_outcome(self, state: OutcomeState, failure: Failure | None, *, for_s: float) -> bool:
        """Write `outcome.json` unless a newer claim exists: then false. Raises when the store stays away."""
        hit = patiently(self.standing.newer_claim, for_s=for_s)
        if hit is not None:
            say(f"no outcome written: {hit.reason}")
            return False
        record = self.outcome(state, failure)
        key = layout.outcome(*self.spec.ref.rank)
        patiently(lambda: self.store.write_record(key, record), for_s=for_s)
        return True

    def outcome(self, state: OutcomeState, failure: Failure | None) -> OutcomeRecord:
        """The outcome from what is known now."""
        facts, progress = self.facts, self.scribe.progress
        checkpoint = self.spec.training.checkpoint
        latest, num_commits = progress.last_checkpoint or facts.restored, progress.num_commits
        best = None
        if facts.manifest is not None:
            own = [n for n in facts.manifest.names if n.startswith(f"attempts/{self.spec.ref.attempt:06d}/")]
            num_commits = max(num_commits, len(own))
            latest = facts.manifest.latest.name if facts.manifest.latest else latest
            best = best_name(
                facts.manifest,
                attribute=checkpoint.checkpoint_score_attribute,
                order=str(checkpoint.checkpoint_score_order),
            )
        return OutcomeRecord(
            state=state,
            failure=failure,
            num_commits=num_commits,
            latest_checkpoint=latest,
            best_checkpoint=best,
            restore_proven=self.scribe.proof.outcome if self.scribe.proof else "unknown",
            fallen_metric=self.scribe.proof.fallen_metric if self.scribe.proof else None,
            num_fits=facts.num_fits,
            num_restarts=progress.num_restarts,
            fenced=facts.fenced,
            train_version=self.spec.training.train_version.value,
            ray_version=facts.ray_version,
            finished_at=utc_now(),
        )
