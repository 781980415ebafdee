"""After the job: the outcome from the records first, the Jobs API second; then checks, acceptance, publication."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider.core import layout
from airflow_provider.core.classify import classify_job
from airflow_provider.core.decision import stopped_outside
from airflow_provider.core.errors import RayJobFailed, RayTrainError, WriteConflict
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.goodput import Goodput, goodput, goodput_xcom
from airflow_provider.core.job import JobStatus
from airflow_provider.core.lineage import (
    AttemptRecords,
    ExperimentFacts,
    Lineage,
    lineage_xcom,
    project,
    result_xcom,
)
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import CheckpointEntry, CollectedRecord, OutcomeRecord, OutcomeState, RecordSegment
from airflow_provider.core.redaction import redact
from airflow_provider.core.restore import registration_order
from airflow_provider.core.strict_json import bounded_metrics
from airflow_provider.storage.restore_scan import active_quarantine, read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.client.jobs_client import SyncJobsClient
    from airflow_provider.client.values import JobInfo
    from airflow_provider.storage.experiment_records import ExperimentRecords, Stored, Warn

_MAX_SAID = 400
_ADVICE = {
    FailureKind.USER: "correct the training code, then clear the task",
    FailureKind.STOPPED: "clear the task",
    FailureKind.TIMEOUT: "give more time (timeout_s), then clear the task",
}
_GOES_ON = {
    True: "it goes on from the last committed checkpoint",
    False: "it begins again, since nothing is committed yet",
    None: "it goes on from the last committed checkpoint, if there is one",
}
_NEXT_TRY = {
    True: "the next try restores from the newest verified checkpoint",
    False: "the next try begins again, since nothing is committed yet",
    None: "the next try restores from the newest verified checkpoint, if there is one",
}


@dataclass(frozen=True)
class Ended:
    """How an attempt ended, as concluded from records and job."""

    ref: AttemptRef
    outcome: OutcomeRecord
    job_status: JobStatus | None
    is_recorded: bool
    """Whether the outcome was already in the bucket."""
    stops: tuple[int, ...]
    """Owner numbers that asked this attempt to end."""
    collected: Stored[CollectedRecord] | None


def conclude_attempt(
    records: ExperimentRecords,
    client: SyncJobsClient,
    *,
    ref: AttemptRef,
    submission_id: str,
    now: datetime,
    fallback: Failure | None = None,
) -> Ended | None:
    """Read the outcome; where the driver left none, conclude it from the Jobs API and the manifest.

    `fallback` is why the caller gave the job up; without it, None means that the job is not over. Raises the store's
    typed errors, and the cluster's when neither source says how it ended.
    """
    attempt = records.read_attempt(ref)
    collected = attempt.collected.record if attempt and attempt.collected else None
    outcome = (attempt.outcome if attempt else None) or (collected.outcome if collected else None)
    job = _job(client, submission_id, is_needed=outcome is None)
    status = job.status if job else None
    is_recorded = outcome is not None
    if outcome is None:
        if fallback is None and status is not None and not status.is_terminal:
            return None
        failure = _failure_of_job(job, submission_id=submission_id, fallback=fallback)
        outcome = _outcome_without_driver(records, ref, failure=failure, now=now)
    stops = attempt.stops if attempt else ()
    if status is JobStatus.STOPPED and not stops and outcome.state is not OutcomeState.SUCCESS:
        outcome = outcome.model_copy(update={"failure": stopped_outside(submission_id)})
    return Ended(ref, outcome, status, is_recorded, stops, attempt.collected if attempt else None)


def _job(client: SyncJobsClient, submission_id: str, *, is_needed: bool) -> JobInfo | None:
    try:
        return client.get_job(submission_id)
    except RayTrainError:
        # What the driver wrote counts, whatever has become of the dashboard.
        if is_needed:
            raise
        return None


def _failure_of_job(job: JobInfo | None, *, submission_id: str, fallback: Failure | None) -> Failure | None:
    if job is not None and job.status is JobStatus.SUCCEEDED:
        return None
    if fallback is not None:
        return _with_words_of_ray(fallback, job)
    if job is None:
        return Failure(
            kind=FailureKind.LOST,
            reason=f"the cluster no longer knows job {submission_id} and its driver left no outcome",
        )
    return classify_job(
        status=job.status.value, error_type=job.error_type, exit_code=job.driver_exit_code, message=job.message or ""
    )


def _with_words_of_ray(failure: Failure, job: JobInfo | None) -> Failure:
    """What a job waits for is in Ray's own message only."""
    is_waiting = job is not None and job.status is JobStatus.PENDING and failure.kind is FailureKind.CAPACITY
    said = " ".join(redact(job.message or "").split())[:_MAX_SAID] if job is not None and is_waiting else ""
    return failure.model_copy(update={"reason": f"{failure.reason}. Ray says: {said}"}) if said else failure


