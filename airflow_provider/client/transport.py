"""Send a request and get a reply or a typed error. The only place that knows httpx."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from airflow_provider.client.replies import Reply
from airflow_provider.core.errors import ClusterTimeout, ClusterUnreachable, InvalidConfig, RayTrainError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from airflow_provider.client.address import ClusterAddress
    from airflow_provider.client.credentials import ClusterCredentials
    from airflow_provider.client.requests import ApiRequest

_MAX_BODY = 16 * 1024 * 1024
"""Bytes of an ordinary answer; Ray's largest, a job, stays under 100 kB."""
_IDLE = 20
"""Of so many connections an idle one is kept for the next request. httpcore counts the busy ones too: where it is less than what questions
without an answer hold, each request connects anew."""
_HEADERS = {"User-Agent": "airflow-ray-train", "Accept": "application/json", "Accept-Encoding": "gzip, deflate"}
_MAX_ERROR_BODY = 64 * 1024


@dataclass(frozen=True)
class Timeouts:
    """Limits of one request, in seconds."""

    connect_s: float = 5.0
    read_s: float = 20.0
    """Longest silence while an answer is awaited."""
    write_s: float = 30.0
    total_s: float = 40.0
    """The whole answer: a server that sends a byte now and then doesn't hold us longer."""
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

    def transport_options(self, context: ssl.SSLContext) -> dict[str, Any]:
        """Arguments that both of httpx's transports take.

        They are used without its clients: those add redirects, cookies, `.netrc` and proxy variables, none of which may touch a request that
        carries a token (one address has to mean one cluster in the scheduler, the triggerer and on a worker), and a third of a poll's cost.
        """
        num = self.timeouts.max_connections
        limits = httpx.Limits(max_connections=num, max_keepalive_connections=min(_IDLE, num), keepalive_expiry=15.0)
        return {"verify": context, "trust_env": False, "limits": limits}

    def build(self, request: ApiRequest[Any]) -> httpx.Request:
        """What is sent. Raises httpx.InvalidURL."""
        times = self.timeouts
        headers = httpx.Headers(_HEADERS)
        headers.update(self.credentials.headers())
        if request.content_type is not None:
            headers["Content-Type"] = request.content_type
        limits = {"connect": times.connect_s, "read": times.read_s, "write": times.write_s, "pool": times.read_s}
        return httpx.Request(
            request.method,
            self.address.http(request.path),
            headers=headers,
            content=request.content,
            extensions={"timeout": limits},
        )

    def reply(self, response: httpx.Response, body: bytes) -> Reply:
        """What the parse functions need of an answer."""
        credentials = self.credentials
        return Reply(
            status=response.status_code,
            content_type=response.headers.get("content-type", ""),
            body=body,
            url=str(self.address),
            header_name=credentials.shown_header,
            has_token=credentials.token is not None,
            location=_origin(response.headers.get("location", "")),
            redact=credentials.redact,
        )

    def translate(self, error: Exception, request: ApiRequest[Any]) -> RayTrainError:
        """Turn an httpx error into ours; `never_sent` = no byte of the request reached a server."""
        where = f"{request.method} {request.path} at {self.address}"
        known = self.credentials.redact(f"{type(error).__name__}: {error}")[:500]
        certificate = certificate_problem(error)
        if certificate:
            return certificate_refused(self.address, certificate)
        if isinstance(error, httpx.TimeoutException):
            early = isinstance(error, (httpx.ConnectTimeout, httpx.PoolTimeout))
            kind = ClusterUnreachable if early else ClusterTimeout
            return kind(
                f"no answer in time to {where}", known=known, change=_check_network(), never_sent=early, status=None
            )
        if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
            return InvalidConfig(f"the request can't be sent to {where}", known=known, change="check the connection")
        early = isinstance(error, httpx.ConnectError)
        return ClusterUnreachable(
            f"no connection for {where}", known=known, change=_check_network(), never_sent=early, status=None
        )

    def too_slow(self, request: ApiRequest[Any], *, limit_s: float) -> ClusterTimeout:
        """Say that an answer took too long as a whole."""
        return ClusterTimeout(
            f"the answer to {request.method} {request.path} at {self.address} was not complete in {limit_s:g} s",
            change=_check_network(),
            never_sent=False,
            status=None,
        )

    def limit_s(self, request: ApiRequest[Any]) -> float:
        """Time for the whole answer."""
        return self.timeouts.upload_s if request.is_bulk else self.timeouts.total_s


