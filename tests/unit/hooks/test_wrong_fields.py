"""A connection filled in wrongly: the message names the field, never what stands in it, and nothing but InvalidConfig comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.hooks.ray import RayHook

PASTED = "gAAAAB-s3cr3t_t0ken.0123456789"
DEEP = "[" * 5_000 + "]" * 5_000


def hook(monkeypatch: pytest.MonkeyPatch, *, extra: Any = None, **fields: Any) -> RayHook:
    """With the connection as Airflow's API hands it over: secrets backends have checks of their own."""
    text = extra if isinstance(extra, str) else json.dumps(extra or {})
    connection = Connection(conn_id="ray_test", conn_type="ray", extra=text, **({"host": "h"} | fields))

    async def aget_connection(_: str) -> Connection:
        return connection

    made = RayHook("ray_test")
    monkeypatch.setattr(made, "get_connection", lambda _: connection)
    monkeypatch.setattr(made, "aget_connection", aget_connection)
    return made


def refused(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        hook(monkeypatch, **fields).target()
    return caught.value


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"extra": {"header_name": f"{PASTED} "}}, "header_name"),
        ({"extra": {"header_name": [PASTED]}}, "header_name"),
        ({"extra": {"header_name": PASTED, "headers": {PASTED: "x"}}, "password": "p"}, "header of the connection"),
        ({"extra": {"headers": {f"{PASTED}:": "x"}}}, "headers"),
        ({"extra": {"headers": {"X-Gate": f"{PASTED}\n{PASTED}"}}}, "X-Gate"),
        ({"extra": {"headers": {PASTED: "\u00e9"}}}, "header"),
        ({"extra": {"headers": PASTED}}, "headers"),
        ({"extra": {"verify": PASTED}}, "verify"),
        ({"extra": {"verify": [PASTED]}}, "verify"),
        ({"extra": {"ca_file": PASTED}}, "ca_file"),
        ({"extra": {"ca_file": [PASTED]}}, "ca_file"),
        ({"extra": {PASTED: True}}, "unknown extras"),
        ({"extra": {"token": PASTED}}, "unknown extras"),
        ({"schema": PASTED}, "scheme"),
        ({"host": f"{PASTED}://h"}, "scheme"),
    ],
)
def test_a_token_in_the_wrong_field_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], named: str
) -> None:
    error = refused(monkeypatch, **fields)
    assert named in str(error)
    assert PASTED.lower() not in str(error).lower()
    assert PASTED not in repr(error.__cause__)


def test_a_misspelt_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "header_nmae" in refused(monkeypatch, extra={"header_nmae": "X"}).what


@pytest.mark.parametrize(
    "extra", [DEEP, '{"headers": ' + DEEP + "}", {"headers": DEEP}, {"headers": f'{{"a": {DEEP}}}'}]
)
def test_deep_nesting_in_an_extra_is_a_wrong_configuration(monkeypatch: pytest.MonkeyPatch, extra: Any) -> None:
    assert "extra" in (error := refused(monkeypatch, extra=extra)).what or "headers" in error.what


async def test_the_async_way_checks_before_airflow_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfig, match="nested deeper"):
        await hook(monkeypatch, extra=DEEP).atarget()


@pytest.mark.parametrize("ca_file", ["/" + "a" * 5_000, "a\0b", "/\ud800", "/dev/null", "/tmp"])  # noqa: S108
def test_a_ca_file_that_can_be_no_file_is_refused(monkeypatch: pytest.MonkeyPatch, ca_file: str) -> None:
    """The operating system refuses the question itself for some."""
    assert "ca_file" in refused(monkeypatch, extra={"ca_file": ca_file}).what
