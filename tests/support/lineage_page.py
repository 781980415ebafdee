"""Airflow's own tables and users for tests of the lineage page, and experiments to show on it."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from sqlalchemy import Engine, insert
from sqlalchemy.orm import Session

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import ExperimentFacts, project
from airflow_provider.core.records import PhaseEntry, RecordSegment, RestartEntry
from airflow_provider.plugin.view.facts import Recorded, Seen, TaskTry
from tests.support.records import NOW, attempt_records, claim, entry, manifest, outcome, owner

KEY = TaskInstanceKey("d", "manual__2026-11-29T00:00:00+00:00", "train")
URI = "s3://models/d/train/x"
JOB = {"experiment": URI, "conn_id": "ray_default", "aws_conn_id": "aws_default"}


def after(seconds: float) -> Any:
    """So many seconds after the beginning."""
    return NOW + timedelta(seconds=seconds)


def recorded(**changes: Any) -> Recorded:
    """Two tries of the training, the second one done."""
    known: dict[str, Any] = {
        "key": KEY,
        "state": "success",
        "experiment": URI,
        "conn_id": "ray_default",
        "aws_conn_id": "aws_default",
        "tries": (
            TaskTry(1, "failed", after(-2), after(-1), after(62)),
            TaskTry(2, "success", after(65), after(66), after(140)),
        ),
        "job_url": "http://ray:8265/#/jobs/j2",
        "experiment_url": "http://s3:8333/models/d/train/x/",
    }
    return Recorded(**{**known, **changes})


def name(attempt: int, number: int) -> str:
    """A checkpoint's name in its generation."""
    return f"attempts/{attempt:06d}/checkpoint_{number:03d}"


def facts(**changes: Any) -> ExperimentFacts:
    """Attempt 1 commits four and dies; attempt 2 restores the third one, since the fourth is bad, and commits three more."""
    first = [
        entry(name(1, i), 10 * (i + 1), parent=name(1, i - 1) if i else None, metrics={"epoch": i, "loss": 4.0 - i})
        for i in range(4)
    ]
    second = [
        entry(
            name(2, i), 70 + 10 * i, parent=name(2, i - 1) if i else name(1, 2), metrics={"epoch": 3 + i, "loss": 0.9}
        )
        for i in range(3)
    ]
    died = Failure(kind=FailureKind.INFRASTRUCTURE, reason="node 3 died at step 1200")
    lost = RestartEntry(failure=died, decision="restart the workers", at=after(25), commits_before=2)
    phases = [("starting", 2), ("waiting", 4), ("training", 8), ("lost", 25), ("waiting", 26), ("training", 30)]
    entered = tuple(PhaseEntry(phase=p, at=after(at)) for p, at in phases)
    attempts = (
        attempt_records(
            1,
            segments=(RecordSegment(checkpoints=tuple(first), restarts=(lost,), phases=entered, written_at=NOW),),
            outcome=outcome("failed").model_copy(update={"finished_at": after(60)}),
            manifest=manifest(*(e.checkpoint for e in first)),
        ),
        attempt_records(
            2,
            claim=claim(1, 2, k=2, created_at=after(64), answers_clear=False),
            recorded=tuple(second),
            restored_from=name(1, 2),
            outcome=outcome("success").model_copy(update={"finished_at": after(130)}),
            manifest=manifest(name(1, 2), *(e.checkpoint for e in second)),
        ),
    )
    known: dict[str, Any] = {
        "uri": URI,
        "owners": (owner(1), owner(2, created_at=after(63))),
        "attempts": attempts,
        "quarantined": {1: frozenset({name(1, 3)})},
    }
    return ExperimentFacts(**{**known, **changes})


def seen(found: ExperimentFacts | None = None, **changes: Any) -> Seen:
    """The experiment as the bucket tells it."""
    found = found or facts()
    why = {f"g000001/{name(1, 3)}": "its files are not those that were recorded"}
    return Seen(project(found), after(150), found, **{"quarantine": why, **changes})


# --- Airflow ----------------------------------------------------------------------------------------------------------


