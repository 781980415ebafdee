"""Both clients against a real socket that misbehaves: what a network really does, and what must not leak."""

from __future__ import annotations

import asyncio
import pickle
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.client import (
    AsyncJobs,
    AsyncJobsClient,
    ClusterAddress,
    ClusterCredentials,
    JobRequest,
    JobsClient,
    JobStatus,
    SubmitLimits,
    SubmitOrigin,
    SyncJobsClient,
    TailLimits,
    Timeouts,
    package_files,
)
from airflow_provider.core.errors import (
    ClusterAuthFailed,
    ClusterTimeout,
    ClusterUnreachable,
    ForeignJob,
    InvalidConfig,
    NotARayDashboard,
    RayTrainError,
    SubmitUnknown,
)
from tests.support.fake_jobs_server import FakeJobsServer, Fault, TailSession

TOKEN = "s3cr3t-t0ken"
FAST = Timeouts(connect_s=2, read_s=0.4, write_s=2, total_s=1.0)
QUICK = SubmitLimits(first_wait_s=0.01, max_wait_s=0.02)
REQUEST = JobRequest("job-1", "python x.py", {"dag": "d", "try": "1"})


@pytest.fixture
def server() -> Iterator[FakeJobsServer]:
    """Fake dashboard with a token."""
    with FakeJobsServer(token=TOKEN) as running:
        yield running


def sync_client(server: FakeJobsServer, **options: Any) -> SyncJobsClient:
    """Client with short limits."""
    credentials = options.pop("credentials", ClusterCredentials(token=TOKEN))
    return SyncJobsClient(
        ClusterAddress.parse(server.url), credentials=credentials, timeouts=FAST, submit_limits=QUICK, **options
    )


def async_client(server: FakeJobsServer, **options: Any) -> AsyncJobsClient:
    """Client with short limits."""
    credentials = options.pop("credentials", ClusterCredentials(token=TOKEN))
    return AsyncJobsClient(
        ClusterAddress.parse(server.url), credentials=credentials, timeouts=FAST, submit_limits=QUICK, **options
    )


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


def test_silence_is_a_timeout_and_a_trickle_too(server: FakeJobsServer) -> None:
    """A server that never answers, and one that sends a byte now and then (C91)."""
    server.add(Fault("hang", "GET"))
    with sync_client(server) as client:
        start = time.monotonic()
        with pytest.raises(ClusterTimeout):
            client.get_job("job-1")
        assert time.monotonic() - start < 3


