"""The `ray` connection: every way to write it, and what a connection editor must not be able to do."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.client.address import ClusterAddress
from airflow_provider.client.credentials import ClusterCredentials
from airflow_provider.core.errors import InvalidConfig
from airflow_provider.hooks import ray as ray_hook
from airflow_provider.hooks.ray import RayHook
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import Fault

TOKEN = "t0ken-that-must-not-show"


@pytest.fixture
def server() -> Iterator[FakeJobsServer]:
    with FakeJobsServer(token=TOKEN) as server:
        yield server


def target(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> tuple[ClusterAddress, ClusterCredentials]:
    return hook(monkeypatch, **fields).target()


def hook(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> RayHook:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_TEST", json.dumps({"conn_type": "ray", **fields}))
    return RayHook("ray_test")


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "10.0.0.5"}, "http://10.0.0.5:8265"),
        ({"host": "10.0.0.5", "port": 9000}, "http://10.0.0.5:9000"),
        ({"host": "http://10.0.0.5:8265"}, "http://10.0.0.5:8265"),
        ({"host": "https://gw.example/ray/team-a"}, "https://gw.example/ray/team-a"),
        ({"host": "gw.example", "schema": "https"}, "https://gw.example"),
        ({"host": "::1", "port": 8265}, "http://[::1]:8265"),
    ],
)
def test_an_address_is_read_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], url: str
) -> None:
    assert str(target(monkeypatch, **fields)[0]) == url


def test_a_connection_uri_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_TEST", f"ray://:{TOKEN}@head.example:8265/?verify=false")
    address, credentials = RayHook("ray_test").target()
    assert str(address) == "http://head.example:8265"
    assert credentials.headers() == {"Authorization": f"Bearer {TOKEN}"}
    assert credentials.verify is False


def test_the_password_is_the_token_and_never_in_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    _, credentials = target(monkeypatch, host="h", password=TOKEN)
    assert credentials.headers() == {"Authorization": f"Bearer {TOKEN}"}
    assert TOKEN not in repr(credentials)


def test_no_password_means_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    assert target(monkeypatch, host="h")[1].headers() == {}


def test_header_name_and_further_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"header_name": "X-Ray-Authorization", "headers": '{"X-Team": "a"}'}
    _, credentials = target(monkeypatch, host="h", password="t", extra=extra)
    assert credentials.headers() == {"X-Team": "a", "X-Ray-Authorization": "Bearer t"}


@pytest.mark.parametrize("headers", ["", None, {}])
def test_an_empty_form_field_is_no_header(monkeypatch: pytest.MonkeyPatch, headers: Any) -> None:
    assert target(monkeypatch, host="h", extra={"headers": headers})[1].headers() == {}


@pytest.mark.parametrize("headers", ["X-Team: a", "[1]", {"X-Team": 1}, ["a"]])
def test_headers_that_are_no_mapping_of_texts_are_refused(monkeypatch: pytest.MonkeyPatch, headers: Any) -> None:
    with pytest.raises(InvalidConfig, match="headers"):
        target(monkeypatch, host="h", extra={"headers": headers})


@pytest.mark.parametrize(
    ("extra", "verify"),
    [
        ({}, True),
        ({"verify": True}, True),
        ({"verify": None}, True),
        ({"verify": ""}, True),
        ({"verify": "true"}, True),
        ({"verify": False}, False),
        ({"verify": " False "}, False),
        ({"verify": True, "ca_file": ""}, True),
        ({"verify": True, "ca_file": None}, True),
    ],
)
def test_tls_is_verified_unless_it_is_switched_off_in_so_many_words(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], verify: bool
) -> None:
    assert target(monkeypatch, host="h", extra=extra)[1].verify is verify


@pytest.mark.parametrize("verify", ["no", "/etc/ca.pem", 0, 1, []])
def test_an_unclear_verify_is_refused(monkeypatch: pytest.MonkeyPatch, verify: Any) -> None:
    """Taking 0 for false, or a typo for a path, would decide about security by guessing."""
    with pytest.raises(InvalidConfig, match="verify"):
        target(monkeypatch, host="h", extra={"verify": verify})


def test_a_ca_file_is_the_authority(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("x")
    assert target(monkeypatch, host="h", extra={"ca_file": str(file)})[1].verify == str(file)
    with pytest.raises(InvalidConfig, match="ca_file"):
        target(monkeypatch, host="h", extra={"verify": False, "ca_file": str(file)})
    with pytest.raises(InvalidConfig, match="does not exist"):
        target(monkeypatch, host="h", extra={"ca_file": str(tmp_path / "gone.pem")})


def test_unknown_extras_are_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connection editors must not reach into our client."""
    with pytest.raises(InvalidConfig, match="proxies, timeout") as caught:
        target(monkeypatch, host="h", extra={"timeout": 3, "proxies": "x"})
    assert "ca_file, header_name, headers, verify" in str(caught.value)


