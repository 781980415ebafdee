"""Orphan jobs: alive on the cluster although nobody of ours will ever collect them.

A job is one only where the bucket says so (a newer claim, a final owner), or where this Airflow knows its DAG run by the
owner's mark and both run and task are over. Everything else stays, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider.cli.airflow_side import TaskInAirflow, task_in_airflow
from airflow_provider.cli.errors import AirflowUnreadable
from airflow_provider.cli.gc_items import Deed, Item, NotDone, Scope
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import ClaimRecord, OwnerRecord
from airflow_provider.hooks.final_stop import stop_for_good
from airflow_provider.hooks.stop import stop_attempt

if TYPE_CHECKING:
    from airflow_provider.client.jobs_client import SyncJobsClient
    from airflow_provider.client.values import JobInfo
    from airflow_provider.storage.experiment_records import ExperimentRecords

_REF = re.compile(r"g([1-9][0-9]{0,5})/a([1-9][0-9]{0,5})")
_OURS = ("airflow_dag_id", "airflow_run_id", "airflow_task_id", "experiment", "attempt")
_HOW = "over when gc looked"


@dataclass(frozen=True)
class JobSearch:
    """Where to look, and how to open what a job names."""

    client: SyncJobsClient
    conn_id: str
    aws_conn_id: str | None
    below: str
    """Only jobs of experiments at or below this path."""
    open_records: Callable[[str], ExperimentRecords]
    read_task: Callable[[TaskInstanceKey], TaskInAirflow | None] = task_in_airflow

    def find(self) -> Iterator[Item]:
        """All live jobs of ours below the path. Raises the cluster's errors."""
        for job in self.client.list_jobs():
            if not job.status.is_terminal and self._is_meant(job):
                try:
                    yield self._judge(job)
                except RayTrainError as error:
                    yield _keep(job, f"its experiment can't be judged: {error}")

    def _is_meant(self, job: JobInfo) -> bool:
        if any(name not in job.metadata for name in _OURS):
            return False
        return f"{_plain(job.metadata['experiment'])}/".startswith(f"{_plain(self.below)}/")

    def _judge(self, job: JobInfo) -> Item:
        match = _REF.fullmatch(job.metadata["attempt"])
        if match is None:
            return _keep(job, "its metadata names no attempt")
        ref = AttemptRef(generation=int(match[1]), attempt=int(match[2]))
        records = self.open_records(job.metadata["experiment"])
        claim, newest_owner = records.claim(ref), records.newest_owner()
        if claim is None or newest_owner is None or claim.submission_id != job.submission_id:
            return _keep(job, f"no claim of {job.metadata['experiment']} names it")
        newest_claim, owner = records.newest_claim(), newest_owner[1]
        if newest_claim is not None and newest_claim.ref.rank > ref.rank:
            why = f"{newest_claim.ref} was claimed after {ref}: nobody follows it any more"
            return Item(Scope.JOB, job.submission_id, why, self._stop(records, claim, owner, why))
        if owner.final:
            why = f"owner {owner.k} stopped the experiment for good, and it is {job.status.value} all the same"
            return Item(Scope.JOB, job.submission_id, why, self._stop(records, claim, owner, why))
        return self._by_airflow(job, owner)

    def _by_airflow(self, job: JobInfo, owner: OwnerRecord) -> Item:
        key = TaskInstanceKey(owner.dag_id, owner.run_id, owner.task_id, owner.map_index)
        try:
            task = self.read_task(key)
        except AirflowUnreadable as error:
            return _keep(job, f"it is the newest attempt's, and {error.what.lower()}")
        if task is None:
            return _keep(job, f"it is the newest attempt's, and this Airflow has no {key}: another one may")
        if task.identity != owner.dag_run_identity:
            return _keep(job, f"it is the newest attempt's, and {key} here is another DAG run of that name")
        if not task.is_over:
            return _keep(job, f"its task is {task.state or 'not scheduled'}, its DAG run {task.run_state}")
        if not task.stop_on_kill:
            return _keep(job, f"its task is {task.state}, and its operator lets it go on (stop_on_kill=False)")
        why = f"its task is {task.state} and its DAG run {task.run_state}: nobody will collect it"
        return Item(Scope.JOB, job.submission_id, why, self._stop_for_good(key, owner, job.metadata["experiment"]))

    def _stop(self, records: ExperimentRecords, claim: ClaimRecord, owner: OwnerRecord, why: str) -> Deed:
        """A stop of the newest owner's: it wants nobody but its own attempt. Refused where a newer owner came since."""

        def deed() -> str:
            result = stop_attempt(
                records, self.client, ref=claim.ref, submission_id=claim.submission_id, k=owner.k, reason=f"gc: {why}"
            )
            if not result.is_sent:
                raise NotDone("Nothing was stopped", known=result.reason, change="look again")
            return result.reason

        return deed

    def _stop_for_good(self, key: TaskInstanceKey, owner: OwnerRecord, experiment: str) -> Deed:
        """As the listener does for a mark by hand: a final owner first, which a newer try's owner forbids."""

        def deed() -> str:
            task = self.read_task(key)
            if task is None or not task.is_over:
                raise NotDone("Nothing was stopped", known=f"{key} goes on in Airflow", change="look again")
            job = {
                "experiment": experiment,
                "conn_id": self.conn_id,
                "aws_conn_id": self.aws_conn_id,
                "dag_run_identity": owner.dag_run_identity,
            }
            said = stop_for_good(job, task=key, counters=task.counters, how=_HOW)
            if said.startswith("not stopping"):
                raise NotDone("Nothing was stopped", known=said)
            return said

        return deed


def _plain(uri: str) -> str:
    return uri.removeprefix("file://").rstrip("/")


def _keep(job: JobInfo, why: str) -> Item:
    return Item(Scope.JOB, job.submission_id, why)
