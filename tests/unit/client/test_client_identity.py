"""Who talks to whom over a real socket: tokens that must not leak, addresses that must not change, certificates."""

from __future__ import annotations

import asyncio
import pickle
import re
import shutil
import socketserver
import ssl
import subprocess
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.client import (
    AsyncJobsClient,
    ClusterAddress,
    ClusterCredentials,
    SyncJobsClient,
)
from airflow_provider.core.errors import (
    ClusterAuthFailed,
    ClusterUnreachable,
    InvalidConfig,
    NotARayDashboard,
    RayTrainError,
)
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import Fault
from tests.support.jobs_clients import TOKEN, Ask, async_client, sync_client


@contextmanager
def answering(answer: bytes) -> Iterator[ClusterAddress]:
    """A socket that answers each request with these bytes and hangs up."""

    class Raw(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Raw) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield ClusterAddress.parse(f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()


@pytest.mark.scenario("C85")
def test_token_is_in_no_error_and_no_log(server: FakeJobsServer, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
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
    for status, body in bodies:
        server.clear_faults()
        headers = {"Location": "https://login.example/?next=0ther"}
        server.add(Fault("answer", status=status, body=body, content_type="text/plain", headers=headers))
        with pytest.raises(RayTrainError) as error:
            ask(server, "version")
        told = "".join(traceback.format_exception(error.value)) + repr(error.value) + repr(pickle.dumps(error.value))
        assert TOKEN not in told
        assert "0ther" not in told

    def check(client: AsyncJobsClient | SyncJobsClient, transport: object) -> None:
        for thing in (client, client._endpoint, transport):
            assert TOKEN not in repr(vars(thing))

    async def tail() -> None:
        async with async_client(server) as client, client.open_tail("job-1") as messages:
            await anext(messages)
            check(client, client._shared.transport)

    server.clear_faults()
    server.add_job("job-1", status="SUCCEEDED", log="a\n")
    asyncio.run(tail())
    with sync_client(server) as client:
        check(client, client._transport)
    assert "asyncio" in caplog.text, "debug logging was really on"
    assert TOKEN not in caplog.text


@pytest.mark.scenario("C85")
def test_gateway_that_strips_authorization(ask: Ask) -> None:
    """The second header gets through (C85)."""
    with FakeJobsServer(token=TOKEN, strips_authorization=True) as server:
        with pytest.raises(ClusterAuthFailed, match="header Authorization"):
            ask(server, "version")
        other = ClusterCredentials(token=TOKEN, header_name="X-Ray-Authorization")
        assert ask(server, "version", credentials=other).session_name == "session_fake_1"


def test_an_answer_that_is_not_http_repeats_no_token_anywhere_in_the_error(ask: Ask) -> None:
    """aiohttp's error for it holds the request's headers, which a `repr` shows; httpx's repeats what came."""
    with answering(f"HTTP/1.1 abc {TOKEN}\r\n\r\n".encode()) as address, pytest.raises(ClusterUnreachable) as caught:
        ask(address, "version")
    error: BaseException | None = caught.value
    while error is not None:
        assert TOKEN not in repr(error) + repr(error.args)
        error = error.__cause__ or error.__context__


def test_environment_leads_nowhere_else(
    server: FakeJobsServer, ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    assert ask(server, "version").ray_version == "2.60.0"

    async def run() -> None:
        async with async_client(server) as client, client.open_tail("job-1") as messages:
            assert await anext(messages) == "a\n"

    asyncio.run(run())


def test_redirect_is_not_followed(server: FakeJobsServer, ask: Ask) -> None:
    """A token must not travel to where a redirect points; over a websocket neither."""
    server.add(Fault("answer", status=307, body="", headers={"Location": f"{server.url}/api/version"}))
    server.add_job("job-1")
    with pytest.raises(NotARayDashboard, match="redirects"):
        ask(server, "version")
    before = len(server.requests)

    async def run() -> None:
        async with async_client(server) as client:
            with pytest.raises(Exception, match="307"):
                async with client.open_tail("job-1"):
                    pass

    asyncio.run(run())
    assert len(server.requests) == before + 1


@pytest.mark.scenario("C82")
def test_prefix_reaches_http_and_websocket(ask: Ask) -> None:
    """Behind a gateway's path (C82)."""
    with FakeJobsServer(prefix="/ray/team-a") as server:
        server.add_job("job-1", status="SUCCEEDED", log="a\nb\n")

        async def run() -> list[str]:
            async with async_client(server) as client, client.open_tail("job-1") as messages:
                return [await anext(messages)]

        assert asyncio.run(run()) == ["a\nb\n"]
        assert ask(server, "get_job", "job-1") is not None


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


@pytest.mark.scenario("C84")
def test_private_authority(certificate: Path, ask: Ask) -> None:
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
        with pytest.raises(InvalidConfig, match="certificate") as refused:
            ask(address, "version")
        assert "`verify`" in str(refused.value)
        assert re.search("self.signed certificate", str(refused.value)), "as one OpenSSL or another calls it"
        known = ClusterCredentials(verify=str(certificate))
        assert ask(address, "version", credentials=known).ray_version == "2.60.0"
        with pytest.warns(UserWarning, match="verify is false"):
            version = ask(address, "version", credentials=ClusterCredentials(verify=False))
        assert version.ray_version == "2.60.0"

        async def tail(credentials: ClusterCredentials) -> None:
            async with AsyncJobsClient(address, credentials=credentials) as client, client.open_tail("job-1"):
                pass

        with pytest.raises(InvalidConfig, match="verify"):
            asyncio.run(tail(ClusterCredentials()))
        with pytest.raises(ClusterUnreachable, match=re.compile("200|InvalidStatus|connection", re.IGNORECASE)):
            asyncio.run(tail(ClusterCredentials(verify=str(certificate))))
        plain = ClusterAddress.parse(f"http://127.0.0.1:{web.server_port}")
        with pytest.raises(RayTrainError):
            ask(plain, "version")
    finally:
        web.shutdown()
        web.server_close()


def test_https_to_a_plain_port_is_configuration(server: FakeJobsServer, ask: Ask) -> None:
    """The message names the schema instead of an OpenSSL code."""
    address = ClusterAddress.parse(server.url.replace("http:", "https:"))
    with pytest.raises(InvalidConfig, match="schema"):
        ask(address, "version")
