"""Secrets stay out of everything that is printed, and TLS fails closed (C84, C85, G11)."""

from __future__ import annotations

import copy
import ssl
import warnings
from pathlib import Path

import pytest

from airflow_provider.client import ClusterCredentials, InsecureDashboardWarning
from airflow_provider.core.errors import InvalidConfig

TOKEN = "s3cr3t-t0ken"


def test_token_is_in_the_header_and_nowhere_else() -> None:
    """`repr` ends up in logs and tracebacks."""
    credentials = ClusterCredentials(token=TOKEN, extra_headers={"X-Gate": "gate-s3cr3t"})
    assert credentials.headers() == {"X-Gate": "gate-s3cr3t", "Authorization": f"Bearer {TOKEN}"}
    for text in (repr(credentials), str(credentials), repr(copy.deepcopy(credentials)), repr(vars(credentials))):
        assert TOKEN not in text
        assert "gate-s3cr3t" not in text
    assert credentials.redact(f"you sent Bearer {TOKEN} and gate-s3cr3t") == "you sent *** and ***"


def test_header_name_can_be_the_one_that_gateways_leave_alone() -> None:
    """Ray reads X-Ray-Authorization if Authorization is absent."""
    credentials = ClusterCredentials(token=TOKEN, header_name="X-Ray-Authorization")
    assert credentials.headers() == {"X-Ray-Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"header_name": "bad name"},
        {"header_name": "Host"},
        {"extra_headers": {"authorization": "Basic x"}},
        {"extra_headers": {"X": "a\r\nY: b"}},
    ],
)
def test_bad_headers_are_refused(arguments: dict[str, object]) -> None:
    """A header that can't be sent is a configuration error, found before anything is sent."""
    with pytest.raises(InvalidConfig) as error:
        ClusterCredentials(token=TOKEN, **arguments)  # type: ignore[arg-type]
    assert TOKEN not in str(error.value)


@pytest.mark.scenario("C84")
def test_missing_ca_file_is_named() -> None:
    """Unset means checked; a wrong file must not mean unchecked."""
    with pytest.raises(InvalidConfig, match=r"/nowhere/ca\.pem"):
        ClusterCredentials(verify="/nowhere/ca.pem")


def test_ca_file_without_certificate_is_named(tmp_path: Path) -> None:
    """An empty file would otherwise fail at the first request with an OpenSSL code."""
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(InvalidConfig, match=r"ca\.pem"):
        ClusterCredentials(verify=str(file)).ssl_context()


def test_no_verification_warns() -> None:
    """It is allowed, but not quietly."""
    with pytest.warns(InsecureDashboardWarning):
        context = ClusterCredentials(verify=False).ssl_context()
    assert context.verify_mode == ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ClusterCredentials().ssl_context().verify_mode == ssl.CERT_REQUIRED
