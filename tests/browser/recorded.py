"""Experiments of any size for tasks that train nothing, in the real bucket and in Airflow's state store."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import AttemptRecords, ExperimentFacts
from airflow_provider.core.records import RecordSegment, RestartEntry
from airflow_provider.storage.object_store import open_object_store
from tests.stack.airflow_client import AirflowClient
from tests.stack.services import Stack
from tests.support.lineage_page import facts, name
from tests.support.records import NOW, attempt_records, claim, entry, manifest, outcome
from tests.support.stored_experiment import write_experiment

BEGAN = NOW - timedelta(days=3)
MARKUP = "<img src=x onerror=alert(1)> & <b>loss</b>"


def record(stack: Stack, airflow: AirflowClient, key: TaskInstanceKey, found: ExperimentFacts) -> str:
    """Write the records as the task instance's own, and tell Airflow where they are, as the operator does."""
    uri = f"s3://models/browser/{key.task_id}"
    ids = {"dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id}
    owners = tuple(owner.model_copy(update=ids) for owner in found.owners)
    write_experiment(open_object_store(uri, client_factory=stack.s3.client), replace(found, uri=uri, owners=owners))
    path = f"/dags/{key.dag_id}/dagRuns/{key.run_id}/taskInstances/{key.task_id}/state-store/ray_train_job"
    job = {"experiment": uri, "conn_id": "ray_default", "aws_conn_id": "aws_default"}
    airflow.request("PUT", path, json={"value": job})
    return uri


def every_state() -> ExperimentFacts:
    """Restored, warm-started, pruned, quarantined and uncommitted checkpoints, and texts that look like markup."""
    found = facts()
    first, second = found.attempts
    assert second.restored is not None
    cut_off = second.restored.model_copy(update={"uncommitted": (name(1, 9),)})
    parent = "s3://models/churn/last-night/g000001/attempts/000002/checkpoint_041"
    entries = first.segments[0].checkpoints
    born = replace(entries[0], warm_started_from=parent, metrics={"epoch": 0, "loss": 4.0, MARKUP: MARKUP})
    segment = first.segments[0].model_copy(update={"checkpoints": (born, *entries[1:])})
    return replace(found, attempts=(replace(first, segments=(segment,)), replace(second, restored=cut_off)))


def ten_thousand() -> ExperimentFacts:
    """10,000 checkpoints of 12 attempts, 600 failures."""
    died = Failure(kind=FailureKind.PREEMPTION, reason="node 10.0.3.17 was taken away with notice (spot)")
    attempts: list[AttemptRecords] = []
    per, step, parent = 834, 0, None
    for n in range(1, 13):
        begin = BEGAN + timedelta(hours=3 * (n - 1))
        entries = []
        for i in range(min(per, 10_000 - per * (n - 1))):
            step += 1
            loss = 4.0 / (1 + step / 900) + (0.35 if step % 97 == 0 else 0.02 * (step % 7))
            found = {"step": step, "loss": loss, "accuracy": 1 - loss / 5, "lr": 0.001}
            at = begin + timedelta(seconds=30 + 12 * i)
            entries.append(replace(entry(name(n, i), parent=parent, metrics=found), reported_at=at))
            parent = name(n, i)
        step -= 40
        restarts = tuple(
            RestartEntry(failure=died, decision="restart the workers", at=begin + timedelta(minutes=3 * i))
            for i in range(50)
        )
        segments = (RecordSegment(checkpoints=tuple(entries), restarts=restarts, written_at=NOW),)
        end = outcome("success" if n == 12 else "failed").model_copy(
            update={"finished_at": begin + timedelta(minutes=170)}
        )
        attempts.append(
            attempt_records(
                n,
                claim=claim(1, n, k=n, created_at=begin, answers_clear=False),
                segments=segments,
                restored_from=entries[0].parent,
                outcome=end,
                manifest=manifest(*(e.checkpoint for e in entries[-3:])),
            )
        )
    owners = tuple(facts().owners[0].model_copy(update=_owner(n)) for n in range(1, 13))
    return ExperimentFacts("s3://b/x", owners, tuple(attempts), {})


def _owner(n: int) -> dict[str, Any]:
    return {"k": n, "try_number": n, "created_at": BEGAN + timedelta(hours=3 * (n - 1))}


def one() -> ExperimentFacts:
    """One checkpoint."""
    found = facts()
    first = found.attempts[0]
    segment = RecordSegment(checkpoints=first.segments[0].checkpoints[:1], written_at=NOW)
    only = replace(first, segments=(segment,), manifest=manifest(name(1, 0)), outcome=outcome("success"))
    return replace(found, owners=found.owners[:1], attempts=(only,), quarantined={})
