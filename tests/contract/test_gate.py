"""The gate before the S3 server: bytes and signatures pass unchanged, requests are held and cut as told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs
import pytest
from botocore.exceptions import BotoCoreError, EndpointConnectionError

from tests.stack.gate import Gate, Hold, Seen, wait_for_hold
from tests.stack.s3 import S3Server

pytestmark = [pytest.mark.s3, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("gated")) as server:
        yield server


@pytest.fixture
def gate(server: S3Server) -> Iterator[Gate]:
    with Gate(server.port) as gate:
        direct = server.endpoint_url
        server.endpoint_url = gate.url
        yield gate
        server.endpoint_url = direct


def put(server: S3Server, key: str, body: bytes = b"1") -> None:
    server.client(max_attempts=1).put_object(Bucket="models", Key=key, Body=body)


def test_large_and_small_objects_pass_both_ways(server: S3Server, gate: Gate, tmp_path: Path) -> None:
    """With boto3's checksums in trailers and pyarrow's uploads in parts."""
    body = bytes(range(256)) * 50_000
    key = "team a/größe+%25.bin"
    put(server, key, body)
    host = gate.url.removeprefix("http://")
    filesystem = pyarrow.fs.S3FileSystem(
        access_key=server.access_key, secret_key=server.secret_key, endpoint_override=host, scheme="http"
    )
    with filesystem.open_input_stream(f"models/{key}") as stream:
        assert stream.read() == body
    with filesystem.open_output_stream("models/parts.bin") as stream:
        stream.write(body)
    assert server.client().get_object(Bucket="models", Key="parts.bin")["Body"].read() == body


def test_a_request_is_held_before_the_server_and_before_its_answer(server: S3Server, gate: Gate) -> None:
    client = server.client()

    def exists(key: str) -> bool:
        found = client.list_objects_v2(Bucket="models", Prefix=key)
        return found["KeyCount"] == 1

    seen: dict[bool, bool] = {}
    for is_before in (True, False):
        key = f"held-{is_before}"

        def look(_: Seen, key: str = key, is_before: bool = is_before) -> None:
            seen[is_before] = exists(key)

        hold = gate.hold(Hold(lambda s, key=key: s.method == "PUT" and key in s.target, look, is_before=is_before))  # type: ignore[misc]  # a default binds the loop's value
        put(server, key)
        wait_for_hold(hold, timeout_s=10)
        assert exists(key)
    assert seen == {True: False, False: True}


def test_what_an_action_raises_reaches_the_test(server: S3Server, gate: Gate) -> None:
    def fails(_: Seen) -> None:
        raise LookupError("nobody to kill")

    hold = gate.hold(Hold(lambda s: s.method == "PUT", fails))
    put(server, "x")
    with pytest.raises(LookupError, match="nobody to kill"):
        wait_for_hold(hold, timeout_s=10)


def test_answers_are_told_in_order_with_their_status(server: S3Server, gate: Gate) -> None:
    told: list[tuple[str, int]] = []
    gate.on_answer = lambda seen: told.append((seen.method, seen.status))
    put(server, "told")
    client = server.client(max_attempts=1)
    with pytest.raises(client.exceptions.ClientError):
        client.head_object(Bucket="models", Key="not there")
    assert told == [("PUT", 200), ("HEAD", 404)]


def test_a_cut_breaks_what_runs_and_what_comes_until_it_is_opened(server: S3Server, gate: Gate) -> None:
    held = threading.Event()
    hold = gate.hold(Hold(lambda s: s.method == "PUT", lambda _: (gate.cut(), held.set())[1]))
    with pytest.raises(BotoCoreError):
        put(server, "cut")
    wait_for_hold(hold, timeout_s=10)
    with pytest.raises(BotoCoreError):
        put(server, "still cut")
    gate.release_all()
    put(server, "open")


def test_a_refusal_closes_the_port_until_it_is_opened(server: S3Server, gate: Gate) -> None:
    put(server, "open")
    gate.refuse()
    with pytest.raises(EndpointConnectionError):
        put(server, "refused")
    gate.open()
    put(server, "open again")


def test_a_slow_network_delays_each_request_and_loses_none(server: S3Server, gate: Gate) -> None:
    gate.delay_s = 0.3
    began = time.monotonic()
    put(server, "slow")
    assert time.monotonic() - began >= 0.3
    assert gate.num_delayed >= 1
    gate.open()
    assert gate.delay_s == 0.0