def _outcome_without_driver(
    records: ExperimentRecords, ref: AttemptRef, *, failure: Failure | None, now: datetime
) -> OutcomeRecord:
    manifest = read_manifest(records, ref)
    return OutcomeRecord(
        state=OutcomeState.SUCCESS if failure is None else OutcomeState.FAILED,
        failure=failure,
        num_commits=len(manifest.entries) if manifest else 0,
        latest_checkpoint=manifest.latest.name if manifest and manifest.latest else None,
        finished_at=now,
    )


def complete_records(
    records: ExperimentRecords, ref: AttemptRef, *, k: int, now: datetime, warn: Warn = lambda _: None
) -> int:
    """Write records for checkpoints that only the manifest knows; returns how many. Marked late, under our own name."""
    manifest = read_manifest(records, ref)
    if manifest is None:
        return 0
    prefix = f"attempts/{ref.attempt:06d}/"
    recorded = {e.checkpoint for s in records.segments(ref, warn=warn).values() for e in s.checkpoints}
    missing = [e for e in registration_order(manifest) if e.name.startswith(prefix) and e.name not in recorded]
    if not missing:
        return 0
    entries = tuple(
        CheckpointEntry(
            checkpoint=e.name,
            files=_files(records, ref, e.name),
            metrics=bounded_metrics(e.metrics)[0],
            reported_at=now,
            late=True,
        )
        for e in missing[:1000]
    )
    records.create_segment(ref, name=f"late-owner-{k:06d}", record=RecordSegment(checkpoints=entries, written_at=now))
    return len(entries)


def _files(records: ExperimentRecords, ref: AttemptRef, name: str) -> tuple[CheckpointFile, ...]:
    prefix = f"{layout.generation(ref.generation)}/{name}/"
    return tuple(
        CheckpointFile(key=i.key.removeprefix(prefix), size=i.size, etag=i.etag)
        for i in records.store.list(prefix)
        if not i.key.endswith("/")
    )


def read_experiment(
    records: ExperimentRecords, *, concluded: Ended | None = None, warn: Warn | None = None
) -> ExperimentFacts:
    """All records of the experiment, for the lineage; with an outcome that was concluded and is about to be recorded.

    With `warn` segments that can't be read are told and passed over: enough to publish by, never to delete by.
    """
    attempts = []
    quarantined: dict[int, frozenset[str]] = {}
    for ref, claim in records.claims().items():
        found = records.read_attempt(ref, claim=claim)
        if found is None:
            continue
        if ref.generation not in quarantined:
            quarantined[ref.generation] = active_quarantine(records, ref.generation)
        # Of an attempt that was collected without its driver's word, the last sign of life says when it was lost.
        alive = found.alive or (records.alive(ref) if found.outcome is None and found.collected else None)
        attempts.append(
            AttemptRecords(
                claim=claim,
                restored=found.restored,
                outcome=found.outcome or (concluded.outcome if concluded and concluded.ref == ref else None),
                collected=found.collected.record if found.collected else None,
                manifest=read_manifest(records, ref, known=found),
                segments=tuple(records.segments(ref, warn=warn).values()),
                alive=alive.record if alive else None,
                alive_age_s=alive.age_s if alive else None,
            )
        )
    # What a driver found on disk but in no manifest belongs to the attempts before it.
    return ExperimentFacts(
        records.store.uri, tuple(records.owners().values()), _with_uncommitted(attempts), quarantined
    )


def _with_uncommitted(attempts: list[AttemptRecords]) -> tuple[AttemptRecords, ...]:
    found: dict[tuple[int, int], set[str]] = {}
    for attempt in attempts:
        for name in attempt.restored.uncommitted if attempt.restored else ():
            parsed = layout.parse_attempt(f"{layout.generation(attempt.claim.generation)}/{name}/")
            if parsed is not None:
                found.setdefault(parsed, set()).add(name)
    return tuple(
        replace(a, uncommitted=tuple(sorted(found[a.claim.ref.rank].difference(a.own_commits))))
        if a.claim.ref.rank in found
        else a
        for a in attempts
    )


