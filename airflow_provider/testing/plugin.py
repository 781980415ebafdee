"""The pytest fixture. Put `pytest_plugins = ["airflow_provider.testing.plugin"]` into the top-level conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow_provider.testing.cluster import RayTrainCluster


@pytest.fixture
def ray_train_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayTrainCluster]:
    """A fake cluster and bucket for one test, which tasks of a DAG run on."""
    from airflow_provider.testing.cluster import RayTrainCluster

    cluster = RayTrainCluster()
    with cluster.jobs_api:
        yield cluster.install(monkeypatch)
