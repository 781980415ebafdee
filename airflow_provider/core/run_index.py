"""Which DAG runs of a task trained, in the order of the runs: one small record each, beside the experiments.

Experiments alone don't tell: their folders carry run ids, which sort by type and not by time, or names that the author
chose. Airflow's own answer knows only runs with a logical date, and none that was deleted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime, timezone

from airflow_provider.core.field_types import Id, Number, UtcTime
from airflow_provider.core.identity import TaskInstanceKey, checked_storage_path, legible
from airflow_provider.core.records import Record

_KEY = re.compile(r"^(\d{8}T\d{12})-[0-9a-f]{12}\.json$")


class RunRecord(Record):
    """One DAG run in which the task (and map index) began an experiment."""

    record = "run"
    dag_id: Id
    run_id: Id
    task_id: Id
    map_index: Number = -1
    run_after: UtcTime
    """Airflow's `run_after`: the end of the data interval of a scheduled or backfilled run, else when it was triggered."""
    experiment: Id
    created_at: UtcTime


def index_uri(storage_path: str, key: TaskInstanceKey) -> str:
    """The folder of a task's run records: one per DAG, task and map index, below the storage path."""
    root = checked_storage_path(storage_path).rstrip("/")
    parts = "\0".join([key.dag_id, key.task_id, str(key.map_index)])
    digest = hashlib.sha256(parts.encode()).hexdigest()[:12]
    index = f"-{key.map_index}" if key.map_index >= 0 else ""
    return f"{root}/{legible(key.dag_id)}/{legible(key.task_id)}{index}/runs-{digest}"


def run_key(record: RunRecord) -> str:
    """Key of a run's record: keys sort by `run_after`. A run that got another experiment has another key."""
    digest = hashlib.sha256(f"{record.run_id}\0{record.experiment}".encode()).hexdigest()[:12]
    return f"{_stamp(record.run_after)}-{digest}.json"


def earlier_runs(keys: Iterable[str], *, run_after: datetime) -> list[str]:
    """Keys of the runs before `run_after`, newest first. Runs of the same moment are not before one another."""
    own = _stamp(run_after)
    return sorted((key for key in keys if (match := _KEY.match(key)) and match[1] < own), reverse=True)


def _stamp(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%S%f")
