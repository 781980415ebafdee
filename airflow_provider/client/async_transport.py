"""Send a request and get a reply or a typed error on asyncio. The only place that knows aiohttp's client."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
from yarl import URL

from airflow_provider.client.endpoint import IDLE_S, Body, Endpoint, refuse_if

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout  # aiohttp brings it

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from airflow_provider.client.replies import Reply
    from airflow_provider.client.requests import ApiRequest
    from airflow_provider.core.errors import RayTrainError


_LARGE = 16 * 1024
"""Bytes of a piece after which others have their turn."""


class AsyncTransport:
    """One connection pool, bound to the event loop that runs when it is made.

    aiohttp, since httpx takes much more of the loop that all jobs of a triggerer share; the blocking side, where a question more costs
    nobody anything, stays with httpx, which Airflow loads anyway.

    Known limitation of aiohttp: an answer whose chunks are framed wrongly is not refused at once, but after the limit of the whole.
    """

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext) -> None:
        """Open no connection yet."""
        self._endpoint = endpoint
        # No cookies, and by aiohttp's default no `.netrc` and no proxy variables: none of them may touch a request that carries a token.
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0, keepalive_timeout=IDLE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._is_closed = False
        num_connections = endpoint.timeouts.max_connections
        # They wait here and not in aiohttp, whose limit counts all alike.
        self._free = asyncio.Semaphore(num_connections - num_connections // 2)
        self._free_for_bulk = asyncio.Semaphore(max(1, num_connections // 2))

    async def send(self, request: ApiRequest[Any]) -> Reply:
        """Send and read the whole answer."""
        async with self.stream(request) as response:
            body = await self.read(response, request)
            return self._endpoint.reply(response.status, response.headers, body)

    async def read(self, response: aiohttp.ClientResponse, request: ApiRequest[Any]) -> bytes:
        """Read the rest of an answer within the limits."""
        body = Body(self._endpoint, request)
        async for data in self.pieces(response, request):
            body.feed(data, status=response.status)
        return body.value()

    async def pieces(self, response: aiohttp.ClientResponse, request: ApiRequest[Any]) -> AsyncIterator[bytes]:
        """Read the rest of an answer piece by piece."""
        try:
            async for data in response.content.iter_any():
                yield data
                if len(data) >= _LARGE:
                    # More of it is read without a wait while there is some, and a compressed answer may be endless.
                    await asyncio.sleep(0)
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise self._error(error, request) from error

    @asynccontextmanager
    async def stream(self, request: ApiRequest[Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send and let the caller read the answer."""
        async with self._connection(request):
            refuse_if(is_closed=self._is_closed)
            response = await self._answer(request)
            try:
                yield response
            finally:
                response.release()  # closes the connection where the answer wasn't read to its end

    async def _answer(self, request: ApiRequest[Any]) -> aiohttp.ClientResponse:
        try:
            return await self._send(request)
        except aiohttp.ClientResponseError as error:
            # What came isn't HTTP. The error holds the request's headers, so it must not be the context of ours.
            refused = self._error(error, request)
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
            raise self._error(error, request) from error
        raise refused

    async def _send(self, request: ApiRequest[Any]) -> aiohttp.ClientResponse:
        endpoint, times = self._endpoint, self._endpoint.timeouts
        return await self._http.request(
            request.method,
            # As it stands: yarl would write escaped characters of a submission id in another way.
            URL(endpoint.address.http(request.path), encoded=True),
            headers=endpoint.headers(request),
            data=request.content,  # not as a file: a PUT that aiohttp sends once more would begin where the first one ended
            allow_redirects=False,  # the token goes to the address that we were given and nowhere else
            timeout=aiohttp.ClientTimeout(
                total=endpoint.limit_s(request), connect=times.connect_s, sock_read=times.read_s
            ),
        )

    @asynccontextmanager
    async def _connection(self, request: ApiRequest[Any]) -> AsyncIterator[None]:
        """Wait for one of the connections."""
        free = self._free_for_bulk if request.is_bulk else self._free
        try:
            # Not by `wait_for`: before Python 3.12 it loses a cancellation that comes as the connection does.
            async with timeout(self._endpoint.timeouts.read_s):
                await free.acquire()
        except asyncio.TimeoutError:
            what = "packages and whole logs" if request.is_bulk else "short requests"
            error = TimeoutError(f"all connections for {what} are in use")
            raise self._endpoint.no_answer(error, request, never_sent=True) from None
        try:
            yield
        finally:
            free.release()

    async def close(self) -> None:
        """Close the pool."""
        self._is_closed = True
        await self._http.close()

    def _error(self, error: Exception, request: ApiRequest[Any]) -> RayTrainError:
        if isinstance(error, aiohttp.ServerTimeoutError):
            never_sent = isinstance(error, aiohttp.ConnectionTimeoutError)
            return self._endpoint.no_answer(error, request, never_sent=never_sent)
        if isinstance(error, asyncio.TimeoutError):
            return self._endpoint.too_slow(request)
        # A refused certificate is a ValueError too, so it comes first.
        never_sent = isinstance(error, aiohttp.ClientConnectorError)
        if not never_sent and isinstance(error, ValueError):
            return self._endpoint.not_sendable(error, request)
        return self._endpoint.no_connection(error, request, never_sent=never_sent)
