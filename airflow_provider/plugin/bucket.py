"""Reads an experiment for the page: little where little has changed, and never longer than it may."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_provider.core import layout
from airflow_provider.core.errors import ForeignExperiment, RecordUnreadable, StoreUnreachable
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import project
from airflow_provider.operators.collecting import read_experiment
from airflow_provider.plugin.view.facts import Seen
from airflow_provider.storage.experiment_records import ExperimentRecords

if TYPE_CHECKING:
    from airflow_provider.core.lineage import ExperimentFacts, Lineage
    from airflow_provider.core.records import AliveRecord
    from airflow_provider.storage.object_store import FolderListing, ObjectInfo, ObjectStore, StoredObject

READ_LIMIT_S = 30.0
"""A reading that takes longer gives up at its next call."""
CACHED_BYTES = 32_000_000
"""Of one experiment's records as they are stored."""
LARGEST_BYTES = 64_000_000
"""Of one record, and of all that one reading takes; Ray's manifest of 10,000 checkpoints has some 10 MB."""
MEMORY_PER_BYTE = 3
"""What a stored byte takes once it is parsed and projected, as measured with 10,000 checkpoints."""


class PatientStore:
    """A store that reads an object again only if a listing or a HEAD shows another etag, and gives up at a time limit.

    Read-only: writing verbs are missing on purpose, so this is no ObjectStore for anything but looking.
    """

    def __init__(self, store: ObjectStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._listed: dict[str, ObjectInfo] = {}
        self._known: OrderedDict[str, StoredObject] = OrderedDict()
        self._num_bytes = 0
        self._taken: dict[str, int] = {}
        self._num_taken = 0
        self._until = 0.0

    @property
    def num_cached(self) -> int:
        """Bytes of the objects that are remembered."""
        return self._num_bytes

    @property
    def num_taken(self) -> int:
        """Bytes of the objects that the last reading took, remembered ones included."""
        return self._num_taken

    @property
    def uri(self) -> str:
        """The root, without a trailing slash."""
        return self._store.uri

    def begin(self, *, limit_s: float = READ_LIMIT_S) -> None:
        """A new reading: what was listed before says nothing any more."""
        self._listed = {}
        self._taken, self._num_taken = {}, 0
        self._until = self._clock() + limit_s

    def read(self, key: str) -> StoredObject | None:
        """The object; a remembered one where it is still the same. Raises RecordUnreadable where a reading takes too much."""
        found = self._read(key)
        if found is not None:
            self._num_taken += len(found.body) - self._taken.get(key, 0)
            self._taken[key] = len(found.body)
            if self._num_taken > LARGEST_BYTES:
                raise _too_large("The experiment's records are", key=key, num_bytes=self._num_taken)
        return found

    def _read(self, key: str) -> StoredObject | None:
        known = self._known.get(key)
        if known is None or not _is_written_once(key):
            info = self._listed.get(key) or self.head(key)
            if info is None:
                return None
            _check_size(info)
            if known is not None and (known.etag != info.etag or _has_age(key)):
                known = None
        if known is not None:
            self._known.move_to_end(key)
            return known
        self._check()
        found = self._store.read(key)
        if found is not None:
            self._remember(found)
        return found

    def head(self, key: str) -> ObjectInfo | None:
        """See ObjectStore."""
        self._check()
        return self._store.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        self._check()
        yield from self._store.list(prefix)

    def list_folder(self, prefix: str, *, start_after: str = "") -> FolderListing:
        """See ObjectStore."""
        self._check()
        found = self._store.list_folder(prefix, start_after=start_after)
        for info in found.objects:
            self._listed[info.key] = info
            known = self._known.get(info.key)
            if known is not None and known.etag != info.etag:
                self._drop(info.key)  # a claim too, where an experiment was deleted and begun again under its old path
        return found

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """See ObjectStore."""
        self._check()
        return self._store.list_folders(prefix)

    def _check(self) -> None:
        if self._clock() > self._until:
            raise StoreUnreachable(
                "The bucket answers too slowly for this page",
                known=f"the records were not all read within {READ_LIMIT_S:.0f} s",
                change="try again: what was read is remembered, and the next try goes on from there",
            )

    def _remember(self, found: StoredObject) -> None:
        self._drop(found.key)
        self._num_bytes += len(found.body)
        self._known[found.key] = found
        while self._num_bytes > CACHED_BYTES and len(self._known) > 1:
            self._drop(next(iter(self._known)))

    def _drop(self, key: str) -> None:
        gone = self._known.pop(key, None)
        self._num_bytes -= len(gone.body) if gone else 0


def _check_size(info: ObjectInfo) -> None:
    """Whoever may write to the bucket must not be able to fill the API server's memory."""
    if info.size > LARGEST_BYTES:
        raise _too_large(f"The record {info.key} is", key=info.key, num_bytes=info.size)


def _too_large(what: str, *, key: str, num_bytes: int) -> RecordUnreadable:
    return RecordUnreadable(
        f"{what} too large for this page",
        known=f"there are at least {num_bytes} bytes, the page reads up to {LARGEST_BYTES}",
        change="look at it with `airflow ray-train lineage`",
        key=key,
    )


def _has_age(key: str) -> bool:
    """A sign of life is read each time: its age is told by the store's clock at the reading."""
    return key.endswith("/alive.json")


def _is_written_once(key: str) -> bool:
    """Claims are created if absent and never again: the protocol's first rule."""
    return key.endswith("/claim.json")


class ExperimentReader:
    """Looks at one experiment again and again. Used by one thread at a time; nothing is ever written."""

    def __init__(self, store: ObjectStore, *, now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)) -> None:
        self._store = PatientStore(store)
        self._records = ExperimentRecords(self._store)  # type: ignore[arg-type]  # it only reads
        self._now = now
        self._projected: tuple[ExperimentFacts, Lineage] | None = None
        self._seen: Seen | None = None
        self._num_projected = 0

    @property
    def num_bytes(self) -> int:
        """Memory that the readings hold, as a rule of thumb; asking costs nothing, and any thread may."""
        return self._store.num_cached + MEMORY_PER_BYTE * self._num_projected

    def look(self, key: TaskInstanceKey) -> Seen:
        """Read once; what is still the same keeps its version.

        Raises the store's errors, RecordUnreadable, and ForeignExperiment for another task's experiment.
        """
        self._store.begin()
        facts = self._with_sign_of_life(read_experiment(self._records))
        _check_owner(facts, key)
        newest = facts.attempts[-1] if facts.attempts else None
        found = Seen(
            lineage=self._lineage(facts),
            read_at=self._now(),
            facts=facts,
            alive=newest.alive if newest and newest.final_outcome is None else None,
            quarantine=self._quarantine(facts),
        )
        if self._seen is not None and _is_same(self._seen, found):
            found = replace(found, version=self._seen.version)
        self._seen, self._num_projected = found, self._store.num_taken
        return found

    def _lineage(self, facts: ExperimentFacts) -> Lineage:
        """Projected anew only where more has changed than a sign of life: with 10,000 checkpoints it takes half a second."""
        still = replace(facts, attempts=tuple(replace(a, alive=None, alive_age_s=None) for a in facts.attempts))
        if self._projected is None or self._projected[0] != still:
            self._projected = still, project(facts)
        return self._projected[1]

    def _with_sign_of_life(self, facts: ExperimentFacts) -> ExperimentFacts:
        newest = facts.attempts[-1] if facts.attempts else None
        if newest is None or newest.final_outcome is not None or newest.alive is not None:
            return facts
        found = self._records.alive(newest.claim.ref)
        if found is None:
            return facts
        newest = replace(newest, alive=found.record, alive_age_s=found.age_s)
        return replace(facts, attempts=(*facts.attempts[:-1], newest))

    def _quarantine(self, facts: ExperimentFacts) -> dict[str, str]:
        return {
            f"{layout.generation(g)}/{name}": record.reason
            for g, banned in facts.quarantined.items()
            if banned
            for name, record in self._records.quarantined(g).items()
            if name in banned
        }


def _is_same(last: Seen, found: Seen) -> bool:
    """The lineage is the same object exactly where nothing but signs of life has changed; these are compared here."""
    is_still = last.lineage is found.lineage and last.quarantine == found.quarantine
    return is_still and _signs_of_life(last) == _signs_of_life(found)


def _signs_of_life(seen: Seen) -> list[AliveRecord | None]:
    return [attempt.alive for attempt in seen.facts.attempts] if seen.facts else []


def _check_owner(facts: ExperimentFacts, key: TaskInstanceKey) -> None:
    """A task that named another one's experiment was refused it, and must not show it to its own readers."""
    owners = {TaskInstanceKey(o.dag_id, o.run_id, o.task_id, o.map_index) for o in facts.owners[-1:]}
    if owners != {key} and (owners or facts.attempts):
        raise ForeignExperiment(
            "The experiment that this task recorded belongs to another task instance",
            known="its records name another owner; the training was refused for the same reason",
            change="choose another storage_path or experiment_name",
        )
