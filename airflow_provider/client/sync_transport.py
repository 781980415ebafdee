"""Send a request and get a reply or a typed error, blocking. The only place that knows httpx."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from airflow_provider.client.endpoint import IDLE_S, Body, Endpoint, refuse_if

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from airflow_provider.client.replies import Reply
    from airflow_provider.client.requests import ApiRequest
    from airflow_provider.core.errors import RayTrainError


class SyncTransport:
    """One connection pool.

    httpx's transport is used without its client, which adds redirects, cookies, `.netrc` and proxy variables: none of them may touch a
    request that carries a token (one address has to mean one cluster in the scheduler, the triggerer and on a worker).
    """

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext) -> None:
        """Open no connection yet."""
        self._endpoint = endpoint
        num_connections = endpoint.timeouts.max_connections
        limits = httpx.Limits(
            max_connections=num_connections, max_keepalive_connections=num_connections, keepalive_expiry=IDLE_S
        )
        self._http = httpx.HTTPTransport(verify=context, trust_env=False, limits=limits)
        self._is_closed = False

    def send(self, request: ApiRequest[Any]) -> Reply:
        """Send and read the whole answer."""
        with self.stream(request) as response:
            body = self.read(response, request)
            return self._endpoint.reply(response.status_code, response.headers, body)

    def read(self, response: httpx.Response, request: ApiRequest[Any]) -> bytes:
        """Read the rest of an answer within the limits."""
        body = Body(self._endpoint, request)
        for data in self.pieces(response, request):
            body.feed(data, status=response.status_code)
        return body.value()

    def pieces(self, response: httpx.Response, request: ApiRequest[Any]) -> Iterator[bytes]:
        """Read the rest of an answer piece by piece, within the limit of the whole: httpx knows that of each silence only."""
        deadline = time.monotonic() + self._endpoint.limit_s(request)
        try:
            for data in response.iter_bytes():
                if time.monotonic() > deadline:
                    raise self._endpoint.too_slow(request)
                yield data
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self._error(error, request) from error

    @contextmanager
    def stream(self, request: ApiRequest[Any]) -> Iterator[httpx.Response]:
        """Send and let the caller read the answer."""
        refuse_if(is_closed=self._is_closed)
        response = self._answer(request)
        try:
            yield response
        finally:
            response.close()

    def _answer(self, request: ApiRequest[Any]) -> httpx.Response:
        try:
            return self._http.handle_request(self._request(request))
        except httpx.RemoteProtocolError as error:
            # What came isn't HTTP. The error repeats it, with our token if the server did, so it must not be the context of ours.
            refused = self._error(error, request)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise self._error(error, request) from error
        raise refused

    def close(self) -> None:
        """Close the pool."""
        self._is_closed = True
        self._http.close()

    def _request(self, request: ApiRequest[Any]) -> httpx.Request:
        """What is sent. Raises httpx.InvalidURL."""
        endpoint, times = self._endpoint, self._endpoint.timeouts
        limits = {"connect": times.connect_s, "read": times.read_s, "write": times.write_s, "pool": times.read_s}
        return httpx.Request(
            request.method,
            endpoint.address.http(request.path),
            headers=endpoint.headers(request),
            content=request.content,
            extensions={"timeout": limits},
        )

    def _error(self, error: Exception, request: ApiRequest[Any]) -> RayTrainError:
        if isinstance(error, httpx.TimeoutException):
            never_sent = isinstance(error, (httpx.ConnectTimeout, httpx.PoolTimeout))
            return self._endpoint.no_answer(error, request, never_sent=never_sent)
        if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, UnicodeError)):
            return self._endpoint.not_sendable(error, request)
        return self._endpoint.no_connection(error, request, never_sent=isinstance(error, httpx.ConnectError))