@dataclass(frozen=True)
class Published:
    """What goes to XCom."""

    lineage: Lineage
    lineage_xcom: dict[str, Any]
    result: dict[str, Any]
    new_checkpoints: int
    summary: str
    goodput: Goodput

    @property
    def warning(self) -> str | None:
        """What a person should look at although the training succeeded."""
        if self.new_checkpoints:
            return None
        parent = self.result.get("warm_started_from")
        why = (
            f"; it began from {parent}: a loop that counts on from its parent's epoch finds them all done"
            if parent
            else ""
        )
        return (
            f"the training succeeded without a new checkpoint{why} (require_new_checkpoint=True makes that a failure)"
        )


def project_results(facts: ExperimentFacts, *, now: datetime) -> Published:
    """The two XCom values, and the goodput up to now.

    New checkpoints are those since the last success of the newest attempt's generation before it.
    """
    lineage = project(facts)
    newest = facts.attempts[-1]
    new = 0
    for attempt in reversed(facts.attempts):
        # A success that was only carried over has not been counted yet.
        is_earlier_success = bool(attempt is not newest and attempt.collected and attempt.collected.accepted)
        if attempt.claim.generation != newest.claim.generation or is_earlier_success:
            break
        new += len(attempt.own_commits)
    spent = goodput(facts, now=now)
    result = result_xcom(lineage, facts.attempts, new_checkpoints=new, goodput=goodput_xcom(spent.total))
    latest = result["latest_checkpoint"]
    where = f"latest checkpoint {latest['uri']} with {latest['metrics']}" if latest else "no checkpoint"
    summary = f"{new} new checkpoints in {result['attempts']} attempts and {result['tries']} tries; {where}"
    return Published(lineage, lineage_xcom(lineage), result, new, summary, spent)


def refusal(ended: Ended, *, new_checkpoints: int, require_new_checkpoint: bool) -> str | None:
    """Why a success is not accepted, or None."""
    if ended.outcome.restore_proven == "no":
        return "the training began again from the start although a checkpoint was restored"
    if require_new_checkpoint and new_checkpoints == 0:
        return "the job succeeded but committed no new checkpoint (require_new_checkpoint)"
    return None


def collected_record(
    ended: Ended, *, k: int, now: datetime, accepted: bool | None, refused_because: str | None = None
) -> CollectedRecord:
    """The conclusion as a record: the outcome where the driver left none, acceptance on successes only."""
    return CollectedRecord(
        k=k,
        outcome=None if ended.is_recorded else ended.outcome,
        job_status=ended.job_status.value if ended.job_status else None,
        accepted=accepted,
        refused_because=refused_because,
        published=False if accepted else None,
        written_at=now,
    )


def mark_published(records: ExperimentRecords, ref: AttemptRef) -> None:
    """Note that the accepted result is out: from here on a clear trains anew. 2 calls.

    Raises the store's errors: the next try then publishes once more.
    """
    stored = records.collected(ref)
    if stored is None or stored.record.published is not False:
        return
    record = stored.record.model_copy(update={"published": True})
    with suppress(WriteConflict):  # somebody else published it too
        records.set_collected(ref, record=record, etag=stored.etag)


def has_commit(lineage: Mapping[str, Any]) -> bool:
    """Whether the newest generation of a lineage, as the XCom has it, holds a checkpoint that can be gone on from."""
    generation = str(lineage["attempts"][-1]["ref"]).partition("/")[0] if lineage["attempts"] else ""
    return any(c["state"] == "committed" and c["attempt"].startswith(f"{generation}/") for c in lineage["checkpoints"])


def job_failed(
    failure: Failure, *, uri: str, submission_id: str | None, is_committed: bool | None = None
) -> RayJobFailed:
    """The failure as an exception, with what to do about it. `is_committed`: whether there is a checkpoint; None: unknown."""
    what_next = _NEXT_TRY[is_committed] if failure.is_retryable else "not retried"
    advice = _ADVICE.get(failure.kind)
    return RayJobFailed(
        failure.reason,
        known=f"{failure.kind.value}; {what_next}; experiment {uri}",
        change=f"{advice}: {_GOES_ON[is_committed]}" if advice else "",
        failure=failure,
        submission_id=submission_id,
    )