class _Trickle(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(100):
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
        with SyncJobsClient(ClusterAddress.parse(f"127.0.0.1:{web.server_port}"), timeouts=FAST) as client:
            start = time.monotonic()
            with pytest.raises(ClusterTimeout):
                client.version()
            assert time.monotonic() - start < 3
    finally:
        web.shutdown()
        web.server_close()


def test_one_hanging_job_delays_no_other(server: FakeJobsServer) -> None:
    """Fifty polls share a pool; one of them hangs (C91)."""
    server.add(Fault("hang", "GET", path=".*/job-0"))
    for number in range(50):
        server.add_job(f"job-{number}")

    async def run() -> None:
        async with async_client(server) as client:
            hanging = asyncio.create_task(client.get_job("job-0"))
            start = time.monotonic()
            found = await asyncio.gather(*(client.get_job(f"job-{n}") for n in range(1, 50)))
            assert all(found)
            assert time.monotonic() - start < 2
            with pytest.raises(ClusterTimeout):
                await hanging

    asyncio.run(run())


def test_token_is_in_no_error_and_no_log(server: FakeJobsServer, caplog: pytest.LogCaptureFixture) -> None:
    """Errors end up in task logs, XComs and pickles; the server may repeat our headers."""
    caplog.set_level("DEBUG")
    bodies = [
        (400, f"bad Bearer {TOKEN}"),
        (401, TOKEN),
        (403, TOKEN),
        (500, TOKEN),
        (302, TOKEN),
        (404, TOKEN),
        (200, TOKEN),
    ]
    with sync_client(server) as client:
        for status, body in bodies:
            server.clear_faults()
            headers = {"Location": "https://login.example/?next=0ther"}
            server.add(Fault("answer", status=status, body=body, content_type="text/plain", headers=headers))
            with pytest.raises(RayTrainError) as error:
                client.version()
            told = (
                "".join(traceback.format_exception(error.value)) + repr(error.value) + repr(pickle.dumps(error.value))
            )
            assert TOKEN not in told
            assert "0ther" not in told
        assert TOKEN not in repr(vars(client))
        assert TOKEN not in repr(client._endpoint)

    async def tail() -> None:
        async with async_client(server) as client, client.open_tail("job-1") as messages:
            await anext(messages)

    server.clear_faults()
    server.add_job("job-1", status="SUCCEEDED", log="a\n")
    asyncio.run(tail())
    assert "httpcore" in caplog.text, "debug logging was really on"
    assert TOKEN not in caplog.text


def test_gateway_that_strips_authorization() -> None:
    """The second header gets through (C85)."""
    with FakeJobsServer(token=TOKEN, strips_authorization=True) as server:
        with sync_client(server) as client, pytest.raises(ClusterAuthFailed, match="header Authorization"):
            client.version()
        other = ClusterCredentials(token=TOKEN, header_name="X-Ray-Authorization")
        with sync_client(server, credentials=other) as client:
            assert client.version().session_name == "session_fake_1"


def test_environment_leads_nowhere_else(
    server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither RAY_ADDRESS nor proxies nor .netrc get a request with our token, over HTTP or websocket."""
    for name in (
        "RAY_ADDRESS",
        "RAY_API_SERVER_ADDRESS",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
        "ws_proxy",
    ):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    server.add_job("job-1", status="SUCCEEDED", log="a\n")
    with sync_client(server) as client:
        assert client.version().ray_version == "2.60.0"

    async def run() -> None:
        async with async_client(server) as client, client.open_tail("job-1") as messages:
            assert await anext(messages) == "a\n"

    asyncio.run(run())


def test_redirect_is_not_followed(server: FakeJobsServer) -> None:
    """A token must not travel to where a redirect points; over a websocket neither."""
    server.add(Fault("answer", status=307, body="", headers={"Location": f"{server.url}/api/version"}))
    server.add_job("job-1")
    with sync_client(server) as client, pytest.raises(NotARayDashboard, match="redirects"):
        client.version()
    before = len(server.requests)

    async def run() -> None:
        async with async_client(server) as client:
            with pytest.raises(Exception, match="307"):
                async with client.open_tail("job-1"):
                    pass

    asyncio.run(run())
    assert len(server.requests) == before + 1


def test_prefix_reaches_http_and_websocket() -> None:
    """Behind a gateway's path (C82)."""
    with FakeJobsServer(prefix="/ray/team-a") as server:
        server.add_job("job-1", status="SUCCEEDED", log="a\nb\n")

        async def run() -> list[str]:
            async with async_client(server) as client, client.open_tail("job-1") as messages:
                return [await anext(messages)]

        assert asyncio.run(run()) == ["a\nb\n"]
        with sync_client(server) as client:
            assert client.get_job("job-1") is not None


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


def test_tail_over_real_sockets(server: FakeJobsServer) -> None:
    """Cut connections, a normal close while running, and an end without a newline: each line once."""
    job = server.add_job("job-1", log="a\nb\nc\nd\nend")
    job.tails = [
        TailSession(["a\nb"], code=0),
        TailSession(["a\nb\nc\n"]),
        TailSession(["a\nb\nc\n", "d\n"], code=1011),
    ]

    async def run() -> list[str]:
        async with async_client(server) as client:
            shown: list[str] = []
            limits = TailLimits(first_wait_s=0.01, max_wait_s=0.01)
            async with aclosing(client.tail("job-1", limits=limits)) as chunks:
                async for chunk in chunks:
                    shown += chunk.lines
                    if job.num_tails >= 3:
                        server.set_status("job-1", "SUCCEEDED")
            return shown

    assert asyncio.run(run()) == ["a", "b", "c", "d", "end"]
    assert job.num_tails >= 3


def test_tail_of_a_message_over_the_limit(server: FakeJobsServer) -> None:
    """Our own limit closes with 1009 too; the rest comes from the file (C74)."""
    job = server.add_job("job-1", log="a\n" + "x" * 9_000_000 + "\nb\n")
    limits = TailLimits(first_wait_s=0.01, max_wait_s=0.01, poll_s=0.01, final_chars=20_000_000)

    async def run() -> list[Any]:
        async with async_client(server) as client:
            chunks = []
            async for chunk in client.tail("job-1", limits=limits):
                chunks.append(chunk)
                if chunk.note:
                    server.set_status("job-1", "SUCCEEDED")
            return chunks

    chunks = asyncio.run(run())
    assert job.num_tails == 2
    assert [note for chunk in chunks if (note := chunk.note)] == [
        "live log stops before a message too large to send; the rest is read from the file now and then"
    ]
    assert [line[:1] for chunk in chunks for line in chunk.lines] == ["a", "x", "b"]


def test_quiet_job_keeps_its_session(server: FakeJobsServer) -> None:
    """No reconnect while nothing is written."""
    job = server.add_job("job-1", log="a\n")

    async def run() -> list[str]:
        async with async_client(server) as client:
            shown: list[str] = []
            async for chunk in client.tail("job-1"):
                shown += chunk.lines
                if shown == ["a"]:
                    await asyncio.sleep(0.3)
                    server.write_log("job-1", "b\n")
                elif "b" in shown:
                    server.set_status("job-1", "FAILED", exit_code=1)
            return shown

    assert asyncio.run(run()) == ["a", "b"]
    assert job.num_tails == 1


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Self-signed certificate and key for 127.0.0.1."""
    file = tmp_path / "ca.crt"
    subprocess.run(
        [shutil.which("openssl") or "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "tls", "-out", file],
        check=True, capture_output=True,
    )  # fmt: skip
    return file


def test_private_authority(certificate: Path) -> None:
    """Unset fails closed as configuration, the CA file works, false warns and works; the websocket agrees (C84)."""

    class Quiet(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"ray_version": "2.60.0"}')

        def log_message(self, *_: Any) -> None:
            pass

    web = HTTPServer(("127.0.0.1", 0), Quiet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("tls"))
    web.socket = context.wrap_socket(web.socket, server_side=True)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    address = ClusterAddress.parse(f"https://127.0.0.1:{web.server_port}")
    try:
        with SyncJobsClient(address) as client, pytest.raises(InvalidConfig, match="verify"):
            client.version()
        with SyncJobsClient(address, credentials=ClusterCredentials(verify=str(certificate))) as client:
            assert client.version().ray_version == "2.60.0"
        with pytest.warns(UserWarning, match="verify is false"):
            insecure = SyncJobsClient(address, credentials=ClusterCredentials(verify=False))
        with insecure:
            assert insecure.version().ray_version == "2.60.0"

        async def tail(credentials: ClusterCredentials) -> None:
            async with AsyncJobsClient(address, credentials=credentials) as client, client.open_tail("job-1"):
                pass

        with pytest.raises(InvalidConfig, match="verify"):
            asyncio.run(tail(ClusterCredentials()))
        with pytest.raises(ClusterUnreachable, match=re.compile("200|InvalidStatus|connection", re.IGNORECASE)):
            asyncio.run(tail(ClusterCredentials(verify=str(certificate))))
        plain = ClusterAddress.parse(f"http://127.0.0.1:{web.server_port}")
        with SyncJobsClient(plain) as client, pytest.raises(RayTrainError):
            client.version()
    finally:
        web.shutdown()
        web.server_close()


def test_https_to_a_plain_port_is_configuration(server: FakeJobsServer) -> None:
    """The message names the schema instead of an OpenSSL code."""
    address = ClusterAddress.parse(server.url.replace("http:", "https:"))
    with SyncJobsClient(address) as client, pytest.raises(InvalidConfig, match="schema"):
        client.version()


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
