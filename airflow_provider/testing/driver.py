"""What a training leaves in the bucket, without a training: the records of a driver, written as an outcome says.

The restore point of a later attempt comes from the provider's own rules, on the records that the attempts before it left.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.fit_rules import RestoreProof, prove_restore
from airflow_provider.core.job import EXIT_CANCELLED, EXIT_FAILED, JOB_SPEC_FILE
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.manifest import Manifest, ManifestEntry, best_name
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import (
    AliveRecord,
    CheckpointEntry,
    OutcomeRecord,
    OutcomeState,
    Phase,
    PhaseEntry,
    RecordSegment,
    RestoredRecord,
)
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.restore_scan import read_manifest, scan_restore_point
from airflow_provider.testing.outcomes import DriverLost, FailsWith, NeverEnds, Outcome, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_provider.core.restore import Candidate
    from airflow_provider.testing.clock import SkippingClock
    from airflow_provider.testing.jobs_api_parts import FakeJob
    from airflow_provider.testing.memory_store import MemoryBucket

RAY_VERSION = "2.60.0"
WEIGHTS = b"weights of a test"
_DIED = "The job supervisor actor died unexpectedly: its node was terminated (a test says so)."


def spec_in(packages: Mapping[str, bytes], runtime_env: Mapping[str, Any]) -> JobSpec:
    """The job's document, from the package that the cluster was given."""
    (uri,) = runtime_env["py_modules"]
    with zipfile.ZipFile(io.BytesIO(packages[uri])) as package:
        (name,) = [name for name in package.namelist() if name.endswith(f"/{JOB_SPEC_FILE}")]
        return JobSpec.model_validate_json(package.read(name), context={"rendered": True})


