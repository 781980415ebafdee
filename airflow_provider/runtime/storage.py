"""The experiment's bucket as the driver sees it: pyarrow, the cluster's own identity, keys relative to the experiment."""

from __future__ import annotations

import os
import posixpath
import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from airflow_provider.core.errors import (
    BucketNotFound,
    InvalidConfig,
    RayTrainError,
    StoreCredentialsExpired,
    StorePermissionDenied,
    StoreThrottled,
    StoreUnreachable,
)
from airflow_provider.core.record_parts import CheckpointFile
from airflow_provider.core.records import Record
from airflow_provider.core.spec import StorageConfig

STORE_PATIENCE_S = 120.0
"""How long a running driver waits for a store that is away."""
R = TypeVar("R", bound=Record)
T = TypeVar("T")

_DENIED = re.compile(
    r"ACCESS_DENIED|FORBIDDEN|HTTP status 40[13]\b|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|MISSING_AUTHENTICATION"
    r"|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT|AccessDenied|Permission denied",
    re.IGNORECASE,
)
_EXPIRED = re.compile(r"EXPIRED_TOKEN|ExpiredToken|REQUEST_EXPIRED|token.{0,20}expired", re.IGNORECASE)
_THROTTLED = re.compile(
    r"SLOW_DOWN|SlowDown|THROTTLING|REQUEST_LIMIT|HTTP status (429|503)\b|SERVICE_UNAVAILABLE", re.IGNORECASE
)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|NoSuchBucket|Bucket '.*' not found", re.IGNORECASE)


def split_uri(uri: str) -> tuple[str, str]:
    """`("s3", "bucket/prefix")` or `("file", "/absolute/path")`. Nothing is decoded: keys hold odd characters."""
    if uri.startswith("s3://"):
        path = uri.removeprefix("s3://").rstrip("/")
        if not path or path.startswith("/") or "@" in path.partition("/")[0]:
            raise InvalidConfig("The experiment URI names no bucket", change="use s3://bucket/prefix")
        return "s3", path
    path = uri.removeprefix("file://")
    if not path.startswith("/"):
        raise InvalidConfig(
            f"The experiment URI {uri!r} is neither s3:// nor an absolute path", change="use s3://bucket/prefix"
        )
    return "file", path.rstrip("/") or "/"


# pyarrow has it since 16; the constructor refuses what it does not know.
_KNOWS_DELAYED_OPEN = "allow_delayed_open" in (pafs.S3FileSystem.__doc__ or "")


def s3_options(config: StorageConfig, *, bucket: str) -> dict[str, Any]:
    """Arguments for pyarrow's S3FileSystem. No keys among them: each process finds the cluster's own identity."""
    endpoint = config.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = config.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    # Delayed open makes a small object one PUT instead of the three requests of a multipart upload.
    options: dict[str, Any] = {"allow_delayed_open": True} if _KNOWS_DELAYED_OPEN else {}
    if config.force_virtual_addressing:
        options["force_virtual_addressing"] = True
    if endpoint:
        parts = urlsplit(endpoint)
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    if not region and not endpoint:
        region = _region_of(bucket)
    if region:
        options["region"] = region
    return options


def _region_of(bucket: str) -> str | None:
    try:
        region: str = pafs.resolve_s3_region(bucket)
    except (OSError, pa.ArrowInvalid):
        # No answer here means only that the SDK's own default is used; the first read says what is wrong.
        return None
    return region


def open_store(uri: str, config: StorageConfig) -> ExperimentStore:
    """The record store of an experiment."""
    scheme, root = split_uri(uri)
    if scheme == "file":
        return ExperimentStore(pafs.LocalFileSystem(), root)
    return ExperimentStore(pafs.S3FileSystem(**s3_options(config, bucket=root.partition("/")[0])), root)


