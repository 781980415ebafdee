"""Builds the facts that the pure core decides on, with everything that a test doesn't care about filled in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider.core.decision import AttemptFacts, JobSeen, JobSight, JobUnknown, TryFacts
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import JobStatus
from airflow_provider.core.lineage import AttemptRecords
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.record_parts import CheckpointFile
from airflow_provider.core.records import (
    AliveRecord,
    CheckpointEntry,
    CollectedRecord,
    OutcomeRecord,
    OutcomeState,
    Phase,
    RecordSegment,
    RestoredRecord,
)
from tests.support.experiment import NOW, claim, owner, ref

__all__ = [
    "NOW",
    "SESSION",
    "alive",
    "attempt_facts",
    "attempt_records",
    "claim",
    "collected",
    "entry",
    "file",
    "gone",
    "manifest",
    "outcome",
    "owner",
    "ref",
    "seen",
    "success",
    "try_facts",
]
SESSION = "session_2026-11-29_01"
"""Ray's session in which every claim of these builders was made."""


def try_facts(try_number: int = 2, **changes: Any) -> TryFacts:
    """The second try of the task whose first try made everything else here."""
    known: dict[str, Any] = {
        "dag_run_identity": "i1",
        "max_tries": 3,
        "clear_number": 0,
        "own_ks": frozenset({try_number}),
    }
    return TryFacts(try_number=try_number, **{**known, **changes})


def attempt_facts(job: JobSight, generation: int = 1, attempt: int = 1, **changes: Any) -> AttemptFacts:
    """An attempt that owner 1 (try 1) claimed."""
    known: dict[str, Any] = {
        "claim": claim(generation, attempt, session_name=SESSION),
        "acting_owner": owner(1),
    }
    return AttemptFacts(job=job, **{**known, **changes})


def seen(status: str) -> JobSeen:
    """The cluster knows the job."""
    return JobSeen(JobStatus(status))


def gone(session_name: str | None = SESSION) -> JobUnknown:
    """A 404."""
    return JobUnknown(session_name)


def alive() -> AliveRecord:
    """A driver's sign of life."""
    return AliveRecord(run_uid="u1", phase=Phase.TRAINING, phase_since=NOW, written_at=NOW)


def outcome(state: str = "success", **changes: Any) -> OutcomeRecord:
    """A driver's word; a failure gets a kind."""
    if state == "failed":
        changes.setdefault("failure", Failure(kind=FailureKind.INFRASTRUCTURE, reason="node 3 died at step 1200"))
    return OutcomeRecord(state=OutcomeState(state), finished_at=NOW, **changes)


def collected(accepted: bool | None = None, **changes: Any) -> CollectedRecord:
    """What collect concluded."""
    return CollectedRecord(k=1, accepted=accepted, written_at=NOW, **changes)


def success(accepted: bool | None) -> dict[str, Any]:
    """An attempt's success outcome as changes for `attempt_facts`; None: nobody collected it yet."""
    return {"outcome": outcome(), "collected": None if accepted is None else collected(accepted)}


def manifest(*names: str, latest: str | None = None, **metrics: dict[str, Any]) -> Manifest:
    """Checkpoints in the order of registration; `metrics` by name."""
    entries = tuple(ManifestEntry(n, metrics.get(n, {})) for n in names)
    newest = next((e for e in entries if e.name == latest), entries[-1] if entries else None)
    return Manifest(entries=entries, latest=newest)


def file(key: str = "model.pt", size: int = 8, etag: str = "e1") -> CheckpointFile:
    """One object of a checkpoint."""
    return CheckpointFile(key=key, size=size, etag=etag)


def entry(name: str, second: int = 0, **changes: Any) -> CheckpointEntry:
    """A recorded checkpoint, reported that many seconds after NOW."""
    known: dict[str, Any] = {"files": (file(),), "reported_at": NOW + timedelta(seconds=second)}
    return CheckpointEntry(checkpoint=name, **{**known, **changes})


def attempt_records(
    attempt: int = 1, *, generation: int = 1, recorded: tuple[CheckpointEntry, ...] = (), **changes: Any
) -> AttemptRecords:
    """One attempt's folder as read."""
    restored_from = changes.pop("restored_from", None)
    known: dict[str, Any] = {
        "claim": claim(generation, attempt, session_name=SESSION),
        "restored": RestoredRecord(checkpoint=restored_from, reason="newest that verifies", created_at=NOW),
        "segments": (RecordSegment(checkpoints=recorded, written_at=NOW),) if recorded else (),
    }
    return AttemptRecords(**{**known, **changes})
