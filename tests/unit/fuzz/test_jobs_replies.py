"""Answers of the Jobs API, of what stands before it, and of anything else: pure parsers, and both clients on the wire."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.client.address import ClusterAddress
from airflow_provider.client.credentials import ClusterCredentials
from airflow_provider.client.jobs_client import AsyncJobsClient, SyncJobsClient
from airflow_provider.client.submitting import SubmitLimits
from airflow_provider.client.values import JobInfo, JobRequest, Package
from airflow_provider.core.classify import classify_job
from airflow_provider.core.failure import Failure
from airflow_provider.core.records import ClaimRecord
from tests.support.damage import SECRET, damaged_bytes, damaged_json, examples, only_typed_errors
from tests.support.records import claim

JOB: dict[str, Any] = {
    "type": "SUBMISSION", "job_id": "02000000", "submission_id": "s", "status": "FAILED", "entrypoint": "python x.py",
    "driver_info": {"id": "02000000", "node_ip_address": "10.0.0.5", "pid": "4711"}, "metadata": {"k": "v"},
    "message": "Traceback (most recent call last):\nValueError: x", "error_type": None, "driver_exit_code": 1,
    "start_time": 1795910400000, "end_time": 1795914000000, "driver_node_id": "ab",
}  # fmt: skip
ANSWERS: list[Any] = [
    JOB,
    {"ray_version": "2.60.0", "session_name": "session_1", "version": "4"},
    {"submission_id": "s", "job_id": "s"},
    {"stopped": True},
    {"logs": "line 1\nline 2"},
    f"you sent Bearer {SECRET}",
]
PAGES = st.sampled_from(
    [
        b"<html>502</html>",
        b"",
        f"<p>{SECRET}</p>".encode(),
        b"No job s exists: job s does not exist\n" + SECRET.encode(),
        b"Traceback\nValueError: Maximum request body size 9" + b"9" * 5_000,
        b"x" * 300_000,
        b"job s already exists",
    ]
)
BODIES = damaged_json(ANSWERS) | PAGES.flatmap(damaged_bytes)
HEADERS = st.dictionaries(
    st.sampled_from(["content-type", "location", "set-cookie", "content-encoding", "x-a"]),
    st.sampled_from(
        ["application/json", "text/html; charset=\xff", f"http://[{SECRET}", "/login?token=x", "gzip", "", "a" * 500]
    ),
)
REPLIES = st.builds(
    lambda status, headers, body: (status, headers, body),
    st.sampled_from([200, 200, 200, 201, 204, 302, 400, 401, 403, 404, 409, 413, 429, 500, 502, 599]),
    HEADERS,
    BODIES,
)
REQUEST = JobRequest(submission_id="s", entrypoint="python x.py", metadata={"k": "v"})
PACKAGE = Package(uri="gcs://_ray_pkg_0.zip", content=b"zip")
CREDENTIALS = ClusterCredentials(token=SECRET, extra_headers={"X-Gate": f"{SECRET}-2"})
ADDRESS = ClusterAddress.parse("http://h:8265")
LIMITS = SubmitLimits(first_wait_s=0, max_wait_s=0)


def handler(reply: tuple[int, dict[str, str], bytes]) -> Any:
    status, headers, body = reply
    encoded = [(k, v.encode("latin-1")) for k, v in headers.items()]

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            yield from (body[i : i + 4_000] for i in range(0, len(body), 4_000))

    return lambda _: httpx.Response(status, headers=encoded, stream=Body())


@given(REPLIES)
@examples(120)
def test_the_blocking_client_answers_anything_with_a_value_or_an_error_of_ours(
    reply: tuple[int, dict[str, str], bytes],
) -> None:
    with SyncJobsClient(ADDRESS, credentials=CREDENTIALS, submit_limits=LIMITS, sleep=lambda _: None) as client:
        client._transport._http.close()
        client._transport._http = httpx.MockTransport(handler(reply))
        for ask in (
            client.version,
            lambda: use(client.get_job("s")),
            lambda: client.stop("s"),
            lambda: client.ensure_package(PACKAGE),
            lambda: client.submit_or_find(REQUEST, packages=[PACKAGE]),
            lambda: client.logs("s", max_chars=1_000),
        ):
            with only_typed_errors():
                ask()
        with only_typed_errors():
            version = client.version()
            claimed = claim(1, 1, session_name=version.session_name)
            ClaimRecord.parse(claimed.body(), key="k")


def use(job: JobInfo | None) -> None:
    """What is concluded of a job that left no outcome."""
    if job is None:
        return
    for exit_code in (job.driver_exit_code, None):
        failure = classify_job("FAILED", job.error_type, exit_code, job.message or "")
        Failure.model_validate_json(failure.model_dump_json())
        assert len(failure.reason) < 4_000
        assert SECRET not in failure.model_dump_json()


@asynccontextmanager
async def answering(reply: tuple[int, dict[str, str], bytes]) -> AsyncIterator[ClusterAddress]:
    """A socket that answers each request with these bytes, framed as HTTP."""
    status, headers, body = reply
    lines = [f"HTTP/1.1 {status} Odd", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # the client may have read enough
            asked = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", asked)
            await reader.readexactly(int(length[1]) if length else 0)
            writer.write(head + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield ClusterAddress.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


@given(REPLIES)
@examples(60)
def test_the_async_client_does_too(reply: tuple[int, dict[str, str], bytes]) -> None:
    async def no_sleep(_: float) -> None:
        return None

    async def ask() -> None:
        async with (
            answering(reply) as address,
            AsyncJobsClient(address, credentials=CREDENTIALS, submit_limits=LIMITS, sleep=no_sleep) as client,
        ):
            calls: tuple[Callable[[], Awaitable[object]], ...] = (
                client.version,
                lambda: client.get_job("s"),
                lambda: client.stop("s"),
                lambda: client.ensure_package(PACKAGE),
                lambda: client.submit_or_find(REQUEST),
                lambda: client.logs("s", max_chars=1_000),
                lambda: client.log_size("s"),
            )
            for call in calls:
                with only_typed_errors():
                    await call()

    asyncio.run(ask())


@given(damaged_json([JOB]))
@examples(60)
def test_a_damaged_job_is_never_an_unknown_job(body: bytes) -> None:
    """None means lost: the next attempt would train beside it."""
    with SyncJobsClient(ADDRESS, credentials=CREDENTIALS) as client:
        client._transport._http.close()
        for status in (200, 404):
            reply = (status, {"content-type": "application/json"}, body if status == 200 else json.dumps(JOB).encode())
            client._transport._http = httpx.MockTransport(handler(reply))
            with only_typed_errors():
                assert client.get_job("s") is not None
