"""A dashboard to talk to, as both transports see it: limits, headers, errors, TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import certifi

from airflow_provider.client.replies import Reply
from airflow_provider.core.errors import ClusterTimeout, ClusterUnreachable, InvalidConfig, RayTrainError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.client.address import ClusterAddress
    from airflow_provider.client.credentials import ClusterCredentials
    from airflow_provider.client.requests import ApiRequest

_MAX_BODY = 16 * 1024 * 1024
"""Bytes of an ordinary answer; Ray's largest, a job, stays under 100 kB."""
_HEADERS = {"User-Agent": "airflow-ray-train", "Accept": "application/json", "Accept-Encoding": "gzip, deflate"}
_MAX_ERROR_BODY = 64 * 1024
CHECK_NETWORK = "check that the dashboard runs and that this machine reaches it"
IDLE_S = 15.0
"""So long an unused connection is kept for the next request."""


@dataclass(frozen=True)
class Timeouts:
    """Limits of one request, in seconds."""

    connect_s: float = 5.0
    read_s: float = 20.0
    """Longest silence while an answer is awaited."""
    write_s: float = 30.0
    """Longest stop while a request is sent, on the blocking side; asyncio knows the limit of the whole only."""
    total_s: float = 40.0
    """The whole answer: a server that sends a byte now and then doesn't hold us longer. On the blocking side from its headers on."""
    upload_s: float = 300.0
    """The same for packages and whole logs."""
    max_connections: int = 100
    """Of one pool. On asyncio, packages and whole logs get at most half of them, so that they never hold up a poll."""


@dataclass(frozen=True)
class Endpoint:
    """A dashboard with what is needed to talk to it."""

    address: ClusterAddress
    credentials: ClusterCredentials
    timeouts: Timeouts

    def headers(self, request: ApiRequest[Any]) -> dict[str, str]:
        """Headers in clear, for the wire only."""
        headers = _HEADERS | self.credentials.headers()
        if request.content_type is not None:
            headers["Content-Type"] = request.content_type
        return headers

    def reply(self, status: int, headers: Mapping[str, str], body: bytes) -> Reply:
        """What the parse functions need of an answer; `headers` takes names in any case."""
        credentials = self.credentials
        return Reply(
            status=status,
            content_type=headers.get("content-type", ""),
            body=body,
            url=str(self.address),
            header_name=credentials.shown_header,
            has_token=credentials.token is not None,
            location=_origin(headers.get("location", "")),
            redact=credentials.redact,
        )

    def no_answer(self, error: Exception, request: ApiRequest[Any], *, never_sent: bool) -> ClusterUnreachable:
        """Say that a time limit passed; `never_sent` = no byte of the request (a repeated GET's last one) reached a server."""
        kind = ClusterUnreachable if never_sent else ClusterTimeout
        return kind(
            f"no answer in time to {self._named(request)}",
            known=self.known(error),
            change=CHECK_NETWORK,
            never_sent=never_sent,
            status=None,
        )

    def no_connection(self, error: Exception, request: ApiRequest[Any], *, never_sent: bool) -> RayTrainError:
        """Say that there was no connection, or that it ended; a refused certificate is named as such."""
        certificate = certificate_problem(error)
        if certificate:
            return certificate_refused(self.address, certificate)
        return ClusterUnreachable(
            f"no connection for {self._named(request)}",
            known=self.known(error),
            change=CHECK_NETWORK,
            never_sent=never_sent,
            status=None,
        )

    def not_sendable(self, error: Exception, request: ApiRequest[Any]) -> InvalidConfig:
        """Say that such a request can't be written."""
        return InvalidConfig(
            f"the request can't be sent to {self._named(request)}",
            known=self.known(error),
            change="check the connection",
        )

    def too_slow(self, request: ApiRequest[Any]) -> ClusterTimeout:
        """Say that an answer took too long as a whole."""
        return ClusterTimeout(
            f"the answer to {self._named(request)} was not complete in {self.limit_s(request):g} s",
            change=CHECK_NETWORK,
            never_sent=False,
            status=None,
        )

    def known(self, error: Exception) -> str:
        """What an error of a library says, without our secrets."""
        return self.credentials.redact(f"{type(error).__name__}: {error}")[:500]

    def limit_s(self, request: ApiRequest[Any]) -> float:
        """Time for the whole answer."""
        return self.timeouts.upload_s if request.is_bulk else self.timeouts.total_s

    def _named(self, request: ApiRequest[Any]) -> str:
        return f"{request.method} {request.path} at {self.address}"


class Body:
    """Collects an answer; of a long error text its end, where a traceback names the error."""

    def __init__(self, endpoint: Endpoint, request: ApiRequest[Any]) -> None:
        self._endpoint, self._request = endpoint, request
        self._parts = bytearray()
        self._num_bytes = 0

    def feed(self, data: bytes, *, status: int) -> None:
        """Take a piece. Raises ClusterUnreachable for an answer over the limit, an error's too: it may be compressed without end."""
        self._parts += data
        self._num_bytes += len(data)
        if self._num_bytes > _MAX_BODY:
            raise ClusterUnreachable(
                f"the answer to {self._request.path} at {self._endpoint.address} is over {_MAX_BODY:,} bytes",
                change="check that the address is Ray's dashboard",
                status=status,
            )
        if status >= 400:
            del self._parts[: max(0, len(self._parts) - _MAX_ERROR_BODY)]

    def value(self) -> bytes:
        """What arrived."""
        return bytes(self._parts)


def refuse_if(*, is_closed: bool) -> None:
    """The pool itself would connect again, and nobody would close that."""
    if is_closed:
        raise RuntimeError("this client is closed")


def certificate_problem(error: BaseException) -> str | None:
    """Find a TLS failure in an error's causes; None if it failed otherwise."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        message = getattr(cause, "verify_message", None)  # aiohttp's own class of the kind has none
        if isinstance(cause, ssl.SSLCertVerificationError) and message:
            return str(message)
        if isinstance(cause, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(cause):
            return "the server doesn't speak TLS on this port"
        cause = cause.__cause__ or cause.__context__
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "certificate verification failed"
    if "WRONG_VERSION_NUMBER" in str(error):
        return "the server doesn't speak TLS on this port"
    return None


def certificate_refused(address: ClusterAddress, problem: str) -> InvalidConfig:
    """Say that the dashboard's identity could not be checked; nothing was sent."""
    return InvalidConfig(
        f"no secure connection to {address}",
        known=problem,
        change="set `verify` to the file of your certificate authority, or the schema to http if the dashboard has no TLS",
    )


def tls_context(address: ClusterAddress, credentials: ClusterCredentials) -> ssl.SSLContext:
    """TLS context for HTTP and websocket; with `verify=True` certifi's authorities and the system's.

    Slim container images carry no system authorities, company images carry their own: so both count.
    """
    if not address.is_secure:
        # Never used; an empty one costs nothing and trusts nobody.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if credentials.verify is not True:
        return credentials.ssl_context()
    context = ssl.create_default_context(cafile=certifi.where())
    context.load_default_certs()
    return context


def _origin(location: str) -> str:
    # Only scheme and host: the query of a login redirect can hold secrets.
    try:
        parts = urlsplit(location)
    except ValueError:  # half an IPv6 address
        return "an address that can't be read"
    return f"{parts.scheme}://{parts.hostname}" if parts.hostname else location.partition("?")[0][:100]
