"""Airflow's tables in memory, its auth manager with readers of single DAGs, and the page's routes below a prefix."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import StaticPool

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.plugin.app import create_app
from airflow_provider.plugin.snapshots import Snapshots
from airflow_provider.plugin.view.facts import Recorded, Seen
from tests.support.lineage_page import RightsByDag, Tables, seen


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tables]:
    """Airflow's own tables, empty; every session of the process uses them."""
    from airflow import settings
    from airflow.models import import_all_models
    from airflow.models.base import Base

    import_all_models()
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    Base.metadata.create_all(engine)
    for name in ("Session", "NonScopedSession"):
        monkeypatch.setattr(settings, name, sessionmaker(engine))
    yield Tables(engine)
    engine.dispose()


@pytest.fixture
def auth(monkeypatch: pytest.MonkeyPatch, tables: Tables) -> RightsByDag:
    """The auth manager of this process."""
    from airflow.api_fastapi import app
    from airflow.api_fastapi.auth.tokens import get_signing_key

    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a-secret-of-the-tests-that-is-long-enough-for-hs512" * 2)
    get_signing_key.cache_clear() if hasattr(get_signing_key, "cache_clear") else None
    manager = RightsByDag()
    monkeypatch.setattr(app._AuthManagerState, "instance", manager)
    return manager


class Bucket:
    """Stands for the reader: gives what a test says, and notes what it was asked for."""

    num_bytes = 1_000

    def __init__(self) -> None:
        self.answer: Seen | Exception = seen()
        self.asked: list[Recorded] = []
        self.hold = threading.Event()
        self.hold.set()
        self.looked: Callable[[], None] = lambda: None

    def open(self, recorded: Recorded) -> Any:
        self.asked.append(recorded)
        return self

    def look(self, key: TaskInstanceKey) -> Seen:
        self.looked()
        self.hold.wait(20)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def client(auth: RightsByDag, bucket: Bucket) -> Iterator[TestClient]:
    """The app below a prefix, as Airflow mounts it."""
    snapshots = Snapshots(bucket.open, wait_s=0.3)
    outer = FastAPI()
    outer.mount("/ray-train", create_app(snapshots))
    yield TestClient(outer, base_url="http://airflow/ray-train", follow_redirects=False)
    bucket.hold.set()
    snapshots.close()


@pytest.fixture
def token(auth: RightsByDag) -> Callable[[str], str]:
    def token(role: str = "reader of d") -> str:
        return auth.generate_jwt(SimpleAuthManagerUser(username="ann", role=role))

    return token


@pytest.fixture
def reader(client: TestClient, tables: Tables, token: Callable[[str], str]) -> TestClient:
    """Logged in as the browser is: by Airflow's cookie."""
    tables.add_task()
    tables.keep()
    client.cookies.set("_token", token("reader of d"))
    return client