class Body:
    """Collects an answer within limits of size and time."""

    def __init__(
        self, endpoint: Endpoint, request: ApiRequest[Any], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the clock."""
        self._endpoint, self._request, self._clock = endpoint, request, clock
        self._deadline = clock() + endpoint.limit_s(request)
        self._parts = bytearray()

    def check_time(self) -> None:
        """Raise ClusterTimeout if the answer as a whole takes too long."""
        if self._clock() > self._deadline:
            raise self._endpoint.too_slow(self._request, limit_s=self._endpoint.limit_s(self._request))

    def feed(self, data: bytes, *, status: int) -> None:
        """Take a piece.

        Raises:
            ClusterTimeout, ClusterUnreachable: over the limit of time or size.

        """
        self.check_time()
        limit = _MAX_BODY if status < 400 else _MAX_ERROR_BODY
        # Of a long error text the end counts (a traceback's last line), so its middle is dropped.
        self._parts += data
        if len(self._parts) > limit:
            if status < 400:
                raise ClusterUnreachable(
                    f"the answer to {self._request.path} at {self._endpoint.address} is over {limit:,} bytes",
                    change="check that the address is Ray's dashboard",
                    status=status,
                )
            del self._parts[: len(self._parts) - limit]

    def value(self) -> bytes:
        """What arrived."""
        return bytes(self._parts)


class SyncTransport:
    """Blocking side: one connection pool."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext) -> None:
        """Open no connection yet."""
        self._endpoint = endpoint
        self._http = httpx.HTTPTransport(**endpoint.transport_options(context))
        self._is_closed = False

    def send(self, request: ApiRequest[Any]) -> Reply:
        """Send and read the whole answer."""
        with self.stream(request) as response:
            return self._endpoint.reply(response, self.read(response, request))

    def read(self, response: httpx.Response, request: ApiRequest[Any]) -> bytes:
        """Read the rest of an answer within the limits."""
        body = Body(self._endpoint, request)
        for data in self.pieces(response, request):
            body.feed(data, status=response.status_code)
        return body.value()

    def pieces(self, response: httpx.Response, request: ApiRequest[Any]) -> Iterator[bytes]:
        """Read the rest of an answer piece by piece."""
        try:
            yield from response.iter_bytes()
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self._endpoint.translate(error, request) from error

    @contextmanager
    def stream(self, request: ApiRequest[Any]) -> Iterator[httpx.Response]:
        """Send and let the caller read the answer."""
        _refuse_if(is_closed=self._is_closed)
        try:
            response = self._http.handle_request(self._endpoint.build(request))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._endpoint.translate(error, request) from error
        try:
            yield response
        finally:
            response.close()

    def close(self) -> None:
        """Close the pool."""
        self._is_closed = True
        self._http.close()


class AsyncTransport:
    """Asyncio side: one connection pool, bound to one event loop."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext) -> None:
        """Open no connection yet."""
        self._endpoint = endpoint
        self._http = httpx.AsyncHTTPTransport(**endpoint.transport_options(context))
        self._is_closed = False
        num = endpoint.timeouts.max_connections
        self._free = asyncio.Semaphore(num - num // 2)
        self._free_for_bulk = asyncio.Semaphore(max(1, num // 2))

    async def send(self, request: ApiRequest[Any]) -> Reply:
        """Send and read the whole answer."""
        async with self.stream(request) as response:
            return self._endpoint.reply(response, await self.read(response, request))

    async def read(self, response: httpx.Response, request: ApiRequest[Any]) -> bytes:
        """Read the rest of an answer within the limits."""
        body = Body(self._endpoint, request)
        async for data in self.pieces(response, request):
            body.feed(data, status=response.status_code)
        return body.value()

    async def pieces(self, response: httpx.Response, request: ApiRequest[Any]) -> AsyncIterator[bytes]:
        """Read the rest of an answer piece by piece."""
        try:
            async for data in response.aiter_bytes():
                yield data
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self._endpoint.translate(error, request) from error

    @asynccontextmanager
    async def stream(self, request: ApiRequest[Any]) -> AsyncIterator[httpx.Response]:
        """Send and let the caller read the answer."""
        limit_s = self._endpoint.limit_s(request)
        async with self._connection(request):
            _refuse_if(is_closed=self._is_closed)
            try:
                sent = self._http.handle_async_request(self._endpoint.build(request))
                # Each byte of a header that trickles in is an answer for the client's own limits.
                response = await asyncio.wait_for(sent, limit_s)
            except asyncio.TimeoutError as error:
                raise self._endpoint.too_slow(request, limit_s=limit_s) from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise self._endpoint.translate(error, request) from error
            try:
                yield response
            finally:
                await response.aclose()

    @asynccontextmanager
    async def _connection(self, request: ApiRequest[Any]) -> AsyncIterator[None]:
        """Wait for one of the pool's connections.

        The pool itself looks at each connection for each request that waits, each time that anything changes: when a thousand jobs ended
        at once, it held up the event loop, and with it all triggers, for half a minute. So they wait here, where it costs nothing.
        """
        free = self._free_for_bulk if request.is_bulk else self._free
        try:
            if free.locked():
                await asyncio.wait_for(free.acquire(), self._endpoint.timeouts.read_s)
            else:  # as a rule: without a timer and a task for each poll
                await free.acquire()
        except asyncio.TimeoutError:
            what = "packages and whole logs" if request.is_bulk else "short requests"
            error = httpx.PoolTimeout(f"all connections for {what} are in use")
            raise self._endpoint.translate(error, request) from None
        try:
            yield
        finally:
            free.release()

    async def close(self) -> None:
        """Close the pool."""
        self._is_closed = True
        await self._http.aclose()


def _refuse_if(*, is_closed: bool) -> None:
    """The pool itself would connect again, and nobody would close that."""
    if is_closed:
        raise RuntimeError("this client is closed")


def certificate_problem(error: BaseException) -> str | None:
    """Find a TLS failure in an error's causes; None if it failed otherwise."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message or "certificate verification failed"
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
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context


def _origin(location: str) -> str:
    # Only scheme and host: the query of a login redirect can hold secrets.
    try:
        parts = urlsplit(location)
    except ValueError:  # half an IPv6 address
        return "an address that can't be read"
    return f"{parts.scheme}://{parts.hostname}" if parts.hostname else location.partition("?")[0][:100]


def _check_network() -> str:
    return "check that the dashboard runs and that this machine reaches it"
