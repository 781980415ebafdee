"""Stop a job that we own: read the newest owner, write the stop record, then POST."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_provider.core.failure import FailureKind
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import StopRecord

if TYPE_CHECKING:
    from airflow_provider.client.jobs_client import SyncJobsClient
    from airflow_provider.storage.experiment_records import ExperimentRecords


@dataclass(frozen=True)
class StopResult:
    """What a stop did, and why."""

    is_sent: bool
    reason: str


def record_stop(
    records: ExperimentRecords, *, ref: AttemptRef, k: int, reason: str, ends: FailureKind | None = None
) -> StopResult:
    """Write owner k's stop record if k is still the newest owner. A record of the own k counts as written.

    Raises the store's typed errors: unreadable owners mean no stop.
    """
    newest = records.newest_owner()
    if newest is None or newest[0] != k:
        owner = f"owner {newest[0]}" if newest else "nobody"
        return StopResult(is_sent=False, reason=f"not stopping {ref}: {owner} owns the experiment, not {k}")
    record = StopRecord(k=k, reason=reason[:500], ends=ends, created_at=datetime.now(timezone.utc))
    records.create_stop(ref, record=record)
    return StopResult(is_sent=True, reason=f"stopping {ref}: {reason}")


def stop_attempt(  # noqa: PLR0913 - who stops what, and why
    records: ExperimentRecords,
    client: SyncJobsClient,
    *,
    ref: AttemptRef,
    submission_id: str,
    k: int,
    reason: str,
    ends: FailureKind | None = None,
) -> StopResult:
    """Record the stop, then ask Ray. The driver obeys the record even where Ray ignores the request (a PENDING job)."""
    result = record_stop(records, ref=ref, k=k, reason=reason, ends=ends)
    if result.is_sent:
        client.stop(submission_id)
    return result
