"""Connections of type `ray`, as people fill in the form, as URIs give them, and as they look when pasted wrongly."""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import Connection
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.client.address import ClusterAddress
from airflow_provider.core.errors import InvalidConfig
from airflow_provider.hooks.ray import read_connection
from tests.support.damage import JUNK, SECRET, damaged_json, examples, only_typed_errors

EXTRAS: list[dict[str, Any]] = [
    {"verify": True, "header_name": "X-Ray-Authorization", "headers": '{"X-Team": "a"}', "ca_file": None},
    {"verify": "false", "headers": {"X-Team": SECRET, "X-Other": "b"}, "ca_file": ""},
    {"ca_file": "/nowhere/ca.pem", SECRET: SECRET, "header_name": SECRET, "verify": SECRET},
]
TEXTS = st.none() | st.text(st.characters(codec=None), max_size=30) | st.sampled_from([SECRET, "a" * 5_000, "\0"])
HOSTS = TEXTS | st.sampled_from(
    [
        "h",
        "https://gw.example/ray/a",
        "::1",
        "[::1",
        "[v1.a]:8265",
        "h:99999",
        f"http://u:{SECRET}@h",
        "h\u2100",
        "\uff0e",
        "h:\uff11",
    ]
)


@given(damaged_json(EXTRAS), TEXTS)
@examples(250)
def test_any_extra_gives_credentials_or_names_the_field(extra: bytes, password: str | None) -> None:
    text = extra.decode("utf-8", "surrogateescape")
    connection = Connection(conn_id="c", conn_type="ray", host="h", password=password, extra=text)
    try:
        airflows: Any = json.loads(text)
    except (ValueError, RecursionError):
        airflows = {}
    with only_typed_errors() as caught:
        _, credentials = read_connection(connection, extra=airflows)
        assert all(value.isascii() for value in credentials.headers().values())
        assert SECRET not in repr(credentials)
    assert all(isinstance(error, InvalidConfig) for error in caught)


@given(HOSTS, TEXTS, st.none() | st.integers(-1, 70_000))
@examples(250)
def test_any_address_is_one_that_reads_back_or_is_refused(
    host: str | None, schema: str | None, port: int | None
) -> None:
    with only_typed_errors():
        address = ClusterAddress.parse(host, schema=schema, port=port)
        assert ClusterAddress.parse(str(address)) == address
        address.http("/api/version").encode()


@given(JUNK)
@examples(80)
def test_what_airflow_makes_of_an_extra_may_be_anything(extra: Any) -> None:
    connection = Connection(conn_id="c", conn_type="ray", host="h")
    with only_typed_errors():
        read_connection(connection, extra=extra)
