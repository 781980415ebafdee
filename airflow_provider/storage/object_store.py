"""The object-store protocol: a handful of verbs, rooted at one URI, with keys relative to it.

Keys are `str`, never `Path`: a path would fold `a//b` and turn `s3://` into `s3:/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from airflow_provider.core.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from mypy_boto3_s3 import S3Client

MAX_KEY_BYTES = 1024
"""S3's limit for a whole key, in UTF-8 bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """What a listing or a HEAD tells about an object. `key` is relative to the store's root, `size` in bytes."""

    key: str
    size: int
    etag: str
    """Opaque and without quotes; compare it only with etags of the same store."""
    modified_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredObject:
    """An object with its body."""

    key: str
    body: bytes
    etag: str
    modified_at: datetime
    """By the store's clock; S3 gives whole seconds."""
    read_at: datetime
    """The store's clock when it answered, so that an age needs no clock of ours."""

    @property
    def age_s(self) -> float:
        """Seconds between the last write and this read, both by the store's clock; never negative."""
        return max(0.0, (self.read_at - self.modified_at).total_seconds())


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderListing:
    """One level of the tree: objects directly there, and the folders below it with their trailing slash."""

    objects: tuple[ObjectInfo, ...]
    folders: tuple[str, ...]


@runtime_checkable
class ObjectStore(Protocol):
    """Objects below one root. Runtime-checkable, so that a renamed verb fails in a test and not in a retry.

    Every verb may raise StoreUnreachable, StoreThrottled, StoreCredentialsExpired, StorePermissionDenied, BucketNotFound
    or InvalidConfig. "Not there" is only ever said where the store itself said so. Bodies given to the conditional verbs
    must be unique to their writer (a random id or a time stamp inside): after a lost reply an equal body means "ours".
    """

    @property
    def uri(self) -> str:
        """The root, without a trailing slash."""

    def read(self, key: str) -> StoredObject | None:
        """The object, or None when the store says that it isn't there."""

    def head(self, key: str) -> ObjectInfo | None:
        """The object's size, etag and time, or None when the store says that it isn't there."""

    def create_if_absent(self, key: str, body: bytes) -> bool:
        """Create the object: True when this call did, False when it exists. Atomic against all other writers.

        A time-out or 5xx after sending is settled by reading back. StoreUnreachable with the fact `may_be_written=True`
        means that even this failed: the object may exist with our body.
        """

    def write(self, key: str, body: bytes) -> str:
        """Write without a condition; the answer is the new etag."""

    def replace_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """Replace the object if it still has `etag`; the answer is the new etag. Raises WriteConflict otherwise."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix` (a string: `a/b` also finds `a/bc`), one call per 1,000.

        Folder markers (0 bytes, name ends in a slash) are left out. The order is the store's own: don't build on it.
        """

    def list_folder(self, prefix: str, *, start_after: str = "") -> FolderListing:
        """One level: what starts with `prefix` up to the next slash, one call per 1,000 entries.

        `start_after` skips names up to and including `prefix + start_after`, in byte order. A listed folder may be empty.
        """

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """The folders of `list_folder(prefix)`, sorted: keys relative to the root with a trailing slash."""

    def copy(self, source: str, target: str) -> bool:
        """Copy inside the store, replacing the target. False only when the store says that the source isn't there."""

    def delete(self, key: str) -> None:
        """Delete the object; one that isn't there is fine."""


def check_key(key: str) -> str:
    """The key itself, if every store keeps it byte for byte; InvalidConfig names what is wrong with it otherwise."""
    _check_text(key)
    segments = key.split("/")
    if not key or "" in segments:
        raise _refused(key, "has an empty part (a slash at an end, or two together)")
    _check_segments(key, segments)
    return key


def check_prefix(prefix: str) -> str:
    """Like `check_key` for the start of keys: it may be empty or end with a slash."""
    _check_text(prefix)
    segments = prefix.split("/")
    if "" in segments[:-1]:
        raise _refused(prefix, "has an empty part (a slash at the start, or two together)")
    _check_segments(prefix, segments)
    return prefix


def _check_text(key: str) -> None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise _refused(key, "is not valid Unicode (a lone surrogate)") from None
    if size > MAX_KEY_BYTES:
        raise _refused(key[:80] + "...", f"has {size} bytes, more than {MAX_KEY_BYTES}")
    # Some servers turn a backslash into a slash; control characters don't survive the XML of every listing.
    for character in key:
        if character == "\\" or character < " " or character == "\x7f":
            raise _refused(key, f"holds the character {character!r}")


def _check_segments(key: str, segments: list[str]) -> None:
    # Proxies and some servers resolve dot segments, which would address another object.
    for segment in segments:
        if segment in {".", ".."}:
            raise _refused(key, f"has the part {segment!r}")


def _refused(key: str, why: str) -> InvalidConfig:
    return InvalidConfig(
        f"The object key {key!r} can't be used",
        known=f"it {why}, which not every store keeps as it is",
        change="choose another storage path, experiment name or run id",
        key=key,
    )


def open_object_store(
    uri: str, *, client_factory: Callable[[], S3Client] | None = None, anchor: str | None = None
) -> ObjectStore:
    """The store at `uri`: `s3://bucket[/prefix]`, `file:///folder` or an absolute path.

    `client_factory` makes an S3 client with credentials that are valid now; it is called again when they expire.
    `anchor` is the folder of a local store that has to exist already (default: the root itself), so that a share that
    isn't mounted is an error and not an empty experiment. Raises InvalidConfig for another scheme or a missing factory.
    """
    if uri.startswith("s3://"):
        from airflow_provider.storage.s3 import S3ObjectStore  # here: parsing a Dag must not load botocore

        if client_factory is None:
            raise InvalidConfig("An S3 store needs a client factory", change="pass client_factory=", scheme="s3")
        return S3ObjectStore(uri, client_factory=client_factory)
    from airflow_provider.storage.local import LocalObjectStore  # here: flock exists on POSIX only

    return LocalObjectStore(uri, anchor=anchor)