class RightsByDag(SimpleAuthManager):
    """Airflow's simple auth manager, with readers of single DAGs: `role` is `reader of d`."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        """Whether the role names this DAG; `no xcom` and `no task_instance` take these rights away."""
        if access_entity is not None and f"no {access_entity.value.lower()}" in user.role:
            return False
        return method == "GET" and details is not None and f"reader of {details.id}" in user.role


@dataclass
class Tables:
    """Airflow's tables, to put rows into."""

    engine: Engine

    def add_task(self, key: TaskInstanceKey = KEY, *, state: str | None = "success", try_number: int = 2) -> None:
        """A DAG, its run and a task instance."""
        from airflow.models.dag import DagModel
        from airflow.models.dagbundle import DagBundleModel
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import TaskInstance

        with Session(self.engine) as session:
            if session.get(DagBundleModel, "bundle") is None:
                session.add(DagBundleModel(name="bundle"))
                session.flush()
            if session.get(DagModel, key.dag_id) is None:
                session.add(DagModel(dag_id=key.dag_id, bundle_name="bundle", fileloc="d.py"))
            if not session.query(DagRun).filter_by(dag_id=key.dag_id, run_id=key.run_id).count():
                session.add(DagRun(dag_id=key.dag_id, run_id=key.run_id, run_type="manual"))
            session.flush()
            row = {"id": uuid.uuid4(), "dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id}
            row |= {"map_index": key.map_index, "state": state, "try_number": try_number, "max_tries": 3}
            row |= {"pool": "default_pool", "pool_slots": 1, "priority_weight": 1, "queue": "default"}
            row |= {"start_date": after(66), "end_date": after(140)}
            session.execute(insert(TaskInstance.__table__).values(**row))
            session.commit()

    def set_state(self, key: TaskInstanceKey, state: str) -> None:
        """The task instance's new state."""
        from airflow.models.taskinstance import TaskInstance

        with Session(self.engine) as session:
            session.query(TaskInstance).filter_by(task_id=key.task_id, run_id=key.run_id).update({"state": state})
            session.commit()

    def add_earlier_try(self, key: TaskInstanceKey = KEY, *, number: int = 1, state: str = "failed") -> None:
        """A try that Airflow has archived."""
        from airflow.models.taskinstancehistory import TaskInstanceHistory

        row = {"task_instance_id": uuid.uuid4(), "dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id}
        row |= {
            "map_index": key.map_index,
            "state": state,
            "try_number": number,
            "pool": "default_pool",
            "pool_slots": 1,
        }
        row |= {"start_date": after(-1), "end_date": after(62)}
        with Session(self.engine) as session:
            session.execute(insert(TaskInstanceHistory.__table__).values(**row))
            session.commit()

    def keep(self, key: TaskInstanceKey = KEY, value: Any = JOB) -> None:
        """As the API server stores what a worker sets in its state store."""
        from airflow.state import TaskScope, get_state_backend

        scope = TaskScope(dag_id=key.dag_id, run_id=key.run_id, task_id=key.task_id, map_index=key.map_index)
        with Session(self.engine) as session:
            get_state_backend().set(scope, "ray_train_job", json.dumps(value), session=session)
            session.commit()

    def push(self, name: str, value: Any, key: TaskInstanceKey = KEY) -> None:
        """As the API server stores an XCom."""
        from airflow.models.dagrun import DagRun
        from airflow.models.xcom import XComModel
        from sqlalchemy import delete

        with Session(self.engine) as session:
            run = session.query(DagRun).filter_by(dag_id=key.dag_id, run_id=key.run_id).one()
            row = {"dag_run_id": run.id, "dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id}
            row |= {"map_index": key.map_index, "key": name, "value": value, "timestamp": datetime.now(timezone.utc)}
            session.execute(
                delete(XComModel).filter_by(
                    **{part: row[part] for part in ("dag_run_id", "task_id", "map_index", "key")}
                )
            )
            session.execute(insert(XComModel.__table__).values(**row))
            session.commit()
