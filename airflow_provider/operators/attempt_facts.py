"""What a try reads before it decides: the newest attempt's records, and what the cluster says about its job.

`TrainingTry` acts on it; `airflow ray-train restore-plan` only says what a try would do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_provider.core.decision import AttemptFacts, ClusterSilent, JobSeen, JobSight, JobUnknown
from airflow_provider.core.errors import ClusterUnreachable, NotARayDashboard, RayTrainError

if TYPE_CHECKING:
    from airflow_provider.client.protocol import JobsClient
    from airflow_provider.core.records import OwnerRecord
    from airflow_provider.storage.experiment_records import AttemptRecords, ExperimentRecords


def read_facts(
    records: ExperimentRecords,
    sight: Callable[[str], JobSight],
    *,
    known: Mapping[int, OwnerRecord] = MappingProxyType({}),
) -> tuple[AttemptRecords | None, AttemptFacts | None]:
    """The newest claim's records as read, and all facts about it, or None. "Could not read" raises, it is never "nothing there".

    The job comes before the records: a stop record is written before its stop, an outcome before the job's end. The
    other way round, a stop of ours that falls between the two reads would look like one from outside. Only a job that
    was unknown and left traces is asked for again: it may have been sent in between.
    """
    claim = records.newest_claim()
    job = sight(claim.submission_id) if claim else None
    attempt = records.read_attempt(claim.ref, claim=claim, with_restored=False) if claim else None
    if attempt is None or job is None:
        return attempt, None
    if isinstance(job, JobUnknown) and (attempt.alive or attempt.manifest):
        job = sight(attempt.claim.submission_id)
    acting, has_final = records.owners_since(attempt.claim, known=known)
    return attempt, AttemptFacts(
        claim=attempt.claim,
        acting_owner=acting,
        job=job,
        stops=frozenset(attempt.stops),
        has_final_stop=has_final,
        alive=attempt.alive.record if attempt.alive else None,
        alive_age_s=attempt.alive.age_s if attempt.alive else None,
        has_manifest=attempt.manifest is not None,
        outcome=attempt.outcome,
        collected=attempt.collected.record if attempt.collected else None,
    )


def look_at_job(client: JobsClient, job_id: str) -> tuple[JobSight, RayTrainError | None]:
    """What the cluster says about a job. Anything but an answer is silence: a training may run behind it.

    A refusal (token, certificate, address) is given back beside the silence: without a sign of life from the driver it is
    what a person must see.
    """
    try:
        job = client.get_job(job_id)
        if job is not None:
            return JobSeen(job.status), None
        return JobUnknown(client.version().session_name), None
    except (ClusterUnreachable, NotARayDashboard) as error:
        return ClusterSilent(error.what), None
    except RayTrainError as error:
        return ClusterSilent(error.what), error
