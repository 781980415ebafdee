"""Airflow's tables in memory, and its auth manager with readers of single DAGs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import StaticPool

from tests.support.lineage_page import RightsByDag, Tables


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