@pytest.mark.parametrize("extra", ['{"verify": fal', "[1, 2]", '"text"'])
def test_a_broken_extra_is_an_error_and_not_an_empty_one(monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    """Airflow reads broken JSON as no extras: a gateway's headers would be left out without a word."""
    with pytest.raises(InvalidConfig, match="not a JSON object"):
        target(monkeypatch, host="h", extra=extra)


def test_a_connection_without_a_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfig, match="no host"):
        target(monkeypatch)


def test_the_environment_never_redirects_it(monkeypatch: pytest.MonkeyPatch, server: FakeJobsServer) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_DASHBOARD_ADDRESS", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("RAY_JOB_HEADERS", '{"X-Evil": "1"}')
    with hook(monkeypatch, host=server.url, password=TOKEN).client() as client:
        assert client.version().ray_version == "2.60.0"
    assert "X-Evil" not in server.requests[0].headers


async def test_the_async_client_reads_the_same_connection(
    monkeypatch: pytest.MonkeyPatch, server: FakeJobsServer
) -> None:
    async with await hook(monkeypatch, host=server.url, password=TOKEN).aclient() as client:
        assert (await client.version()).ray_version == "2.60.0"


async def test_the_asyncio_side_is_imported_in_a_thread_for_each_that_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one too: the module is known as soon as the first begins to import it, and is not there before the end."""
    ticked = threading.Event()
    importing: list[int] = []

    def slow_import(_: str) -> None:
        importing.append(threading.get_ident())
        assert ticked.wait(10), "the event loop goes on meanwhile"

    async def tick() -> None:
        while len(importing) < 2:  # noqa: ASYNC110 - the others are threads
            await asyncio.sleep(0.001)
        ticked.set()

    monkeypatch.setattr(ray_hook, "import_module", slow_import)
    of_ray = hook(monkeypatch, host="10.0.0.5")
    *clients, _ = await asyncio.gather(of_ray.aclient(), of_ray.aclient(), tick())
    assert len(clients) == 2
    assert threading.get_ident() not in importing


async def test_the_event_loop_is_spared_airflows_blocking_way_to_read_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    made = hook(monkeypatch, host="h", extra={"header_name": "X-Ray-Authorization"}, password="t")

    def blocking(_: object) -> dict[str, Any]:
        raise AssertionError("the property masks secrets with a call that blocks the loop")

    from airflow.sdk import Connection

    monkeypatch.setattr(Connection, "extra_dejson", property(blocking))
    _, credentials = await made.atarget()
    assert credentials.header_name == "X-Ray-Authorization"


def test_a_good_connection_says_which_ray_answers_where(
    monkeypatch: pytest.MonkeyPatch, server: FakeJobsServer
) -> None:
    is_good, message = hook(monkeypatch, host=server.url, password=TOKEN).test_connection()
    assert is_good
    assert message == f"Ray 2.60.0 answers at {server.url} (session session_fake_1)"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (None, "token"),
        (Fault("answer", status=503), "503"),
        (Fault("answer", status=200), "Ray"),
        (Fault("answer", status=403, body=f"no such token: {TOKEN}-wrong"), "403"),
        (Fault("refuse"), "no connection"),
    ],
)
def test_a_bad_connection_says_why_and_never_the_token(
    monkeypatch: pytest.MonkeyPatch, server: FakeJobsServer, fault: Fault | None, words: str
) -> None:
    """The message goes to the browser as it is."""
    if fault is not None:
        server.add(fault)
    is_good, message = hook(monkeypatch, host=server.url, password=f"{TOKEN}-wrong").test_connection()
    assert not is_good
    assert words.lower() in message.lower()
    assert TOKEN not in message


def test_a_wrong_connection_is_a_message_too(monkeypatch: pytest.MonkeyPatch) -> None:
    is_good, message = hook(monkeypatch, host="http://user:pw@h").test_connection()
    assert not is_good
    assert "user information" in message
    assert "pw@" not in message


async def test_a_missing_connection_is_a_wrong_configuration_that_is_named() -> None:
    """Airflow's own error carries no failure kind: a retry policy would try for hours."""
    missing = RayHook("ray_gone")
    with pytest.raises(InvalidConfig, match="'ray_gone'") as caught:
        missing.target()
    assert "type ray" in caught.value.change
    with pytest.raises(InvalidConfig, match="'ray_gone'"):
        await missing.atarget()
    is_good, message = missing.test_connection()
    assert not is_good
    assert "'ray_gone'" in message
