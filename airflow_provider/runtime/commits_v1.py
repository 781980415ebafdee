"""What Tune tells the driver on Ray Train V1: commits into our own manifest, events for the records.

V1 keeps no list of committed checkpoints that lasts: its experiment state lags by ten seconds and more. So the driver
writes one, in the shape of V2's manifest, at each commit; every other part of this provider reads V1 like V2.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

import ray
from ray import cloudpickle
from ray.tune import Callback

from airflow_provider.core import layout
from airflow_provider.core.errors import RayJobFailed, RayTrainError
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.fit_rules import SeenFailure, decide_fit_failure
from airflow_provider.core.layout_v1 import own_metrics
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import Phase
from airflow_provider.core.spec import FailureConfig
from airflow_provider.core.strict_json import bounded_metrics
from airflow_provider.runtime.events import CommitEvent, FailureEvent, PhaseEvent, ReportEvent, append_event
from airflow_provider.runtime.exceptions import classify_exception
from airflow_provider.runtime.storage import ExperimentStore

logger = logging.getLogger(__name__)


class CommitLog:
    """The manifest of one attempt. Lives in the driver, where Tune's loop runs; used by that one thread."""

    def __init__(
        self,
        store: ExperimentStore,
        ref: AttemptRef,
        *,
        events_path: str,
        start: Manifest,
        failure_config: FailureConfig,
        is_superseded: Callable[[], bool],
    ) -> None:
        """Names in the manifest are relative to the generation's folder."""
        self.store, self.events_path = store, events_path
        self.manifest_key = layout.manifest(*ref.rank)
        self.base = store.path(layout.generation(ref.generation)) + "/"
        self.manifest = start
        self.is_superseded = is_superseded
        self.ended: Failure | None = None
        """The failure with which our rule ended the fit."""
        self._failure_config = failure_config
        self._seen: list[SeenFailure] = []
        self._num_commits = 0
        self._is_written = True  # by the driver, before the fit
        self._phase: Phase | None = None

    def name_of(self, path: str) -> str:
        """A checkpoint's path as its name relative to the generation folder."""
        return path.rstrip("/").removeprefix(self.base)

    def commit(self, path: str, metrics: Mapping[str, Any]) -> None:
        """A checkpoint was registered: into the manifest first, then the claim, then Ray may delete older ones.

        Raises InterruptedError where a newer claim exists: Tune then neither registers the checkpoint nor deletes an
        older one, and the driver's poll ends the process.
        """
        strict, _ = bounded_metrics(own_metrics(metrics))
        entry = ManifestEntry(self.name_of(path), strict)
        kept = tuple(e for e in self.manifest.entries if e.name != entry.name)
        self._replace((*kept, entry))
        self.write()
        if self._is_superseded():
            raise InterruptedError("a newer claim exists: this checkpoint is not registered and nothing is deleted")
        self._num_commits += 1
        self.tell(CommitEvent(at=_now(), checkpoint=entry.name, metrics=strict))

    def judge(self, failure: Failure) -> None:
        """A failure that Ray would repeat. Raises RayJobFailed, which ends the fit, where repeating it can't help."""
        self._seen.append(SeenFailure(failure, self._num_commits))
        verdict = decide_fit_failure(self._seen, config=self._failure_config)
        ended = verdict.failure if verdict.ends else None
        decision = f"ended the fit: {verdict.reason}" if ended else "Ray: restarting"
        self.tell(FailureEvent(at=_now(), failure=ended or failure, decision=decision))
        if ended is not None:
            self.ended = ended
            raise RayJobFailed("The fit was ended", known=verdict.reason, failure=ended)
        self.enter(Phase.LOST)

    def _is_superseded(self) -> bool:
        try:
            return self.is_superseded()
        except RayTrainError:
            return False  # a store that is away says nothing; the driver's poll goes on asking

    def retain(self, trial_folder: str, kept_paths: set[str]) -> None:
        """Drop entries of a trial that Ray's retention has deleted."""
        prefix = self.name_of(trial_folder) + "/"
        kept = {self.name_of(path) for path in kept_paths}
        entries = tuple(e for e in self.manifest.entries if not e.name.startswith(prefix) or e.name in kept)
        if len(entries) != len(self.manifest.entries):
            self._replace(entries)
            self.write()
        elif not self._is_written:
            self.write()

    def write(self) -> None:
        """Write the manifest; while the store is away the next commit or step tries again."""
        try:
            self.store.write(self.manifest_key, self.manifest.body(ray_version=ray.__version__))
            self._is_written = True
        except RayTrainError as error:
            self._is_written = False
            logger.warning("The manifest of this attempt was not written, next step tries again: %s", error)

    def finish(self) -> None:
        """Write what an outage kept from being written."""
        if not self._is_written:
            self.write()

    def enter(self, phase: Phase) -> None:
        """Tell a new phase."""
        if phase is not self._phase:
            self._phase = phase
            self.tell(PhaseEvent(at=_now(), phase=phase))

    def tell(self, event: Any) -> None:
        """Hand an event to the driver's recording thread."""
        append_event(self.events_path, event)

    def _replace(self, entries: tuple[ManifestEntry, ...]) -> None:
        self.manifest = replace(
            self.manifest,
            entries=entries,
            latest=entries[-1] if entries else None,
            report_indices=tuple(range(len(entries))),
        )


