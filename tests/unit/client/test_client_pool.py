"""Clients of one event loop share connections and TLS context; another identity, loop or CA file never does."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import certifi
import pytest

from airflow_provider.client import AsyncJobsClient, ClusterAddress, ClusterCredentials
from airflow_provider.client import pool as pools
from airflow_provider.client.endpoint import Endpoint, Timeouts
from airflow_provider.client.pool import acquire, release
from airflow_provider.testing.jobs_api import FakeJobsServer
from tests.support.jobs_clients import async_client

ADDRESS = ClusterAddress.parse("https://ray.example")


def endpoint(**credentials: object) -> Endpoint:
    """A dashboard that nobody calls."""
    return Endpoint(ADDRESS, ClusterCredentials(**credentials), Timeouts())  # type: ignore[arg-type]


async def test_a_thousand_followers_of_one_cluster_build_one_tls_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would cost a megabyte, and 40 ms in which the triggerer's loop stands still."""
    built: list[ClusterAddress] = []
    real = pools.tls_context

    def counted(address: ClusterAddress, credentials: ClusterCredentials) -> object:
        built.append(address)
        return real(address, credentials)

    monkeypatch.setattr(pools, "tls_context", counted)
    found = [acquire(endpoint(token="t")) for _ in range(1000)]
    assert (len(built), len(set(map(id, found)))) == (1, 1)
    for pool in found:
        await release(pool)
    await release(acquire(endpoint(token="t")))
    assert len(built) == 2, "the last user closed the first"


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    """A private authority's file."""
    return Path(shutil.copy(certifi.where(), tmp_path / "ca.pem"))


async def test_another_identity_or_a_renewed_ca_file_has_connections_of_its_own(ca_file: Path) -> None:
    several = [
        acquire(endpoint(token="t")),
        acquire(endpoint(token="rotated")),
        acquire(endpoint(token="t", extra_headers={"X-Team": "a"})),
        acquire(endpoint(token="t", verify=str(ca_file))),
    ]
    os.utime(ca_file, (1, 1))
    several.append(acquire(endpoint(token="t", verify=str(ca_file))))
    assert len({id(pool) for pool in several}) == 5
    for pool in several:
        await release(pool)


async def test_a_client_that_leaves_does_not_close_what_another_one_uses(server: FakeJobsServer) -> None:
    first, second = async_client(server), async_client(server)
    await first.version()
    await second.version()
    await first.close()
    assert (await second.version()).session_name
    await second.close()
    await second.close()
    with pytest.raises(RuntimeError, match="closed"):
        await second.version()


async def test_whoever_connects_after_a_failure_gets_new_connections() -> None:
    """Those of a gateway that was replaced may hang for all that share them."""
    failing, other = acquire(endpoint(token="t")), acquire(endpoint(token="t"))
    await release(failing, is_broken=True)
    fresh = acquire(endpoint(token="t"))
    assert fresh is not failing
    await release(other, is_broken=True)
    assert acquire(endpoint(token="t")) is fresh, "a user of the old ones doesn't take the new ones away"
    for _ in range(2):
        await release(fresh)


def test_each_event_loop_has_its_own(server: FakeJobsServer) -> None:
    """A connection can't be used from another loop than the one that opened it."""

    async def ask() -> AsyncJobsClient:
        client = async_client(server)
        assert (await client.version()).session_name
        return client

    loops = [asyncio.new_event_loop(), asyncio.new_event_loop()]
    clients = [loop.run_until_complete(ask()) for loop in loops]
    assert clients[0]._shared is not clients[1]._shared
    for loop, client in zip(loops, clients, strict=True):
        loop.run_until_complete(client.close())
        loop.close()
