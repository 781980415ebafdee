"""A command line, a cluster and a database for the tests of the commands."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.testing.jobs_api import FakeJobsServer
from tests.support.command_line import CommandLine
from tests.support.training_try import KEY, Bench

TOKEN = "t0ken-that-must-not-show"


@pytest.fixture(autouse=True)
def _no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands set in the environment of their process is taken back."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJobsServer]:
    """A dashboard behind the connection `ray_default`."""
    with FakeJobsServer(token=TOKEN) as running:
        connection = {"conn_type": "ray", "host": running.url, "password": TOKEN}
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", json.dumps(connection))
        yield running


@pytest.fixture
def bench() -> Bench:
    """An experiment whose first attempt failed after three checkpoints."""
    bench = Bench()
    bench.own(1)
    bench.claim(1, session_name="session_fake_1")
    bench.commit("checkpoint_a", "checkpoint_b", "checkpoint_c")
    bench.end("failed")
    return bench


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the experiment lies."""
    return tmp_path / "models" / "d" / "train" / "run-1"


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Airflow's own tables, empty."""
    from airflow.models import import_all_models
    from airflow.models.base import Base

    import_all_models()
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        monkeypatch.setattr("airflow.utils.session.create_session", lambda: nullcontext(session))
        yield session
    engine.dispose()


@pytest.fixture
def in_airflow(database: Session) -> Callable[..., None]:
    """Puts the bench's task instance into Airflow's database, as its tries left it."""

    def put(
        state: str | None,
        *,
        try_number: int = 1,
        max_tries: int = 3,
        run_state: str = "running",
        clear_number: int = 0,
        identity: str | None = "i1",
        kept: dict[str, Any] | None = None,
        next_method: str | None = None,
        key: TaskInstanceKey = KEY,
    ) -> None:
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import TaskInstance
        from airflow.state import TaskScope, get_state_backend

        run = DagRun(dag_id=key.dag_id, run_id=key.run_id, run_type="manual")
        run.clear_number = clear_number
        run._state = run_state
        database.add(run)
        database.flush()
        names = {"dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id, "map_index": key.map_index}
        counters = {"try_number": try_number, "max_tries": max_tries, "pool": "default_pool", "pool_slots": 1}
        row = {"id": uuid.UUID(int=1), **names, "state": state, **counters, "priority_weight": 1, "queue": "default"}
        row["next_method"] = next_method
        database.execute(insert(TaskInstance.__table__).values(**row))
        scope = TaskScope(**names)
        entries = {"ray_train_owner": {"k": 1, "identity": identity} if identity else None, "ray_train_job": kept}
        for name, value in entries.items():
            if value is not None:
                get_state_backend().set(scope, name, json.dumps(value), session=database)

    return put
