"""An object store that counts its calls as S3 would bill them: a listing is one call for each 1,000 entries."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.storage.object_store import FolderListing, ObjectInfo, ObjectStore, StoredObject

_PAGE = 1000


class CountingStore:
    """Wraps a store; `calls` counts by verb, `num_calls` is the sum, `log` holds (verb, key) in order."""

    def __init__(self, store: ObjectStore) -> None:
        """Count the calls to `store`."""
        self._store = store
        self.calls: Counter[str] = Counter()
        self.log: list[tuple[str, str]] = []

    @property
    def num_calls(self) -> int:
        """All calls since the last reset."""
        return sum(self.calls.values())

    def reset(self) -> None:
        """Start counting again."""
        self.calls.clear()
        self.log.clear()

    @property
    def uri(self) -> str:
        """The wrapped store's root."""
        return self._store.uri

    def read(self, key: str) -> StoredObject | None:
        """One call."""
        self._count("read", key)
        return self._store.read(key)

    def head(self, key: str) -> ObjectInfo | None:
        """One call."""
        self._count("head", key)
        return self._store.head(key)

    def create_if_absent(self, key: str, body: bytes) -> bool:
        """One call."""
        self._count("create_if_absent", key)
        return self._store.create_if_absent(key, body)

    def write(self, key: str, body: bytes) -> str:
        """One call."""
        self._count("write", key)
        return self._store.write(key, body)

    def replace_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """One call."""
        self._count("replace_if_match", key)
        return self._store.replace_if_match(key, body, etag=etag)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """One call for each page that is looked at."""
        self._count("list", prefix)
        for number, info in enumerate(self._store.list(prefix)):
            if number and number % _PAGE == 0:
                self._count("list", prefix)
            yield info

    def list_folder(self, prefix: str, *, start_after: str = "") -> FolderListing:
        """One call for each page."""
        listing = self._store.list_folder(prefix, start_after=start_after)
        for _ in range(max(1, -(-(len(listing.objects) + len(listing.folders)) // _PAGE))):
            self._count("list_folder", prefix)
        return listing

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """As `list_folder`."""
        return self.list_folder(prefix).folders

    def copy(self, source: str, target: str) -> bool:
        """One call."""
        self._count("copy", source)
        return self._store.copy(source, target)

    def delete(self, key: str) -> None:
        """One call."""
        self._count("delete", key)
        self._store.delete(key)

    def _count(self, verb: str, key: str) -> None:
        self.calls[verb] += 1
        self.log.append((verb, key))