class ExperimentStore:
    """Reads and writes below the experiment. None and empty lists mean "surely not there"; all else is a typed error."""

    def __init__(self, filesystem: pafs.FileSystem, root: str) -> None:
        """Keys are relative to `root`, a path on `filesystem`."""
        self.filesystem, self.root = filesystem, root
        self._is_local = isinstance(filesystem, pafs.LocalFileSystem)

    def path(self, key: str) -> str:
        """A key as a path on the filesystem."""
        return posixpath.join(self.root, key) if key else self.root

    def check_bucket(self) -> None:
        """Raise BucketNotFound where reads would only say "not there"."""
        bucket = self.root if self._is_local else self.root.partition("/")[0]
        if self._is_local:
            self._do("create", "", lambda: os.makedirs(bucket, exist_ok=True))
            return
        info = self._do("HeadBucket", "", lambda: self.filesystem.get_file_info(bucket))
        if info.type == pafs.FileType.NotFound:
            raise BucketNotFound(f"Bucket {bucket} does not exist", change="create it or correct storage_path")

    def read(self, key: str) -> bytes | None:
        """An object's bytes, or None if it is not there."""

        def get() -> bytes | None:
            try:
                with self.filesystem.open_input_stream(self.path(key)) as stream:
                    body: bytes = stream.read()
                    return body
            except FileNotFoundError:
                return None

        return self._do("GetObject", key, get)

    def exists(self, key: str) -> bool:
        """Whether an object is there: one HEAD (pyarrow's `get_file_info` would list as well)."""

        def head() -> bool:
            try:
                self.filesystem.open_input_file(self.path(key)).close()
            except FileNotFoundError:
                return False
            return True

        return self._do("HeadObject", key, head)

    def write(self, key: str, body: bytes) -> None:
        """Write an object whole: a reader sees the old or the new one, never half."""
        path = self.path(key)

        def put() -> None:
            if not self._is_local:
                with self.filesystem.open_output_stream(path) as stream:
                    stream.write(body)
                return
            os.makedirs(os.path.dirname(path), exist_ok=True)
            part = f"{path}.{uuid.uuid4().hex}.part"
            with open(part, "wb") as stream:
                stream.write(body)
            os.replace(part, path)

        self._do("PutObject", key, put)

    def delete(self, key: str) -> None:
        """Delete one object."""
        self._do("DeleteObject", key, lambda: self.filesystem.delete_file(self.path(key)))

    def read_record(self, cls: type[R], key: str) -> R | None:
        """A record, or None if it is not there. Raises RecordUnreadable when it is torn or newer than this release."""
        body = self.read(key)
        return None if body is None else cls.parse(body, key=key)

    def write_record(self, key: str, record: Record) -> None:
        """Write a record."""
        self.write(key, record.body())

    def folders(self, folder: str) -> list[str]:
        """Names of the folders directly below, sorted."""
        return sorted(i.base_name for i in self._list(folder, is_recursive=False) if i.type == pafs.FileType.Directory)

    def names(self, folder: str) -> list[str]:
        """Names of the objects directly below, sorted."""
        return sorted(i.base_name for i in self._list(folder, is_recursive=False) if i.is_file and not _is_part(i.path))

    def files(self, folder: str) -> list[CheckpointFile]:
        """All objects below with their sizes, without etags (those cost one HEAD each: `with_etags`)."""
        base = self.path(folder) + "/"
        found = (i for i in self._list(folder, is_recursive=True) if i.is_file and not _is_part(i.path))
        return sorted((CheckpointFile(key=i.path.removeprefix(base), size=i.size) for i in found), key=lambda f: f.key)

    def with_etags(self, folder: str, files: Sequence[CheckpointFile], *, limit: int) -> tuple[CheckpointFile, ...]:
        """The same files, the first `limit` with their etags. A local file has none."""
        if self._is_local:
            return tuple(files)
        tagged = [replace(f, etag=self._etag(posixpath.join(folder, f.key))) for f in files[:limit]]
        return (*tagged, *files[limit:])

    def copy_folder(self, source: str, target: str) -> None:
        """Copy all objects below `source`; the store copies them itself where it can."""
        for file in self.files(source):
            self._do("CopyObject", source, partial(self._copy, f"{source}/{file.key}", f"{target}/{file.key}"))

    def _copy(self, source: str, target: str) -> None:
        if self._is_local:
            os.makedirs(os.path.dirname(self.path(target)), exist_ok=True)
        self.filesystem.copy_file(self.path(source), self.path(target))

    def _etag(self, key: str) -> str:
        def head() -> str:
            try:
                with self.filesystem.open_input_file(self.path(key)) as file:
                    metadata = file.metadata() or {}
            except FileNotFoundError:
                return ""
            value = metadata.get(b"ETag", metadata.get("ETag", b""))
            return (value.decode() if isinstance(value, bytes) else str(value)).strip('"')

        return self._do("HeadObject", key, head)

    def _list(self, folder: str, *, is_recursive: bool) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(self.path(folder), recursive=is_recursive, allow_not_found=True)
        return self._do("ListObjects", folder, lambda: list(self.filesystem.get_file_info(selector)))

    def _do(self, action: str, key: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except (OSError, pa.ArrowException) as error:
            raise typed_error(error, action=action, key=key or self.root) from error


def _is_part(path: str) -> bool:
    return path.endswith(".part")


def typed_error(error: BaseException, *, action: str, key: str) -> RayTrainError:
    """An error of pyarrow as ours; its message is the only thing that tells the causes apart."""
    text = str(error)
    known = text[:500]
    if _EXPIRED.search(text):
        return StoreCredentialsExpired(f"Credentials expired in {action} of {key}", known=known)
    if _NO_BUCKET.search(text):
        return BucketNotFound(
            f"The bucket of {key} does not exist", known=known, change="create it or correct storage_path"
        )
    if _DENIED.search(text) or isinstance(error, PermissionError):
        return StorePermissionDenied(
            f"The object store refused {action} of {key}",
            known=known,
            change="give the cluster's identity GetObject, PutObject, DeleteObject and ListBucket on the experiment path",
        )
    if _THROTTLED.search(text):
        return StoreThrottled(f"The object store asked to slow down in {action} of {key}", known=known)
    return StoreUnreachable(f"The object store did not answer {action} of {key}", known=known)


def patiently(call: Callable[[], T], *, for_s: float, pause_s: float = 2.0) -> T:
    """Repeat a call while the store is away or slow, at most `for_s` seconds; other errors are raised at once."""
    end = time.monotonic() + for_s
    while True:
        try:
            return call()
        except StoreUnreachable:
            if time.monotonic() + pause_s > end:
                raise
            time.sleep(pause_s)
