"""Every way a connection can spell an address leads to one place, and nothing in the environment leads elsewhere (C82, C90)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.client import ClusterAddress
from airflow_provider.core.errors import InvalidConfig


@pytest.mark.scenario("C82", "C90")
@pytest.mark.parametrize(
    ("host", "parts", "base"),
    [
        ("https://gw.example/ray/team-a", {}, "https://gw.example/ray/team-a"),
        ("https://gw.example/ray/team-a/", {}, "https://gw.example/ray/team-a"),
        ("gw.example", {"schema": "https"}, "https://gw.example"),
        ("gw.example", {"schema": "https", "path": "/ray/"}, "https://gw.example/ray"),
        ("gw.example/ray/team-a", {}, "http://gw.example/ray/team-a"),
        ("10.0.0.5:8265", {}, "http://10.0.0.5:8265"),
        ("10.0.0.5", {}, "http://10.0.0.5:8265"),
        ("head", {"port": 9000, "schema": "http"}, "http://head:9000"),
        ("http://head:9001", {"port": 9000, "schema": "https"}, "http://head:9001"),
        ("fd00::10", {"port": 8265}, "http://[fd00::10]:8265"),
        ("fd00::10", {}, "http://[fd00::10]:8265"),
        ("[fd00::10]", {"port": 8265}, "http://[fd00::10]:8265"),
        ("http://[fd00::10]:8265", {}, "http://[fd00::10]:8265"),
        ("HTTP://Head.example:80/", {}, "http://head.example:80"),
    ],
)
def test_forms_of_an_address(host: str, parts: dict[str, object], base: str) -> None:
    """Prefix and port are kept, the default port goes to bare hosts only, brackets stand once."""
    address = ClusterAddress.parse(host, **parts)  # type: ignore[arg-type]
    assert str(address) == base
    assert ClusterAddress.parse(str(address)) == address, "a stored URL must parse back"
    assert address.http("/api/version") == f"{base}/api/version"
    assert address.ws("/x") == f"{base.replace('http', 'ws', 1)}/x"


@pytest.mark.scenario("C82")
@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "   ",
        "ray://10.0.0.5:10001",
        "ftp://x",
        "http://",
        "http://user:hunter2@head:8265",
        "user:hunter2@head",
        "http://head?x=1",
        "http://head/#a",
        "a..b",
        f"{'a' * 64}.example",
        "127.1",
        "1.2.3.4.5",
        "127.0.0.256",
        "127.0.0.1.",
        "2130706433",
        "head:0",
        "head:70000",
        "head:",
        "head:abc",
        "http://[fd00::10:8265",
        "a b",
        "head/../x",
        "http://head\r\nX: y",
    ],
)
def test_bad_forms_are_refused_and_the_right_one_is_named(host: str | None) -> None:
    """The message shows the expected form and never repeats a password."""
    with pytest.raises(InvalidConfig, match=r"http\(s\)://host") as error:
        ClusterAddress.parse(host)
    assert "hunter2" not in str(error.value)


def test_environment_does_not_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own client lets RAY_ADDRESS win over its argument; ours must not."""
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:1")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://elsewhere:2")
    assert str(ClusterAddress.parse("head")) == "http://head:8265"


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """No input leads to another exception, and what parses is stable."""
    try:
        address = ClusterAddress.parse(text)
    except InvalidConfig:
        return
    assert ClusterAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("http://127.8.9.1:8265", True),
        ("http://localhost:8265", True),
        ("LOCALHOST", True),
        ("ray.localhost", True),
        ("http://[::1]:8265", True),
        ("http://localhost.example", False),
        ("http://10.0.0.5", False),
        ("http://127.0.0.1.example", False),
        ("http://0.0.0.0:8265", False),
    ],
)
def test_what_never_leaves_this_machine(host: str, is_loopback: bool) -> None:
    assert ClusterAddress.parse(host).is_loopback is is_loopback