class CommitCallback(Callback):  # type: ignore[misc,unused-ignore]  # untyped in most releases of Ray
    """Tune pickles its callbacks into the run directory and a restore unpickles them: so this one holds nothing.

    Nothing raised here may end somebody's training, but for the refusal of a commit after a newer claim, and our rule.
    """

    log: ClassVar[CommitLog | None] = None
    """Where this process's commits go; on the class, so that it is not pickled."""
    _awaits_first_report = True

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Workers run, or run again."""
        self._awaits_first_report = True
        _quietly("start", lambda log: log.enter(Phase.TRAINING))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """The first report after a start proves what was restored."""
        if self._awaits_first_report:
            self._awaits_first_report = False
            strict, _ = bounded_metrics(own_metrics(result))
            _quietly("report", lambda log: log.tell(ReportEvent(at=_now(), metrics=strict)))

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        """Called before Ray registers the checkpoint and deletes older ones."""
        if CommitCallback.log is None:
            return
        try:
            CommitCallback.log.commit(str(checkpoint.path), dict(getattr(trial, "last_result", None) or {}))
        except InterruptedError:
            raise
        except Exception:
            logger.exception("The provider did not record checkpoint %s; training goes on", checkpoint)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Follow Ray's retention. Called several times a second: compares names, writes only on a change."""
        _quietly("retention", lambda log: _follow(log, trials))

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A failure that Ray answers with new workers: our one veto. Raising here ends Tune's loop."""
        if CommitCallback.log is None:
            return
        try:
            CommitCallback.log.judge(_failure_of(trial))
        except RayJobFailed:
            raise
        except Exception:
            logger.exception("The provider did not judge a failure; Ray recovers")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A failure that ends the fit."""
        _quietly("error", lambda log: _tell_end(log, trial))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The training function returned."""
        _quietly("end", lambda log: log.enter(Phase.FINISHING))


def _follow(log: CommitLog, trials: list[Any]) -> None:
    for trial in trials:
        manager = trial.run_metadata.checkpoint_manager
        kept = {str(result.checkpoint.path) for result in manager.best_checkpoint_results}
        latest = manager.latest_checkpoint_result
        if latest is not None:
            kept.add(str(latest.checkpoint.path))
        if kept:
            log.retain(str(trial.storage.trial_fs_path), kept)


def _tell_end(log: CommitLog, trial: Any) -> None:
    log.tell(FailureEvent(at=_now(), failure=_failure_of(trial), decision="Ray: errored"))
    log.enter(Phase.FINISHING)


def _failure_of(trial: Any) -> Failure:
    """Tune hands its callbacks no exception: it lies in the driver's staging folder, long before it is in the bucket."""
    name = trial.run_metadata.pickled_error_filename
    path = Path(trial.local_path, name) if name and trial.local_path else None
    if path is not None and path.is_file():
        error = cloudpickle.loads(path.read_bytes())
        if isinstance(error, BaseException):
            return classify_exception(error)
    return Failure(kind=FailureKind.INFRASTRUCTURE, reason="a worker failed and Tune kept no exception")


def _quietly(what: str, act: Callable[[CommitLog], object]) -> None:
    if CommitCallback.log is None:
        return
    try:
        act(CommitCallback.log)
    except Exception:  # process edge: an error of ours must never end somebody's training
        logger.exception("The provider's %s hook failed; training goes on", what)


def _now() -> datetime:
    return datetime.now(timezone.utc)
