"""A dashboard for the tests of the clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider.testing.jobs_api import FakeJobsServer
from tests.support.jobs_clients import TOKEN, Ask, ask_async, ask_sync


@pytest.fixture
def server() -> Iterator[FakeJobsServer]:
    """Fake dashboard with a token."""
    with FakeJobsServer(token=TOKEN) as running:
        yield running


@pytest.fixture(params=[ask_sync, ask_async], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Each question by both clients."""
    chosen: Ask = request.param
    return chosen
