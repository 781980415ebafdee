"""Names derived from the task instance: experiment path (stable over tries) and submission id (one per attempt)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.redaction import redact
from airflow_provider.core.strict_json import storable

if TYPE_CHECKING:
    from airflow_provider.core.record_parts import AttemptRef

MAX_SUBMISSION_ID = 200
"""Ray uses the id in a URL path and in a log file's name."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.]+")
_LEGIBLE = 48
_MAX_PATH = 700
"""Bytes of a storage path, and of an experiment's name: keys of S3 have 1,024, and ours go deeper."""


@dataclass(frozen=True)
class TaskInstanceKey:
    """One task instance over all its tries."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    def __str__(self) -> str:
        """Readable form for messages."""
        index = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}.{self.task_id}{index} of {self.run_id}"

    @property
    def digest(self) -> str:
        """12 hex digits over the exact four parts: `a:b` and `a_b` differ."""
        parts = "\0".join([self.dag_id, self.run_id, self.task_id, str(self.map_index)])
        return hashlib.sha256(parts.encode()).hexdigest()[:12]


def legible(text: str, *, limit: int = _LEGIBLE) -> str:
    """A name reduced to characters that are safe in URLs, keys and file names; never `.` or `..`, never empty."""
    return _UNSAFE.sub("-", text).strip("-.")[:limit].rstrip("-.") or "x"


def experiment_uri(storage_path: str, key: TaskInstanceKey, *, experiment_name: str | None = None) -> str:
    """URI of the experiment: unique per DAG, run, task and map index, or the name the author chose.

    Raises InvalidConfig for a storage path or name that can't be a folder.
    """
    root = checked_storage_path(storage_path).rstrip("/")
    if experiment_name is not None:
        parts = experiment_name.split("/")
        is_odd = any(c in experiment_name for c in "\0?#") or not _fits(f"{root}/{experiment_name}")
        if is_odd or any(p in ("", ".", "..") for p in parts):
            raise InvalidConfig(
                f"experiment_name {experiment_name[:80]!r} can't be a folder",
                known=f"the whole path may have {_MAX_PATH} bytes",
                change="use a short relative path without empty, '.' or '..' parts, '?' or '#'",
            )
        return f"{root}/{experiment_name}"
    index = f"-{key.map_index}" if key.map_index >= 0 else ""
    return f"{root}/{legible(key.dag_id)}/{legible(key.task_id)}{index}/{legible(key.run_id, limit=64)}-{key.digest}"


def checked_storage_path(storage_path: str) -> str:
    """The storage path without a trailing slash. Raises InvalidConfig for forms that mean different things to clients."""
    if not _fits(storage_path):
        raise InvalidConfig(
            f"storage_path {redact(storage_path)[:120]!r} can't be a path",
            known=f"a path has at most {_MAX_PATH} bytes, no NUL and no half of a character",
            change="write a shorter one",
        )
    if storage_path.startswith("s3://"):
        bucket, _, prefix = storage_path[5:].partition("/")
        prefix = prefix.rstrip("/")
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
            raise InvalidConfig(
                f"storage_path {redact(storage_path)[:120]!r} names no valid bucket",
                known="a bucket has 3 to 63 lower-case letters, digits, dots and hyphens",
                change="write s3://bucket/prefix, and give the endpoint in the AWS connection or in StorageConfig",
            )
        if "//" in f"/{prefix}" or any(p in (".", "..") for p in prefix.split("/")) or "?" in prefix or "#" in prefix:
            raise InvalidConfig(
                f"storage_path {redact(storage_path)[:120]!r} has an empty, '.' or '..' part, '?' or '#'",
                known="clients disagree about which key that is",
                change="write s3://bucket/prefix; endpoint options belong into StorageConfig",
            )
        return f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
    if storage_path.startswith("/"):
        return storage_path.rstrip("/") or "/"
    raise InvalidConfig(
        f"storage_path {redact(storage_path)[:120]!r} is neither s3://bucket/prefix nor an absolute path",
        change="use S3, or a directory that Airflow and all nodes of the cluster share",
    )


def _fits(path: str) -> bool:
    return path == storable(path) and len(path.encode()) <= _MAX_PATH


def submission_id(uri: str, key: TaskInstanceKey, ref: AttemptRef) -> str:
    """Deterministic id of an attempt's Ray job: `[A-Za-z0-9_-]`, at most 200 characters."""
    index = f"-{key.map_index}" if key.map_index >= 0 else ""
    digest = hashlib.sha256(f"{uri}\0{key.digest}".encode()).hexdigest()[:12]
    name = f"af-{legible(key.dag_id)}-{legible(key.task_id)}{index}-{legible(key.run_id)}".replace(".", "-")
    return f"{name[:150]}-{digest}-g{ref.generation}-a{ref.attempt}"
