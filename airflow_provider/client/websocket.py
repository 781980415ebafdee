"""One websocket session on a job's log. The only place that knows the websockets package."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from airflow_provider.client import requests
from airflow_provider.client.endpoint import CHECK_NETWORK, Endpoint, certificate_problem, certificate_refused
from airflow_provider.core.errors import ClusterAuthFailed, ClusterUnreachable

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

MAX_MESSAGE = 8 * 1024 * 1024
"""Bytes of one message. Ray's are 10 lines or 20,000 characters, but one line has no limit."""
PING_S = 40.0
"""How often something is sent on a session: proxies cut what is silent after 50 s or a minute as a rule."""
CLOSE_S = 1.0
"""How long a closing handshake may take."""
TOO_BIG = 1009
"""Close code for a message over a limit, ours or the server's."""

# At DEBUG the package logs the request's headers, the token among them; so its logger here never gets that far.
_QUIET = logging.getLogger(f"{__name__}.protocol")
_QUIET.setLevel(logging.INFO)

_UNAUTHORIZED = frozenset({401, 403})
_CODE_NORMAL = 1000
_CODE_LOST = 1006


@dataclass(eq=False)
class TailClosed(Exception):
    """The server ended the session. Says nothing about the job: Ray closes normally when it loses the node, too."""

    code: int = _CODE_NORMAL

    @property
    def is_normal(self) -> bool:
        """Whether the server closed it by intent."""
        return self.code == _CODE_NORMAL


@dataclass(eq=False)
class TailUnavailable(Exception):
    """The address has no log websocket for this job, for example behind a proxy that knows only HTTP."""

    status: int


class _PinnedConnect(connect):
    """A connect that follows no redirect: our token goes to the address we were given and nowhere else."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


@asynccontextmanager
async def open_tail(
    endpoint: Endpoint, context: ssl.SSLContext, submission_id: str
) -> AsyncIterator[AsyncIterator[str]]:
    """Connect and give the messages as an iterator, which ends by raising TailClosed.

    Raises:
        TailUnavailable: the handshake was answered with a plain HTTP status.
        ClusterAuthFailed: 401 or 403. ClusterUnreachable: no connection, or 5xx.
        InvalidConfig: the certificate can't be verified.

    """
    address, times = endpoint.address, endpoint.timeouts
    opening = _PinnedConnect(
        address.ws(requests.tail_path(submission_id)),
        additional_headers=endpoint.credentials.headers(),
        user_agent_header="airflow-ray-train",
        ssl=context if address.is_secure else None,
        proxy=None,  # as for HTTP: proxy variables must not redirect a request that carries a token
        compression=None,  # its buffers would cost more per followed job than they save
        open_timeout=times.connect_s + times.read_s,
        ping_interval=PING_S,
        # No answer is waited for: while Ray's dashboard tails, it reads nothing, and would be left each minute, its log begun anew.
        ping_timeout=None,
        close_timeout=CLOSE_S,
        max_size=MAX_MESSAGE,
        max_queue=4,
        logger=_QUIET,
    )
    try:
        socket = await opening
    except InvalidStatus as error:
        raise _refused(endpoint, error.response.status_code) from error
    except (OSError, TimeoutError, WebSocketException) as error:
        problem = certificate_problem(error)
        if problem:
            raise certificate_refused(address, problem) from error
        raise ClusterUnreachable(
            f"no log connection to {address}",
            known=endpoint.known(error),
            change=CHECK_NETWORK,
            status=None,
        ) from error
    try:
        yield _messages(socket)
    except (asyncio.CancelledError, GeneratorExit):
        socket.transport.abort()  # while it tails, Ray answers no closing handshake
        raise
    finally:
        await socket.close()


async def _messages(socket: ClientConnection) -> AsyncIterator[str]:
    while True:
        try:
            message = await socket.recv()
        except ConnectionClosed as closed:
            raise TailClosed(_close_code(closed)) from None
        yield message if isinstance(message, str) else message.decode("utf-8", errors="replace")


def _close_code(closed: ConnectionClosed) -> int:
    frames = [frame.code for frame in (closed.sent, closed.rcvd) if frame is not None]
    if TOO_BIG in frames:
        return TOO_BIG
    return closed.rcvd.code if closed.rcvd is not None else _CODE_LOST


def _refused(endpoint: Endpoint, status: int) -> Exception:
    header_name = endpoint.credentials.shown_header
    if status in _UNAUTHORIZED:
        return ClusterAuthFailed(
            f"the Ray dashboard at {endpoint.address} refused our identity for the log (status {status})",
            known=f"header {header_name}",
            change="correct the connection's token, or its header name (Authorization or X-Ray-Authorization)",
            status=status,
            header_name=header_name,
        )
    if status >= 500:
        return ClusterUnreachable(
            f"no log connection to {endpoint.address} (status {status})",
            change="nothing if it passes; else look at the dashboard and at the gateway before it",
            status=status,
        )
    return TailUnavailable(status)
