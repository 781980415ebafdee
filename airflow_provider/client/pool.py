"""One connection pool per dashboard and event loop, shared by all that follow its jobs.

A TLS context costs about a megabyte and 40 ms in which an event loop stands still: a triggerer that follows 1,000 jobs of
one cluster has one, and builds none anew when the dashboard was away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from airflow_provider.client.async_transport import AsyncTransport
from airflow_provider.client.endpoint import Endpoint, tls_context

if TYPE_CHECKING:
    import ssl

_Pools = dict[Hashable, "Pool"]
_POOLS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pools] = WeakKeyDictionary()
"""A connection belongs to the loop that opened it."""


@dataclass(eq=False)
class Pool:
    """Connections to one dashboard under one identity."""

    key: Hashable = field(repr=False)
    """The headers are part of it, in clear."""
    transport: AsyncTransport
    context: ssl.SSLContext
    num_users: int = 0


def acquire(endpoint: Endpoint) -> Pool:
    """The running loop's pool for this dashboard, identity and CA file; opened if nobody has it. Raises InvalidConfig."""
    pools = _POOLS.setdefault(asyncio.get_running_loop(), {})
    key = _key(endpoint)
    pool = pools.get(key)
    if pool is None:
        context = tls_context(endpoint.address, endpoint.credentials)
        pool = pools[key] = Pool(key, AsyncTransport(endpoint, context), context)
    pool.num_users += 1
    return pool


async def release(pool: Pool, *, is_broken: bool = False) -> None:
    """Give it back; the last user's closes it. A broken one is given to nobody any more."""
    pool.num_users -= 1
    pools = _POOLS.get(asyncio.get_running_loop(), {})
    # First forgotten, then closed: closing waits, and a new user must not get what is being closed.
    if (is_broken or pool.num_users == 0) and pools.get(pool.key) is pool:
        del pools[pool.key]
    if pool.num_users == 0:
        await pool.transport.close()


def _key(endpoint: Endpoint) -> Hashable:
    credentials = endpoint.credentials
    return (
        endpoint.address,
        endpoint.timeouts,
        tuple(sorted(credentials.headers().items())),
        credentials.verify,
        # A renewed file is another authority.
        _changed_at(credentials.verify) if isinstance(credentials.verify, str) else None,
    )


def _changed_at(file: str) -> float | None:
    try:
        return Path(file).stat().st_mtime
    except OSError:  # building the context says what is wrong with it
        return None
