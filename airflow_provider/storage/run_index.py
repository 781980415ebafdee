"""The run records of a task in the bucket: written before a run's first claim, read by the runs after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.core.run_index import RunRecord, earlier_runs, run_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from airflow_provider.storage.object_store import ObjectStore


class RunIndex:
    """The runs of one task and map index. Every method may raise the store's errors and RecordUnreadable."""

    def __init__(self, store: ObjectStore) -> None:
        """`store` is rooted at `core.run_index.index_uri`."""
        self.store = store

    def note(self, record: RunRecord) -> None:
        """Note a run, once. 1 call. A record that is there already says the same."""
        self.store.create_if_absent(run_key(record), record.body())

    def before(self, run_after: datetime) -> Iterator[RunRecord]:
        """Earlier runs, newest first. 1 call for each 1,000 runs, and 1 for each run taken."""
        names = [info.key for info in self.store.list_folder("").objects]
        for key in earlier_runs(names, run_after=run_after):
            found = self.store.read(key)
            if found is not None:
                yield RunRecord.parse(found.body, key=f"{self.store.uri}/{key}")
