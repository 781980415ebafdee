"""S3 and what speaks its protocol, through boto3."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.config import Config
from botocore.exceptions import ClientError

from airflow_provider.core.errors import (
    RayTrainError,
    StoreCredentialsExpired,
    StorePermissionDenied,
    StoreUnreachable,
    WriteConflict,
)
from airflow_provider.storage.object_store import FolderListing, ObjectInfo, StoredObject, check_key, check_prefix
from airflow_provider.storage.s3_errors import (
    ConcurrentWrite,
    Missing,
    PreconditionFailed,
    S3Request,
    Unexplained,
    endpoint_shown,
    translate,
)
from airflow_provider.storage.s3_location import S3Location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

T = TypeVar("T")
_ROUNDS = 4
"""How often a conditional write is sent while its fate is unknown."""
_BODY_BROKE = frozenset({"IncompleteReadError", "ResponseStreamingError", "FlexibleChecksumError", "ReadTimeoutError"})


def s3_client_config(*, timeout_s: float = 20.0, max_attempts: int = 3) -> Config:
    """Time-outs and bounded retries for a client of this store; botocore's own default waits 60 s for each attempt.

    `timeout_s` is for each read in seconds (connecting: at most 5 s of it), `max_attempts` counts the first one.
    """
    return Config(
        connect_timeout=min(5.0, timeout_s),
        read_timeout=timeout_s,
        retries={"mode": "standard", "total_max_attempts": max_attempts},
        # One client serves all threads of a triggerer; with fewer, botocore opens and drops connections, and warns.
        max_pool_connections=50,
    )


class S3ObjectStore:
    """An ObjectStore on S3.

    `client_factory` is called at first use and again when credentials expire: a client made at the start of a long training
    holds credentials that are long dead when it ends.
    """

    def __init__(
        self, uri: str, *, client_factory: Callable[[], S3Client], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Parse `uri` (raises InvalidConfig); nothing is sent. `sleep` waits between the rounds of a conditional write."""
        self._location = S3Location.parse(uri)
        self._client_factory = client_factory
        self._sleep = sleep
        self._client: S3Client | None = None
        self._lock = threading.Lock()
        self._bucket_seen = False

    @property
    def uri(self) -> str:
        """The root, without a trailing slash."""
        return self._location.uri

    def __repr__(self) -> str:
        """Name the root only: a client's repr is nobody's business."""
        return f"S3ObjectStore({self.uri!r})"

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self, key: str) -> StoredObject | None:
        """See ObjectStore. A body that breaks off is fetched once more (the SDK only retries up to the headers)."""
        full = self._full(key)

        def get(client: S3Client) -> tuple[Mapping[str, Any], bytes]:
            answer = client.get_object(Bucket=self._location.bucket, Key=full)
            return answer, answer["Body"].read()

        try:
            try:
                answer, body = self._call("GetObject", full, get)
            except StoreUnreachable as error:
                if error.facts.get("cause") not in _BODY_BROKE:
                    raise
                answer, body = self._call("GetObject", full, get)
        except Missing:
            return None
        return StoredObject(
            key=key,
            body=body,
            etag=_etag(answer),
            modified_at=_utc(answer["LastModified"]),
            read_at=_store_clock(answer),
        )

    def head(self, key: str) -> ObjectInfo | None:
        """See ObjectStore. A refusal without a body is asked again as GET, whose answer says why."""
        full = self._full(key)
        bucket = self._location.bucket

        def headers_of_get(client: S3Client) -> Mapping[str, Any]:
            got = client.get_object(Bucket=bucket, Key=full)
            got["Body"].close()
            return got

        try:
            answer: Mapping[str, Any] = self._call(
                "HeadObject", full, lambda client: client.head_object(Bucket=bucket, Key=full)
            )
        except Unexplained as refusal:
            # A bare 404 is also what a missing bucket gives; a bare 400 is an expired token.
            if refusal.status == HTTPStatus.NOT_FOUND and self._bucket_seen:
                return None
            try:
                answer = self._call("GetObject", full, headers_of_get)
            except Missing:
                return None
        return ObjectInfo(
            key=key, size=answer["ContentLength"], etag=_etag(answer), modified_at=_utc(answer["LastModified"])
        )

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, key: str, body: bytes) -> str:
        """See ObjectStore."""
        return self._put(self._full(key), body)

    def create_if_absent(self, key: str, body: bytes) -> bool:
        """See ObjectStore. Sending again is safe: whichever copy arrives first wins, the other one gets 412."""
        full = self._full(key)
        lost: StoreUnreachable | None = None
        for number in range(_ROUNDS):
            try:
                self._put(full, body, IfNoneMatch="*")
            except PreconditionFailed as answer:
                if lost is None and not answer.retried:
                    return False
                found = self._read_back(key)
                if found is not None:
                    return found.body == body
            except ConcurrentWrite:
                self._sleep(0.1 * 2**number)
            except StoreUnreachable as error:
                lost = error
                found = self._read_back(key)
                if found is not None:
                    return found.body == body
                self._sleep(0.1 * 2**number)
            else:
                return True
        raise _unsettled(f"{self.uri}/{key}", lost)

    def replace_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """See ObjectStore. A key that isn't there is a conflict too (AWS answers 404, others 412)."""
        full = self._full(key)
        lost: StoreUnreachable | None = None
        for number in range(_ROUNDS):
            try:
                return self._put(full, body, IfMatch=f'"{etag}"')
            except (PreconditionFailed, Missing) as answer:
                ambiguous = lost is not None or answer.retried
                # Some servers answer 412 also for a bucket that isn't there; the read says so.
                found = self._read_back(key) if ambiguous or not self._bucket_seen else None
                if ambiguous and found is not None and found.body == body:
                    return found.etag
                raise _conflict(f"{self.uri}/{key}", etag) from None
            except ConcurrentWrite:
                self._sleep(0.1 * 2**number)
            except StoreUnreachable as error:
                lost = error
                found = self._read_back(key)
                if found is not None and found.body == body:
                    return found.etag
                if found is None or found.etag != etag:
                    raise _conflict(f"{self.uri}/{key}", etag) from None
                self._sleep(0.1 * 2**number)
        raise _unsettled(f"{self.uri}/{key}", lost)

    def copy(self, source: str, target: str) -> bool:
        """See ObjectStore. Above S3's 5 GiB for one request the SDK copies in parts."""
        source_full, full = self._full(source), self._full(target)
        bucket = self._location.bucket

        def send(client: S3Client) -> None:
            try:
                client.copy_object(Bucket=bucket, Key=full, CopySource={"Bucket": bucket, "Key": source_full})
            except ClientError as error:
                if "maximum allowable size" not in str(error.response.get("Error", {}).get("Message", "")):
                    raise
                client.copy({"Bucket": bucket, "Key": source_full}, bucket, full)

        try:
            self._call("CopyObject", full, send)
        except Missing:
            return False
        return True

    def delete(self, key: str) -> None:
        """See ObjectStore."""
        full = self._full(key)
        try:
            self._call("DeleteObject", full, lambda c: c.delete_object(Bucket=self._location.bucket, Key=full))
        except Missing:  # S3 says 204; some others 404
            return

    # --- listing -------------------------------------------------------------------------------------------------

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        full = self._location.root + check_prefix(prefix)
        for page in self._pages(full):
            yield from self._objects(page)

    def list_folder(self, prefix: str, *, start_after: str = "") -> FolderListing:
        """See ObjectStore."""
        full = self._location.root + check_prefix(prefix)
        options: dict[str, Any] = {"Delimiter": "/"}
        if start_after:
            options["StartAfter"] = full + start_after
        objects: list[ObjectInfo] = []
        folders: set[str] = set()
        for page in self._pages(full, **options):
            objects.extend(self._objects(page))
            folders.update(self._relative(common["Prefix"]) for common in page.get("CommonPrefixes", []))
        return FolderListing(objects=tuple(objects), folders=tuple(sorted(folders)))

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """See ObjectStore."""
        return self.list_folder(prefix).folders

    def _pages(self, full: str, **options: Any) -> Iterator[ListObjectsV2OutputTypeDef]:
        bucket = self._location.bucket
        token: str | None = None
        while True:
            request = options if token is None else {**options, "ContinuationToken": token}
            page = self._call(
                "ListObjectsV2",
                full,
                lambda client, request=request: client.list_objects_v2(Bucket=bucket, Prefix=full, **request),  # type: ignore[misc]
            )
            yield page
            if not page.get("IsTruncated"):
                return
            following = page.get("NextContinuationToken")
            if not following or following == token:
                # Going on would loop for ever, stopping would hide the rest: both are worse than an error.
                raise StoreUnreachable(
                    "The object store broke a listing off", known=f"no next page of {full}", cause="page"
                )
            token = following

    def _objects(self, page: ListObjectsV2OutputTypeDef) -> Iterator[ObjectInfo]:
        for item in page.get("Contents", []):
            if item["Key"].endswith("/") and item["Size"] == 0:
                continue
            yield ObjectInfo(
                key=self._relative(item["Key"]),
                size=item["Size"],
                etag=_etag(item),
                modified_at=_utc(item["LastModified"]),
            )

    # --- one request ---------------------------------------------------------------------------------------------

    def _call(self, operation: str, full: str, send: Callable[[S3Client], T]) -> T:
        """Send one request, with a fresh client if the credentials have expired. Raises what `translate` gives."""
        client = self._current(stale=None)
        try:
            return self._send(operation, full, send, client=client)
        except (StoreCredentialsExpired, StorePermissionDenied) as error:
            # Some servers forget a temporary key when it expires and then say that it never existed.
            if isinstance(error, StorePermissionDenied) and error.facts.get("code") != "InvalidAccessKeyId":
                raise
        except Unexplained as refusal:
            if refusal.status != HTTPStatus.BAD_REQUEST:
                raise
        return self._send(operation, full, send, client=self._current(stale=client))

    def _send(self, operation: str, full: str, send: Callable[[S3Client], T], *, client: S3Client) -> T:
        try:
            result = send(client)
        except Exception as error:  # noqa: BLE001 the SDK's edge: its parser raises whatever a strange answer provokes
            request = S3Request(
                operation=operation,
                bucket=self._location.bucket,
                key=full,
                endpoint=endpoint_shown(client.meta.endpoint_url),
            )
            translated = translate(error, request=request)
            self._bucket_seen = self._bucket_seen or (operation == "GetObject" and isinstance(translated, Missing))
            # Without its cause: the SDK's own text may hold a signed URL.
            raise translated from None
        self._bucket_seen = True
        return result

    def _current(self, *, stale: S3Client | None) -> S3Client:
        with self._lock:
            if self._client is None or self._client is stale:
                self._client = self._client_factory()
            return self._client

    def _put(self, full: str, body: bytes, **condition: Any) -> str:
        return self._call(
            "PutObject",
            full,
            lambda client: _etag(client.put_object(Bucket=self._location.bucket, Key=full, Body=body, **condition)),
        )

    def _read_back(self, key: str) -> StoredObject | None:
        try:
            return self.read(key)
        except RayTrainError as error:
            error.facts["may_be_written"] = True
            raise

    def _full(self, key: str) -> str:
        return check_key(self._location.root + check_key(key))

    def _relative(self, full: str) -> str:
        return full[len(self._location.root) :]


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc)


def _store_clock(answer: Mapping[str, Any]) -> datetime:
    """The Date header; HTTP requires it of every server that has a clock, so ours is a last resort."""
    try:
        return _utc(parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]))
    except (KeyError, TypeError, ValueError):
        return datetime.now(timezone.utc)


def _conflict(uri: str, etag: str) -> WriteConflict:
    return WriteConflict(f"Another process has written {uri}", known=f"it no longer has the etag {etag}", etag=etag)


def _unsettled(uri: str, lost: StoreUnreachable | None) -> StoreUnreachable:
    kind = type(lost) if lost else StoreUnreachable  # throttling stays throttling: its next try waits longer
    return kind(
        f"It is unknown whether {uri} was written",
        known=f"{_ROUNDS} conditional writes gave no answer that decides: {lost.what if lost else 'HTTP 409 each time'}",
        change="nothing; the next try finds out by reading it",
        may_be_written=True,
    )
