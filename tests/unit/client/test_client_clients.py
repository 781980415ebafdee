"""Both clients against a real socket that misbehaves: what a network really does."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from airflow_provider.client import (
    AsyncJobs,
    AsyncJobsClient,
    ClusterAddress,
    ClusterCredentials,
    JobsClient,
    JobStatus,
    SubmitOrigin,
    SyncJobsClient,
    package_files,
)
from airflow_provider.core.errors import (
    ClusterAuthFailed,
    ClusterTimeout,
    ClusterUnreachable,
    ForeignJob,
    InvalidConfig,
    SubmitUnknown,
)
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import Fault
from tests.support.jobs_clients import FAST, QUICK, REQUEST, TOKEN, async_client, sync_client

Submit = Callable[[FakeJobsServer], Any]


def _submit_sync(server: FakeJobsServer) -> Any:
    with sync_client(server) as client:
        return client.submit_or_find(REQUEST)


def _submit_async(server: FakeJobsServer) -> Any:
    async def run() -> Any:
        async with async_client(server) as client:
            return await client.submit_or_find(REQUEST)

    return asyncio.run(run())


@pytest.fixture(params=[_submit_sync, _submit_async], ids=["sync", "async"])
def submit(request: pytest.FixtureRequest) -> Submit:
    """Each test of the submit runs with both clients."""
    chosen: Submit = request.param
    return chosen


@pytest.mark.parametrize("kind", ["drop", "hang-after"])
def test_lost_answer_is_found(server: FakeJobsServer, submit: Submit, kind: str) -> None:
    """The server accepted and we never heard of it: one job, found."""
    if kind == "drop":
        fault = server.add(Fault("drop", "POST", times=1))
    else:
        server.add_job("job-1", metadata=REQUEST.metadata)
        fault = server.add(Fault("hang", "POST", times=1))
    outcome = submit(server)
    assert fault.num_hit == 1
    assert outcome.origin is SubmitOrigin.FOUND
    assert (server.num_posts, list(server.jobs)) == (1, ["job-1"])


def test_502_page_then_accepted(server: FakeJobsServer, submit: Submit) -> None:
    """The gateway failed before Ray saw anything: the same id is sent again."""
    server.add(Fault("answer", "POST", times=2))
    outcome = submit(server)
    assert (outcome.origin, outcome.num_posts) == (SubmitOrigin.POSTED, 3)


def test_duplicate_in_a_500_is_found(server: FakeJobsServer, submit: Submit) -> None:
    """A previous process posted it (C23)."""
    server.add_job("job-1", metadata=REQUEST.metadata)
    assert submit(server).origin is SubmitOrigin.FOUND
    server.jobs["job-1"].request["metadata"] = {"dag": "other"}
    with pytest.raises(ForeignJob):
        submit(server)


def test_gone_after_post_is_unknown(server: FakeJobsServer, submit: Submit) -> None:
    """Accepted, then no look-up answered."""
    server.add(Fault("drop", "POST", times=1))
    server.add(Fault("refuse", "GET"))
    with pytest.raises(SubmitUnknown):
        submit(server)
    assert server.num_posts == 1


def test_refused_identity_ends_after_one_call(server: FakeJobsServer, submit: Submit) -> None:
    """No retry loop (C85)."""
    server.token = "another"
    with pytest.raises(ClusterAuthFailed):
        submit(server)
    assert len(server.requests) == 1


def test_nobody_listens() -> None:
    """Refused connection: unreachable, and known as never sent."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with SyncJobsClient(ClusterAddress.parse(f"127.0.0.1:{port}"), submit_limits=QUICK, timeouts=FAST) as client:
        with pytest.raises(ClusterUnreachable) as error:
            client.version()
        assert error.value.never_sent
        with pytest.raises(ClusterUnreachable) as submitted:
            client.submit_or_find(REQUEST)
        assert not isinstance(submitted.value, SubmitUnknown)


