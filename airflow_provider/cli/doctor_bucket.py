"""Doctor's look at the bucket from Airflow's side: each verb that a try, a wait or `gc` needs, on one small object."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_provider.cli import wording
from airflow_provider.cli.airflow_side import UNREADABLE, check_connection
from airflow_provider.cli.errors import NotFound
from airflow_provider.cli.findings import Finding, checked, of_error, ok, problem, skipped, warning
from airflow_provider.cli.target import DEFAULT_AWS_CONN_ID, open_folder
from airflow_provider.core.errors import RayTrainError, StorePermissionDenied, WriteConflict
from airflow_provider.core.identity import checked_storage_path

if TYPE_CHECKING:
    from airflow_provider.storage.object_store import ObjectStore

PROBE = ".ray-train-doctor"
_IGNORED = "two tries at the same moment could both claim the experiment: use a store with conditional writes"
_WRONG_ETAG = "00000000000000000000000000000000"


def check_bucket(storage_path: str | None, *, aws_conn_id: str | None, is_read_only: bool) -> Iterator[Finding]:
    """The connection, then the verbs."""
    yield _connection(aws_conn_id)
    if storage_path is None:
        yield skipped("bucket", "the bucket was not looked at", change="name it: --storage-path s3://bucket/prefix")
        return
    try:
        root = checked_storage_path(storage_path.removeprefix("file://"))
        store = open_folder(root, aws_conn_id=aws_conn_id)
        found = len(store.list_folders(""))
    except RayTrainError as error:
        yield of_error("bucket-list", error)
        return
    yield ok("bucket-list", f"list (s3:ListBucket): {wording.count(found, 'folder')} in the storage path")
    if is_read_only:
        yield skipped("bucket-write", "nothing was written to the bucket", change="run it without --read-only")
        return
    yield from _Probe(store).look()


def _connection(aws_conn_id: str | None) -> Finding:
    def look() -> Finding:
        if aws_conn_id is None:
            return ok("aws-connection", "no AWS connection: boto3's own chain (environment, files, role)")
        try:
            check_connection(aws_conn_id, conn_type="aws")
        except NotFound as error:
            if aws_conn_id != DEFAULT_AWS_CONN_ID:
                raise
            if UNREADABLE in error.known:
                what = f"connection {aws_conn_id} could not be read: boto3's own chain is taken, as if there were none"
                return warning("aws-connection", what, known=error.known, change="correct it, or what keeps it")
            return ok("aws-connection", f"no connection {aws_conn_id}: boto3's own chain (environment, files, role)")
        return ok("aws-connection", f"connection {aws_conn_id} is there")

    return checked("aws-connection", look)


class _Probe:
    """One object of its own, written, read, replaced and deleted. What one verb finds doesn't end the others."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._key = f"{PROBE}-{uuid.uuid4().hex}.json"

    def look(self) -> Iterator[Finding]:
        """All verbs in their order; without the first write there is nothing to go on with."""
        created = self._checked("bucket-write", self._create)
        yield created
        if not self._is_there:
            return
        yield self._checked("bucket-read", self._read)
        yield self._checked("bucket-create-if-absent", self._create_again)
        yield self._checked("bucket-replace-if-match", self._replace)
        yield self._checked("bucket-delete", self._delete)

    _is_there = False

    def _checked(self, check: str, look: Callable[[], Finding]) -> Finding:
        return checked(check, look)

    def _body(self) -> bytes:
        # Unlike any other: a conditional write whose reply was lost is settled by comparing bodies.
        now = datetime.now(timezone.utc).isoformat()
        return json.dumps({"by": "airflow ray-train doctor", "at": now, "id": uuid.uuid4().hex}).encode()

    def _create(self) -> Finding:
        self._store.create_if_absent(self._key, self._body())
        self._is_there = True
        return ok("bucket-write", "write (s3:PutObject): a small object was created")

    def _read(self) -> Finding:
        if self._store.read(self._key) is None:
            return problem(
                "bucket-read",
                "an object that was just written can't be read",
                known=self._key,
                change="use a store that is consistent after a write, as S3 is",
            )
        return ok("bucket-read", "read (s3:GetObject)")

    def _create_again(self) -> Finding:
        if self._store.create_if_absent(self._key, self._body()):
            return problem("bucket-create-if-absent", "the store ignores If-None-Match", change=_IGNORED)
        return ok("bucket-create-if-absent", "conditional create (If-None-Match): a second one was refused")

    def _replace(self) -> Finding:
        try:
            self._store.replace_if_match(self._key, self._body(), etag=_WRONG_ETAG)
        except WriteConflict:
            pass
        else:
            return problem("bucket-replace-if-match", "the store ignores If-Match", change=_IGNORED)
        stored = self._store.read(self._key)
        if stored is not None:
            self._store.replace_if_match(self._key, self._body(), etag=stored.etag)
        return ok("bucket-replace-if-match", "conditional replace (If-Match): one with a wrong etag was refused")

    def _delete(self) -> Finding:
        try:
            self._store.delete(self._key)
        except StorePermissionDenied as error:
            return warning(
                "bucket-delete",
                "delete (s3:DeleteObject) is not allowed here",
                known=f"{error.known}; the probe {self._key} stays",
                change="nothing, unless you want `gc` to delete: trainings need it on the cluster's side only",
            )
        return ok(
            "bucket-delete", "delete (s3:DeleteObject): the object is gone again; only `gc` needs it on this side"
        )