@dataclass
class FakeDriver:
    """The driver of one job: its attempt begins when the job is posted."""

    job: FakeJob
    spec: JobSpec
    bucket: MemoryBucket
    clock: SkippingClock
    then: Outcome | None = None
    """What follows once the cluster can be reached again."""
    is_alive: bool = False
    is_shown: bool = False
    """Whether a test's run has taken it."""
    manifest: Manifest = field(default_factory=Manifest)
    proof: RestoreProof | None = None
    committed: list[CheckpointEntry] = field(default_factory=list)
    """This attempt's own."""
    phases: list[PhaseEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the experiment."""
        self.records = ExperimentRecords(self.bucket.at(self.spec.experiment_uri))
        self.rank = self.spec.ref.rank
        self.restored: Candidate | None = None
        self._enter(Phase.STARTING)

    def begin(self) -> None:
        """Restore as the provider's rules say, and give a sign of life."""
        self._enter(Phase.RESTORING)
        point = scan_restore_point(self.records, ref=self.spec.ref, policy=self.spec.restore)
        self.restored = point.candidate if point else None
        warm = self.spec.warm_start.parent if self.spec.warm_start and self.restored is None else None
        record = RestoredRecord(
            checkpoint=self.restored.name if self.restored else None,
            warm_started_from=warm.uri if warm else None,
            from_attempt=int(self.restored.name.split("/")[1]) if self.restored else None,
            reason=point.reason if point else "the first attempt of the generation",
            metrics=dict(self.restored.metrics) if self.restored else {},
            skipped=point.skipped if point else (),
            created_at=self.clock.now(),
        )
        self.records.store.write(layout.restored(*self.rank), record.body())
        if self.restored is not None:
            self.manifest = self._manifest_at(self.restored)
        self._write_manifest()
        self.job.status, self.is_alive = "RUNNING", True
        self._enter(Phase.WAITING)
        self._enter(Phase.TRAINING)
        self._record()
        self.sign()

    def play(self, outcome: Outcome) -> None:
        """Commit what the outcome reports, then end as it says, or go on."""
        for metrics in outcome.reports:
            self._commit(metrics)
            if self.proof is not None and self.proof.outcome == "no":
                reason = f"{self.proof.reason}; the training loop must load ray.train.get_checkpoint()"
                self._leave(Failure(kind=FailureKind.USER, reason=reason), exit_code=EXIT_FAILED)
                return
        match outcome:
            case NeverEnds():
                return
            case Unreachable():
                self.is_alive, self.then = False, outcome.then
            case DriverLost():
                self._end("FAILED", message=_DIED, error_type="JOB_SUPERVISOR_ACTOR_DIED")
            case FailsWith():
                self._conclude(OutcomeState.FAILED, outcome.failure, exit_code=EXIT_FAILED)
            case _:
                self._conclude(OutcomeState.SUCCESS)

    def tick(self) -> None:
        """Some time has passed: a sign of life, or an end by time, as a driver finds by itself."""
        if not self.is_alive:
            return
        deadline, stall_s = self.spec.deadline, self.spec.timings.stall_timeout_s
        trained_s = (self.clock.now() - self._last_commit_at).total_seconds()
        if self.job.status != "RUNNING":
            self.is_alive = False  # stopped
        elif deadline is not None and self.clock.now() >= deadline:
            passed = Failure(kind=FailureKind.TIMEOUT, reason=f"the deadline {deadline:%Y-%m-%d %H:%M:%S} UTC passed")
            self._leave(passed, exit_code=EXIT_CANCELLED)
        elif stall_s is not None and trained_s > stall_s:
            reason = f"no commit in {trained_s:.0f} s of training (stall_timeout_s={stall_s:.0f}), "
            reason += f"{len(self.committed)} commits before"
            self._leave(Failure(kind=FailureKind.STALLED, reason=reason), exit_code=EXIT_FAILED)
        else:
            self.sign()

    def reach_again(self) -> None:
        """The cluster answers once more: what follows an outage follows now."""
        if self.then is not None:
            then, self.then, self.is_alive = self.then, None, True
            self.play(then)

    def sign(self) -> None:
        """Give a sign of life."""
        last = self.committed[-1] if self.committed else None
        alive = AliveRecord(
            run_uid=f"test-{self.spec.submission_id}",
            phase=self.phases[-1].phase,
            phase_since=self.phase_since,
            wanted_workers=self.spec.training.scaling.wanted_workers,
            num_commits=len(self.committed),
            last_commit_at=last.reported_at if last else None,
            last_checkpoint=last.checkpoint if last else None,
            last_metrics=last.metrics if last else {},
            written_at=self.clock.now(),
        )
        self.records.store.write(layout.alive(*self.rank), alive.body())

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _last_commit_at(self) -> datetime:
        return self.committed[-1].reported_at if self.committed else self.phase_since

    def _manifest_at(self, point: Candidate) -> Manifest:
        """What was committed up to the restore point: the manifest before it, cut behind it."""
        for number in range(self.spec.ref.attempt - 1, 0, -1):
            before = read_manifest(self.records, AttemptRef(generation=self.spec.ref.generation, attempt=number))
            if before is not None and point.name in before.names:
                kept = before.entries[: before.names.index(point.name) + 1]
                return Manifest(entries=kept, latest=kept[-1])
        only = ManifestEntry(point.name, dict(point.metrics))
        return Manifest(entries=(only,), latest=only)

    def _write_manifest(self) -> None:
        self.records.store.write(layout.manifest(*self.rank), self.manifest.body(ray_version=RAY_VERSION))

    def _commit(self, metrics: Mapping[str, Any]) -> None:
        name = f"attempts/{self.spec.ref.attempt:06d}/checkpoint_{len(self.committed):06d}"
        folder = f"{layout.generation(self.spec.ref.generation)}/{name}"
        if self.restored is not None and not self.committed:
            declared = self.spec.training.progress_metric
            self.proof = prove_restore(self.restored.metrics, metrics, declared=declared)
        parent = self.manifest.latest.name if self.manifest.latest else None
        etag = self.records.store.write(f"{folder}/weights.bin", WEIGHTS)
        entry = ManifestEntry(name, dict(metrics))
        self.manifest = Manifest(entries=(*self.manifest.entries, entry), latest=entry)
        self._write_manifest()
        warm = self.spec.warm_start.parent if self.spec.warm_start and parent is None else None
        self.committed.append(
            CheckpointEntry(
                checkpoint=name,
                files=(CheckpointFile(key="weights.bin", size=len(WEIGHTS), etag=etag),),
                metrics=dict(metrics),
                reported_at=self.clock.now(),
                parent=parent,
                warm_started_from=warm.uri if warm else None,
            )
        )
        self._record()

    def _enter(self, phase: Phase) -> None:
        self.phase_since = self.clock.now()
        self.phases.append(PhaseEntry(phase=phase, at=self.phase_since))

    def _record(self) -> None:
        segment = RecordSegment(
            checkpoints=tuple(self.committed), phases=tuple(self.phases), written_at=self.clock.now()
        )
        self.records.store.write(layout.segment(*self.rank, "000001"), segment.body())

    def _conclude(self, state: OutcomeState, failure: Failure | None = None, *, exit_code: int = 0) -> None:
        """The fit is over: complete the records, publish the manifest, leave the driver's own word, end the job."""
        self._enter(Phase.FINISHING)
        self._record()
        self.sign()
        published = layout.published_manifest(self.spec.ref.generation)
        self.records.store.write(published, self.manifest.body(ray_version=RAY_VERSION))
        self._write_outcome(state, failure, best=self._best)
        self._end("SUCCEEDED" if state is OutcomeState.SUCCESS else "FAILED", exit_code=exit_code)

    def _leave(self, failure: Failure, *, exit_code: int) -> None:
        """A watch of the driver ends its process in the middle of the fit: the outcome is all that it still writes."""
        self._write_outcome(OutcomeState.FAILED, failure, best=None)
        self._end("FAILED", exit_code=exit_code)

    @property
    def _best(self) -> str | None:
        score = self.spec.training.checkpoint
        return best_name(
            self.manifest, attribute=score.checkpoint_score_attribute, order=str(score.checkpoint_score_order)
        )

    def _write_outcome(self, state: OutcomeState, failure: Failure | None, *, best: str | None) -> None:
        record = OutcomeRecord(
            state=state,
            failure=failure,
            num_commits=len(self.committed),
            latest_checkpoint=self.manifest.latest.name if self.manifest.latest else None,
            best_checkpoint=best,
            restore_proven=self.proof.outcome if self.proof else "unknown",
            fallen_metric=self.proof.fallen_metric if self.proof else None,
            num_fits=1,
            train_version=self.spec.training.train_version.value,
            ray_version=RAY_VERSION,
            finished_at=self.clock.now(),
        )
        self.records.store.write(layout.outcome(*self.rank), record.body())

    def _end(self, status: str, *, exit_code: int | None = None, message: str = "", error_type: str = "") -> None:
        self.is_alive = False
        self.job.status, self.job.exit_code = status, exit_code
        self.job.message, self.job.error_type = message or None, error_type or None
        self.job.end_time = int(self.clock.now().timestamp() * 1000)
