"""The cluster under test runs the Ray that OLDER_RAY_BIN names; the tests and the newest Ray are this interpreter's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack.ray_cluster import RayCluster
from tests.stack.s3 import S3Server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[RayCluster]:
    """A cluster of the older Ray."""
    with RayCluster(
        tmp_path_factory.mktemp("older"), env=s3.env(), bin_dir=Path(os.environ["OLDER_RAY_BIN"])
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def newest(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[RayCluster]:
    """A cluster of the newest supported Ray."""
    with RayCluster(tmp_path_factory.mktemp("newest"), env=s3.env()) as cluster:
        yield cluster
