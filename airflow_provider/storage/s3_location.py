"""Where an experiment lies on S3: a bucket and a prefix, read from a URI without decoding anything."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.storage.object_store import check_key

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IP_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket and a prefix without slashes at its ends; an empty prefix is the whole bucket."""

    bucket: str
    prefix: str = ""

    @classmethod
    def parse(cls, uri: str) -> S3Location:
        """Read `s3://bucket`, `s3://bucket/`, `s3://bucket/prefix` or `s3://bucket/prefix/`.

        The prefix is taken literally: `%20`, `+` and `:` stay what they are. Raises InvalidConfig for a query or fragment
        (settings of the endpoint belong in the connection, and a `?` would cut the key off), credentials in the URI,
        an invalid bucket name, `//` and dot segments. The message never repeats what stands before `@` or after `?`.
        """
        scheme, found, rest = uri.partition("://")
        if not found or scheme != "s3":
            raise _refused(scheme + found if found else "it", "does not start with s3://", "write s3://bucket/prefix")
        bucket, _, prefix = rest.partition("/")
        if "@" in bucket:
            raise _refused("s3://...", "carries credentials", "put credentials into the Airflow connection")
        shown = re.split(r"[?#]", uri, maxsplit=1)[0]
        if shown != uri:
            raise _refused(
                shown,
                "has a query or fragment ('?' or '#'), which pyarrow reads as settings and S3 as part of the key",
                "put endpoint, region and path style into the connection; use a prefix without '?' and '#'",
            )
        if not _BUCKET.fullmatch(bucket) or ".." in bucket or _IP_ADDRESS.fullmatch(bucket):
            known = f"has the bucket name {bucket!r}; one has 3 to 63 of a-z, 0-9, '.' and '-'"
            raise _refused(shown, known, "correct the bucket name")
        # Exactly one slash at the end is a way of writing; two would be another key.
        prefix = prefix.removesuffix("/")
        if prefix:
            check_key(prefix)
        return cls(bucket, prefix)

    @property
    def uri(self) -> str:
        """The location as a URI without a trailing slash."""
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    @property
    def root(self) -> str:
        """What every key below this location starts with: the prefix with a slash, so `resnet` never means `resnet-2`."""
        return f"{self.prefix}/" if self.prefix else ""


def _refused(shown: str, why: str, change: str) -> InvalidConfig:
    return InvalidConfig("The S3 URI can't be used", known=f"{shown} {why}", change=change)