@pytest.mark.scenario("C91")
def test_silence_is_a_timeout_and_a_trickle_too(server: FakeJobsServer) -> None:
    """A server that never answers, and one that sends a byte now and then (C91)."""
    server.add(Fault("hang", "GET"))
    with sync_client(server) as client, pytest.raises(ClusterTimeout):
        client.get_job("job-1")


class _Trickle(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:  # until we have hung up
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        except OSError:
            pass

    def log_message(self, *_: Any) -> None:
        pass


def test_a_trickle_does_not_hold_us() -> None:
    """Each byte restarts the read time-out; the total doesn't."""
    web = HTTPServer(("127.0.0.1", 0), _Trickle)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        with (
            SyncJobsClient(ClusterAddress.parse(f"127.0.0.1:{web.server_port}"), timeouts=FAST) as client,
            pytest.raises(ClusterTimeout),
        ):
            client.version()
    finally:
        web.shutdown()
        web.server_close()


@pytest.mark.scenario("C91")
def test_one_hanging_job_delays_no_other(server: FakeJobsServer) -> None:
    """Fifty polls share a pool; one of them hangs (C91), and still does when the others have their answers."""
    server.add(Fault("hang", "GET", path=".*/job-0"))
    for number in range(50):
        server.add_job(f"job-{number}")

    async def run() -> None:
        address = ClusterAddress.parse(server.url)
        async with AsyncJobsClient(address, credentials=ClusterCredentials(token=TOKEN)) as client:
            hanging = asyncio.create_task(client.get_job("job-0"))
            found = await asyncio.gather(*(client.get_job(f"job-{n}") for n in range(1, 50)))
            assert all(found)
            assert not hanging.done()
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging

    asyncio.run(run())


def test_packages(server: FakeJobsServer) -> None:
    """Asked for first, sent once; too large is a configuration error before a job exists (C31)."""
    package = package_files({"rt/__init__.py": b""})
    with sync_client(server) as client:
        assert client.ensure_package(package) is True
        assert client.ensure_package(package) is False
        assert server.packages == {package.uri: package.content}
        server.packages.clear()
        server.add(Fault("answer", "PUT", status=500, body="HTTPRequestEntityTooLarge: Request Entity Too Large"))
        with pytest.raises(InvalidConfig):
            client.submit_or_find(REQUEST, packages=[package])
    assert server.num_posts == 0


def test_stop_and_logs(server: FakeJobsServer) -> None:
    """Values, not errors, for a job that has ended or is unknown."""
    server.add_job("job-1", log="a" * 50 + "\nlast\n")
    with sync_client(server) as client:
        assert client.stop("job-1") is True
        assert client.stop("job-1") is False
        assert client.stop("unknown") is False
        part = client.logs("job-1", position=10, max_chars=5)
        assert part is not None
        assert (part.text, part.position, part.num_dropped) == ("last\n", 56, 41)
        assert client.logs("unknown") is None
        server.add(
            Fault("answer", path=".*/logs", status=500, body="Cannot connect to host", content_type="text/plain")
        )
        with pytest.raises(ClusterUnreachable, match="Cannot connect to host"):
            client.logs("job-1")


def test_clients_satisfy_the_protocols(server: FakeJobsServer) -> None:
    """The operator side sees no more than these; mypy checks the signatures here."""
    with sync_client(server) as client:
        blocking: JobsClient = client
        assert isinstance(blocking, JobsClient)
    following: AsyncJobs = async_client(server)
    assert isinstance(following, AsyncJobs)


def test_status_of_a_fresh_fake(server: FakeJobsServer) -> None:
    """What the tests above rely on."""
    server.add_job("job-1", status="PENDING")
    with sync_client(server) as client:
        job = client.get_job("job-1")
        assert job is not None
        assert job.status is JobStatus.PENDING
        server.replace_head()
        assert client.get_job("job-1") is None
        assert client.version().session_name == "session_fake_2"
