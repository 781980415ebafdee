"""Stop a training for good from outside any try: a final owner record first, then the stop."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from pydantic import BaseModel, ValidationError

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.records import OwnerRecord
from airflow_provider.core.waiting import unreadable_message
from airflow_provider.hooks.experiment import open_experiment
from airflow_provider.hooks.ray import RayHook
from airflow_provider.hooks.stop import stop_attempt
from airflow_provider.storage.experiment_records import ExperimentRecords

MAX_LOST_RACES = 100
JOB_RECORD_KEY = "ray_train_job"
"""XCom and state-store entry of the operator: where the job and its experiment are. No secrets: connection ids only."""


class JobRecord(BaseModel):
    """The record `ray_train_job`: what a stop needs of it."""

    experiment: str
    conn_id: str
    aws_conn_id: str | None
    dag_run_identity: str | None = None
    stop_on_kill: bool = True


def stop_for_good(job: object, *, task: TaskInstanceKey, counters: dict[str, int], how: str) -> str:
    """Own the experiment with `final`, so that a claim or POST on its way ends itself; then stop the newest attempt.

    `job` is what the operator kept as `ray_train_job` of `task`. Returns a sentence for the log.
    """
    try:
        found = JobRecord.model_validate(job)
    except ValidationError as error:
        raise unreadable_message(f"The record {JOB_RECORD_KEY}", error) from None
    if not found.stop_on_kill:
        return "leaving the job: stop_on_kill is off"
    records = ExperimentRecords(open_experiment(found.experiment, aws_conn_id=found.aws_conn_id))
    reason = f"the task was {how}"
    owner = _final_owner(records, task, counters, identity=found.dag_run_identity, reason=reason)
    if isinstance(owner, str):
        return owner
    claim = records.newest_claim()
    if claim is None:
        return f"owner {owner.k} is final; no attempt was claimed yet"
    if records.outcome(claim.ref) is not None:
        return f"owner {owner.k} is final; {claim.ref} is over already"
    with RayHook(found.conn_id).client() as client:
        result = stop_attempt(
            records,
            client,
            ref=claim.ref,
            submission_id=claim.submission_id,
            k=owner.k,
            reason=reason,
        )
    return result.reason


def _final_owner(
    records: ExperimentRecords, task: TaskInstanceKey, counters: dict[str, int], *, identity: str | None, reason: str
) -> OwnerRecord | str:
    """The final owner record, or why there must be none: a try that a later clear or retry started is not meant.

    Counters begin again when a DAG run is deleted and created anew, so they compare within one identity only. `identity`
    is the marked run's, None in records of older releases.
    """
    owners: dict[int, OwnerRecord] = {}
    for _ in range(MAX_LOST_RACES):
        owners = records.owners_after(0, known=owners)
        if not owners:
            return "nothing to stop: the experiment has no owner yet"
        newest = owners[max(owners)]
        owner_key = TaskInstanceKey(newest.dag_id, newest.run_id, newest.task_id, newest.map_index)
        if owner_key != task:
            # The marked task was refused this experiment; it named it all the same before it was.
            return f"not stopping: the experiment belongs to {owner_key}"
        refusal = _not_meant(owners, counters, identity=identity or newest.dag_run_identity)
        if refusal is not None:
            return f"not stopping: {refusal}"
        record = newest.model_copy(
            update={
                **counters,
                "k": newest.k + 1,
                "dag_run_identity": identity or newest.dag_run_identity,
                "final": True,
                "final_because": reason,
                "created_by": "listener",
                "created_at": datetime.now(timezone.utc),
                "acted_on": None,
                "submission_id": None,
                "gave_up": None,
            }
        )
        if records.try_create_owner(record):
            return record
    return f"not stopping: {MAX_LOST_RACES} owner numbers were taken by other processes"


def _not_meant(owners: Mapping[int, OwnerRecord], counters: dict[str, int], *, identity: str) -> str | None:
    """Who among the owners came after the marked try, or None.

    All count: a process of an older try or a deleted DAG run that thaws may own last, before its marker is refused. Of
    two runs that one came later whose first owner did.
    """
    first_k: dict[str, int] = {}
    for k, owner in owners.items():
        first_k.setdefault(owner.dag_run_identity, k)
    for k in sorted(owners, reverse=True):
        owner = owners[k]
        if owner.dag_run_identity != identity:
            if identity in first_k and first_k[owner.dag_run_identity] > first_k[identity]:
                return f"owner {k} is of a DAG run that came after the one that was marked"
        elif owner.clear_number > counters["clear_number"] or owner.try_number > counters["try_number"]:
            return f"owner {k} is try {owner.try_number}, newer than the one that was marked"
    return None
