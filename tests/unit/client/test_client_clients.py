"""Both clients against a real socket that misbehaves: what a network really does."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
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
from tests.support.jobs_clients import FAST, REQUEST, TOKEN, Ask, async_client, sync_client

Submit = Callable[[FakeJobsServer], Any]


@pytest.fixture
def submit(ask: Ask) -> Submit:
    """Each test of the submit runs with both clients."""
    return lambda server: ask(server, "submit_or_find", REQUEST)


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


def test_nobody_listens(ask: Ask) -> None:
    """Refused connection: unreachable, and known as never sent."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nobody = ClusterAddress.parse(f"127.0.0.1:{port}")
    with pytest.raises(ClusterUnreachable) as error:
        ask(nobody, "version")
    assert error.value.never_sent
    with pytest.raises(ClusterUnreachable) as submitted:
        ask(nobody, "submit_or_find", REQUEST)
    assert not isinstance(submitted.value, SubmitUnknown)


def test_a_host_that_nobody_knows_was_never_sent_to(ask: Ask) -> None:
    with pytest.raises(ClusterUnreachable) as error:
        ask(ClusterAddress.parse("http://no-such-host.invalid:8265"), "version")
    assert error.value.never_sent


def test_a_host_that_takes_no_connection_is_given_up_in_time_and_was_never_sent_to(ask: Ask) -> None:
    """Its queue of connections is full, as that of a machine that hangs."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        limits = replace(FAST, connect_s=0.3, total_s=30)
        with pytest.raises(ClusterUnreachable, match="no answer in time") as error:
            ask(ClusterAddress.parse(f"127.0.0.1:{full.getsockname()[1]}"), "version", timeouts=limits)
    assert error.value.never_sent


@pytest.mark.scenario("C91")
def test_silence_is_a_timeout(server: FakeJobsServer, ask: Ask) -> None:
    """A server that never answers (C91): it may have taken what was asked."""
    server.add(Fault("hang", "GET"))
    with pytest.raises(ClusterTimeout) as error:
        ask(server, "get_job", "job-1")
    assert not error.value.never_sent


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


@pytest.mark.scenario("C91")
def test_a_trickle_does_not_hold_us(ask: Ask) -> None:
    """Each byte restarts the read time-out; the total doesn't."""
    web = HTTPServer(("127.0.0.1", 0), _Trickle)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        with pytest.raises(ClusterTimeout, match="not complete"):
            ask(ClusterAddress.parse(f"127.0.0.1:{web.server_port}"), "version")
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


def test_packages(server: FakeJobsServer, ask: Ask) -> None:
    """Asked for first, sent once; too large is a configuration error before a job exists (C31)."""
    package = package_files({"rt/__init__.py": b"", "rt/data": random.Random(1).randbytes(200_000)})
    assert ask(server, "ensure_package", package) is True
    assert ask(server, "ensure_package", package) is False
    assert server.packages == {package.uri: package.content}
    server.packages.clear()
    server.add(Fault("answer", "PUT", status=500, body="HTTPRequestEntityTooLarge: Request Entity Too Large"))
    small = package_files({"rt/__init__.py": b""})
    with pytest.raises(InvalidConfig, match="too large for the dashboard"):
        ask(server, "submit_or_find", REQUEST, packages=[small])
    assert server.num_posts == 0


def test_a_package_whose_upload_got_no_answer_is_never_stored_in_part(server: FakeJobsServer, ask: Ask) -> None:
    """aiohttp sends a PUT once more by itself: all of it, under a name that is the hash of all of it."""
    package = package_files({"rt/data": random.Random(1).randbytes(200_000)})
    server.add(Fault("refuse", "PUT", times=1))
    with suppress(ClusterUnreachable):
        ask(server, "upload_package", package)
    assert server.packages in ({}, {package.uri: package.content})
    ask(server, "upload_package", package)
    assert server.packages == {package.uri: package.content}


def test_a_post_is_sent_once(server: FakeJobsServer, ask: Ask) -> None:
    """Whether or not the connection was a kept one: what it asked for may have been done."""
    server.add(Fault("refuse", "POST"))
    for method, argument in (("submit", REQUEST), ("stop", "job-1")):
        before = len(server.requests)
        with pytest.raises(ClusterUnreachable) as error:
            ask(server, method, argument)
        assert not error.value.never_sent
        assert len(server.requests) == before + 1


def test_stop_and_logs(server: FakeJobsServer, ask: Ask) -> None:
    """Values, not errors, for a job that has ended or is unknown."""
    server.add_job("job-1", log="a" * 50 + "\nlast\n")
    assert ask(server, "stop", "job-1") is True
    assert ask(server, "stop", "job-1") is False
    assert ask(server, "stop", "unknown") is False
    part = ask(server, "logs", "job-1", position=10, max_chars=5)
    assert part is not None
    assert (part.text, part.position, part.num_dropped) == ("last\n", 56, 41)
    assert ask(server, "logs", "unknown") is None
    server.add(Fault("answer", path=".*/logs", status=500, body="Cannot connect to host", content_type="text/plain"))
    with pytest.raises(ClusterUnreachable, match="Cannot connect to host"):
        ask(server, "logs", "job-1")


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
