"""The object store in memory: users get the same one, so it lies in the package. And one that is worse, which they don't."""

from airflow_provider.storage.object_store import check_key
from airflow_provider.testing.memory_store import MemoryStore

__all__ = ["CarelessStore", "MemoryStore"]


class CarelessStore(MemoryStore):
    """As a server that ignores If-None-Match: every "create only if absent" writes and says "created"."""

    def create_if_absent(self, key: str, body: bytes) -> bool:
        """Always created."""
        check_key(key)
        self._run("create_if_absent", key, lambda: self._put(key, body))
        return True
