"""An object store in memory: what a bucket promises, without one. The contract suite holds it to the real ones.

Faults come before a call takes effect, or after it (a lost reply).
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar

from airflow_provider.core.errors import StoreUnreachable, WriteConflict
from airflow_provider.storage.object_store import FolderListing, ObjectInfo, StoredObject, check_key, check_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


def _now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class _Entry:
    body: bytes
    etag: str
    modified_at: datetime


@dataclass
class MemoryBucket:
    """Objects that stores at several roots share: what one writes below another's root, the other one reads."""

    clock: Callable[[], datetime] = _now
    objects: dict[str, _Entry] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def at(self, uri: str) -> MemoryStore:
        """The store rooted at `uri`."""
        return MemoryStore(uri, clock=self.clock, bucket=self)


class MemoryStore:
    """An ObjectStore in a dict, safe across threads. `clock` is the store's clock."""

    def __init__(
        self,
        uri: str = "memory://bucket/experiment",
        *,
        clock: Callable[[], datetime] = _now,
        bucket: MemoryBucket | None = None,
    ) -> None:
        """Start empty, or with what the bucket holds below `uri`."""
        self._uri = uri.rstrip("/")
        self._clock = clock
        self._root = f"{self._uri}/" if bucket is not None else ""
        self._objects: dict[str, _Entry] = bucket.objects if bucket is not None else {}
        self._lock = bucket.lock if bucket is not None else threading.RLock()
        self._faults: dict[int, tuple[str, Exception]] = {}
        self.before_call: Callable[[str, str, int], None] | None = None
        """Called with (verb, key, number of the call from 1) before each call takes effect; may raise or interfere."""
        self.num_calls = 0
        self.fired: list[tuple[str, str, int]] = []
        """Faults that happened, as (verb, key, number): a test proves with it that its fault was real."""

    # --- faults ------------------------------------------------------------------------------------------------------

    def fail_call(self, number: int, error: Exception | None = None) -> None:
        """Let call `number` (from 1, over the store's life) fail without effect; default: StoreUnreachable."""
        self._faults[number] = ("before", error or StoreUnreachable("The store is away"))

    def lose_reply(self, number: int, error: Exception | None = None) -> None:
        """Let call `number` take effect and fail all the same."""
        lost = StoreUnreachable("The reply was lost", may_be_written=True)
        self._faults[number] = ("after", error or lost)

    def put_raw(self, key: str, body: bytes = b"") -> None:
        """Store an object under any key, as other programs do (folder markers, `//`); not a call."""
        with self._lock:
            self._put(key, body)

    # --- verbs -------------------------------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        """The root."""
        return self._uri

    def read(self, key: str) -> StoredObject | None:
        """See ObjectStore."""
        check_key(key)
        return self._run("read", key, lambda: self._stored(key))

    def head(self, key: str) -> ObjectInfo | None:
        """See ObjectStore."""
        check_key(key)
        return self._run("head", key, lambda: self._info(key) if self._root + key in self._objects else None)

    def create_if_absent(self, key: str, body: bytes) -> bool:
        """See ObjectStore."""
        check_key(key)

        def create() -> bool:
            if self._root + key in self._objects:
                return False
            self._put(key, body)
            return True

        return self._run("create_if_absent", key, create)

    def write(self, key: str, body: bytes) -> str:
        """See ObjectStore."""
        check_key(key)
        return self._run("write", key, lambda: self._put(key, body))

    def replace_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """See ObjectStore."""
        check_key(key)

        def replace() -> str:
            found = self._objects.get(self._root + key)
            if found is None or found.etag != etag:
                raise WriteConflict(f"Another process has written {self._uri}/{key}", etag=etag)
            return self._put(key, body)

        return self._run("replace_if_match", key, replace)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore. Sorted by the keys' bytes."""
        check_prefix(prefix)
        yield from self._run("list", prefix, lambda: [self._info(key) for key in self._keys(prefix) if key[-1] != "/"])

    def list_folder(self, prefix: str, *, start_after: str = "") -> FolderListing:
        """See ObjectStore."""
        check_prefix(prefix)
        after = (prefix + start_after).encode() if start_after else b""

        def level() -> FolderListing:
            objects, folders = [], set()
            for key in self._keys(prefix):
                name, slash, _ = key[len(prefix) :].partition("/")
                if slash and (prefix + name + slash).encode() > after:
                    folders.add(prefix + name + slash)
                elif not slash and key.encode() > after:
                    objects.append(self._info(key))
            return FolderListing(objects=tuple(o for o in objects if o.key[-1:] != "/"), folders=tuple(sorted(folders)))

        return self._run("list_folder", prefix, level)

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """See ObjectStore."""
        return self.list_folder(prefix).folders

    def copy(self, source: str, target: str) -> bool:
        """See ObjectStore."""
        check_key(source)
        check_key(target)

        def copy() -> bool:
            if self._root + source not in self._objects:
                return False
            self._put(target, self._objects[self._root + source].body)
            return True

        return self._run("copy", source, copy)

    def delete(self, key: str) -> None:
        """See ObjectStore."""
        check_key(key)
        self._run("delete", key, lambda: self._objects.pop(self._root + key, None))

    # --- inside ------------------------------------------------------------------------------------------------------

    def _run(self, verb: str, key: str, effect: Callable[[], T]) -> T:
        with self._lock:
            self.num_calls += 1
            number = self.num_calls
        if self.before_call is not None:
            self.before_call(verb, key, number)
        moment, error = self._faults.get(number, ("", None))
        if error is not None and moment == "before":
            self.fired.append((verb, key, number))
            raise error
        with self._lock:
            result = effect()
        if error is not None:
            self.fired.append((verb, key, number))
            raise error
        return result

    def _keys(self, prefix: str) -> tuple[str, ...]:
        start = self._root + prefix
        found = (key[len(self._root) :] for key in self._objects if key.startswith(start))
        return tuple(sorted(found, key=str.encode))

    def _put(self, key: str, body: bytes) -> str:
        etag = hashlib.sha256(body).hexdigest()[:32]
        self._objects[self._root + key] = _Entry(body, etag, self._clock())
        return etag

    def _info(self, key: str) -> ObjectInfo:
        entry = self._objects[self._root + key]
        return ObjectInfo(key=key, size=len(entry.body), etag=entry.etag, modified_at=entry.modified_at)

    def _stored(self, key: str) -> StoredObject | None:
        entry = self._objects.get(self._root + key)
        if entry is None:
            return None
        return StoredObject(
            key=key, body=entry.body, etag=entry.etag, modified_at=entry.modified_at, read_at=self._clock()
        )
