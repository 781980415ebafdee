"""URIs are read literally, or refused with the reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.storage.object_store import open_object_store
from airflow_provider.storage.s3_location import S3Location


@pytest.mark.parametrize(
    ("uri", "bucket", "root"),
    [
        ("s3://bkt", "bkt", ""),
        ("s3://bkt/", "bkt", ""),
        ("s3://bkt/exp", "bkt", "exp/"),
        ("s3://bkt/exp/", "bkt", "exp/"),
        ("s3://b.k-t/exp a/run+1", "b.k-t", "exp a/run+1/"),
        ("s3://bkt/100%25/manual__2026-11-29T00:00:00+00:00", "bkt", "100%25/manual__2026-11-29T00:00:00+00:00/"),
        ("s3://bkt/naïve/チェック", "bkt", "naïve/チェック/"),
        ("s3://bkt/a@b", "bkt", "a@b/"),
    ],
)
def test_literal_forms(uri: str, bucket: str, root: str) -> None:
    """C10 and C11: nothing is decoded, and a root always ends at a slash."""
    location = S3Location.parse(uri)
    assert (location.bucket, location.root) == (bucket, root)
    assert S3Location.parse(location.uri) == location


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("s3://bkt//exp", "empty part"),
        ("s3://bkt/exp//", "empty part"),
        ("s3://bkt/a/../b", r"'\.\.'"),
        ("s3://bkt/exp?endpoint_override=x", "connection"),
        ("s3://bkt/exp#1", "fragment"),
        ("s3://Bucket/exp", "bucket name"),
        ("s3://b/exp", "bucket name"),
        ("s3://192.168.0.1/exp", "bucket name"),
        ("s3://a..b/exp", "bucket name"),
        ("s3:///exp", "bucket name"),
        ("s3a://bkt/exp", "s3://"),
        ("bkt/exp", "s3://"),
    ],
)
def test_refused_forms_say_why(uri: str, reason: str) -> None:
    """Found before anything is submitted."""
    with pytest.raises(InvalidConfig, match=reason):
        S3Location.parse(uri)


@pytest.mark.parametrize("uri", ["s3://AKIAKEY:S3CRET@bkt/exp", "s3://bkt/exp?X-Amz-Signature=S3CRET"])
def test_refusal_repeats_no_secret(uri: str) -> None:
    """People paste signed URLs."""
    with pytest.raises(InvalidConfig) as caught:
        S3Location.parse(uri)
    assert "S3CRET" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)


@given(st.text(st.characters(exclude_characters="?#\\", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40))
def test_any_accepted_prefix_is_kept_byte_for_byte(prefix: str) -> None:
    """Whatever is accepted is what is used."""
    try:
        location = S3Location.parse(f"s3://bkt/{prefix}")
    except InvalidConfig:
        parts = prefix.removesuffix("/").split("/")
        assert any(part in {"", ".", ".."} for part in parts)
    else:
        assert location.root in {f"{prefix}/", prefix, ""}
        assert location.root.rstrip("/") == prefix.removesuffix("/")


def test_factory_checks_scheme_and_client() -> None:
    """A wrong scheme is a configuration error; nothing is created on disk for it."""
    for uri in ("gs://bkt/exp", "relative/path", "file:///a%20b", "file:///a?b", "/a/../b"):
        with pytest.raises(InvalidConfig):
            open_object_store(uri)
    with pytest.raises(InvalidConfig, match="client factory"):
        open_object_store("s3://bkt/exp")
