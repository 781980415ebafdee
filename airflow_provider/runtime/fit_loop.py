"""Fits, and fits again within the same job while the failure is the cluster's: Ray gives such errors no retry.

Before each fit the restore point is resolved anew and the manifest written: a refit goes on from the last commit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from airflow_provider.core import layout
from airflow_provider.core.errors import NoUsableCheckpoint
from airflow_provider.core.failure import Failure
from airflow_provider.core.fit_rules import decide_refit
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.manifest import by_score, parse_manifest
from airflow_provider.core.records import AliveRecord, Phase, RestartEntry
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.runtime.ending import Ending
from airflow_provider.runtime.failures import ended_by_rule, failure_of
from airflow_provider.runtime.poison import PoisonWatch
from airflow_provider.runtime.recorder import complete_quietly
from airflow_provider.runtime.reservations import release_reservation
from airflow_provider.runtime.restoring import EarlierAttempt, Resolved, read_attempts, resolve
from airflow_provider.runtime.scribe import Scribe, utc_now
from airflow_provider.runtime.speech import say
from airflow_provider.runtime.storage import STORE_PATIENCE_S, ExperimentStore, patiently
from airflow_provider.runtime.trainings import Training
from airflow_provider.runtime.warm_start import from_parent


@dataclass
class FitLoop:
    """One attempt's fits."""

    store: ExperimentStore
    spec: JobSpec
    scribe: Scribe
    ending: Ending
    training: Training
    ray_version: str

    def __post_init__(self) -> None:
        """The watch on the checkpoints it restores lasts for all fits."""
        self.poison = PoisonWatch(self.store, self.spec, has_own_manifest=lambda: self.training.has_own_manifest)

    def run(self) -> Failure | None:
        """Fit until done. None is success, a failure is final for this job."""
        failure = self._fits()
        self._leave_if_superseded()
        self.poison.settle(is_success=failure is None)
        return failure

    def _fits(self) -> Failure | None:
        barren = fit = 0
        while True:
            fit += 1
            self.ending.facts.num_fits = fit
            before = self._own_commits()
            try:
                error = self._fit(fit)
            except NoUsableCheckpoint:
                if self.poison.failure is None:
                    raise
                return self.poison.failure  # there is no other checkpoint to try
            if error is None:
                return None
            failure = failure_of(error)
            commits = self._own_commits() - before
            barren = 0 if commits > 0 else barren + 1
            self._leave_if_superseded()
            if self.poison.goes_back(failure):
                self._note(failure, self.poison.reason, commits)
                continue
            verdict = decide_refit(
                failure,
                fits_done=fit,
                fits_without_commit=barren,
                was_ended_by_rule=ended_by_rule(error) is not None,
                config=self.spec.training.failure,
            )
            say(f"fit {fit} ended after {commits} commits: {failure.reason} [{failure.kind.value}]; {verdict.reason}")
            if not verdict.refits:
                return failure
            self._note(failure, verdict.reason, commits)
            time.sleep(self.spec.timings.refit_backoff_s * max(1, barren))

    def _fit(self, fit: int) -> BaseException | None:
        self.scribe.enter(Phase.RESTORING)
        attempts = patiently(lambda: read_attempts(self.store, self.spec.ref, say=say), for_s=STORE_PATIENCE_S)
        if fit == 1:
            attempts = [a for a in attempts if a.ref != self.spec.ref]
        resolved = patiently(lambda: from_parent(self.spec, self._resolve(attempts)), for_s=STORE_PATIENCE_S)
        say(resolved.point.reason)
        if fit == 1:
            self._leave_to_the_first_run()
        patiently(lambda: self._write_start(resolved, fit), for_s=STORE_PATIENCE_S)
        if fit == 1:
            self._plan_completion(attempts)
        if isinstance(self.spec.training.scaling.num_workers, tuple):
            self._release(fit, attempts)
        candidate = resolved.point.candidate
        self.ending.facts.restored = resolved.checkpoint
        # A parent's metrics prove nothing: a warm start may count its epochs from 0 again.
        metrics = dict(candidate.metrics) if candidate else None
        self.scribe.begin_fit(parent=resolved.checkpoint, metrics=metrics, warm_started_from=resolved.parent)
        try:
            self.training.fit(resolved, fit=fit)
        except Exception as error:  # process edge: a fit raises whatever Ray or the user's code raised
            return error
        finally:
            self.scribe.settle()
        return None

    def _resolve(self, attempts: list[EarlierAttempt]) -> Resolved:
        policy = self.spec.restore
        own = f"attempts/{self.spec.ref.attempt:06d}/"
        if any(name.startswith(own) for a in attempts for name in a.recorded_names | _listed(a)):
            # A refit goes on from this attempt's own commits, wherever the attempt itself began.
            policy = RestorePolicy(mode="latest", on_corrupt=policy.on_corrupt)
        return resolve(self.store, self.spec.ref, policy=policy, attempts=attempts, say=say)

    def _write_start(self, resolved: Resolved, fit: int) -> None:
        g, n = self.spec.ref.rank
        is_own = self.training.has_own_manifest
        if fit == 1:
            metric = self.spec.training.progress_metric if self.training.is_fenced else None
            record = resolved.record(fit=fit, fenced=is_own, progress_metric=metric)
            self.store.write_record(layout.restored(g, n), record)
        kept = self.spec.training.checkpoint
        attribute, order = kept.checkpoint_score_attribute, str(kept.checkpoint_score_order)
        body = by_score(resolved.manifest, attribute=attribute, order=order).body(ray_version=self.ray_version)
        self.store.write(layout.manifest(g, n), body)
        if not is_own:
            self.store.write(layout.published_manifest(g), body)

    def _leave_to_the_first_run(self) -> None:
        """A process that froze after its first look must not start over the run that began meanwhile.

        Known limitation: a freeze between this look and the write goes unseen; pyarrow has no conditional write.
        """
        hit = patiently(self.ending.standing.second_run, for_s=STORE_PATIENCE_S)
        if hit is not None:
            self.ending.obey(hit)

    def _plan_completion(self, attempts: list[EarlierAttempt]) -> None:
        """Records that earlier attempts could not write are completed while this one trains."""
        writer = f"{self.spec.ref.attempt:06d}"
        for earlier in attempts:
            manifest, known = earlier.checkpoints.manifest, earlier.recorded_names
            if manifest is not None:
                complete = partial(
                    complete_quietly, self.store, earlier.ref, manifest=manifest, known=known, writer=writer
                )
                self.scribe.afterthoughts.append(complete)

    def _release(self, fit: int, attempts: list[EarlierAttempt]) -> None:
        if fit > 1:
            release_reservation(self.scribe.train_run_id)
            return
        for earlier in attempts[-3:]:
            if earlier.ref != self.spec.ref:
                alive = self.store.read_record(AliveRecord, layout.alive(*earlier.ref.rank))
                release_reservation(alive.train_run_id if alive else "")

    def _leave_if_superseded(self) -> None:
        """A driver that was frozen must not judge a newer attempt's checkpoints."""
        hit = patiently(self.ending.standing.newer_claim, for_s=STORE_PATIENCE_S)
        if hit is not None:
            self.ending.obey(hit)

    def _own_commits(self) -> int:
        key = layout.manifest(*self.spec.ref.rank)
        body = patiently(lambda: self.store.read(key), for_s=STORE_PATIENCE_S)
        names = parse_manifest(body, key=key).names if body else ()
        listed = [n for n in names if layout.is_commit_of(self.spec.ref.attempt, n)]
        return max(len(listed), self.scribe.progress.num_commits)

    def _note(self, failure: Failure, decision: str, commits: int) -> None:
        entry = RestartEntry(failure=failure, decision=decision, at=utc_now(), commits_before=commits, is_restart=False)
        self.scribe.note_restart(entry)


def _listed(attempt: EarlierAttempt) -> frozenset[str]:
    manifest = attempt.checkpoints.manifest
    return frozenset(manifest.names) if manifest else frozenset()
