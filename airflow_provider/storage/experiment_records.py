"""An experiment's records, typed, in few object-store calls whatever number of checkpoints lies beside them.

Nothing here decides anything: who may write what is the protocol's business (owners, claims, stops). What is found is
believed only if it reads as the record its key promises; anything else raises RecordUnreadable.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_provider.core import layout
from airflow_provider.core.errors import RecordUnreadable, WriteConflict
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import (
    AliveRecord,
    ClaimRecord,
    CollectedRecord,
    OutcomeRecord,
    OwnerRecord,
    QuarantineRecord,
    Record,
    RecordSegment,
    RestoredRecord,
    StopRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_provider.storage.object_store import ObjectStore, StoredObject

    Warn = Callable[[str], None]

R = TypeVar("R", bound=Record)

_AFTER_CHECKPOINTS = "checkpoint`"
"""Sorts after every `checkpoint_*` and before all record names but `alive.json`: a listing that starts here stays short."""
_MAX_LOST_RACES = 100
"""More processes than this never start for one task instance at once; losing so often means that the store misbehaves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored(Generic[R]):
    """A record with what the store knows about it."""

    record: R
    etag: str
    age_s: float
    """Seconds since it was written, by the store's clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRecords:
    """What lies in one attempt's folder."""

    ref: AttemptRef
    claim: ClaimRecord
    stops: tuple[int, ...]
    """Owner numbers with a stop record on the attempt, ascending."""
    restored: RestoredRecord | None
    outcome: OutcomeRecord | None
    collected: Stored[CollectedRecord] | None
    alive: Stored[AliveRecord] | None
    """None also where an outcome exists, the driver's or a collected one: it isn't asked for then."""
    manifest: StoredObject | None
    """Ray's manifest of the attempt, unparsed."""


class ExperimentRecords:
    """The records below one experiment path.

    Every method may raise the store's errors; those that read a record also RecordUnreadable. "Calls" are object-store
    calls, given for fewer than 1,000 owners and attempts.
    """

    def __init__(self, store: ObjectStore) -> None:
        """`store` is rooted at the experiment path."""
        self.store = store

    # --- owners --------------------------------------------------------------------------------------------------

    def owner_numbers(self) -> tuple[int, ...]:
        """Numbers of all owner records, ascending. 1 call."""
        listed = self.store.list_folder("owners/").objects
        numbers = (layout.parse_owner(info.key) for info in listed)
        return tuple(sorted(k for k in numbers if k is not None))

    def owner(self, k: int) -> Stored[OwnerRecord] | None:
        """Owner record `k`. 1 call."""
        key = layout.owner(k)
        stored = self._stored(OwnerRecord, key)
        if stored is not None and stored.record.k != k:
            raise _misplaced(key, f"it says k={stored.record.k}")
        return stored

    def newest_owner(self) -> tuple[int, OwnerRecord] | None:
        """The owner of the experiment, with its number. 2 calls."""
        return next(self._owners_newest_first(), None)

    def owners(self) -> dict[int, OwnerRecord]:
        """All owners by number, ascending. 1 call, and 1 for each owner."""
        return dict(sorted(self._owners_newest_first()))

    def owners_after(self, k: int, *, known: Mapping[int, OwnerRecord] | None = None) -> dict[int, OwnerRecord]:
        """The owners after number `k`, ascending. 1 call, and 1 for each that the caller does not give as `known`."""
        since = ((number, owner) for number, owner in self._owners_newest_first(known or {}, after=k))
        return dict(sorted(since))

    def owner_that_acted_on(self, claim: ClaimRecord) -> OwnerRecord | None:
        """The newest owner that claimed the attempt or attached to it; the one to compare a new try with.

        1 call, and 1 for each owner since then. None only if the claiming owner's record is gone.
        """
        for k, owner in self._owners_newest_first():
            # The claimer acted by claiming: it may have died before it could note that in its own record.
            if owner.acted_on == claim.ref or k == claim.k:
                return owner
            if k < claim.k:
                return None
        return None

    def owners_since(
        self, claim: ClaimRecord, *, known: Mapping[int, OwnerRecord] | None = None
    ) -> tuple[OwnerRecord, bool]:
        """The newest owner that acted on the claimed attempt, and whether an owner after the claimer is final.

        1 call, and 1 for each owner since the claim that the caller does not give as `known`. Raises RecordUnreadable if
        the claiming owner's record is gone.
        """
        acting: OwnerRecord | None = None
        has_final = False
        for k, owner in self._owners_newest_first(known or {}):
            if k < claim.k:
                break
            has_final = has_final or (owner.final and k > claim.k)
            if acting is None and (owner.acted_on == claim.ref or k == claim.k):
                acting = owner
        if acting is None:
            raise RecordUnreadable(
                f"The owner record {layout.owner(claim.k)} of claim {claim.ref} is gone",
                known="nobody can tell a retry from a clear without it; nothing was started",
                change="restore the object from the bucket's versions, or choose another experiment path",
            )
        return acting, has_final

    def try_create_owner(self, record: OwnerRecord) -> bool:
        """Create one owner record; False if its number is taken. 1 call."""
        return self.store.create_if_absent(layout.owner(record.k), record.body())

    def create_owner(self, record_for_k: Callable[[int], OwnerRecord]) -> OwnerRecord:
        """Take the experiment: create the record after the newest. 2 calls, and 1 for each lost race.

        `record_for_k` makes the record for the number it is given and must put something of its own process into it (a time
        stamp). Raises WriteConflict after 100 lost races. If it fails with StoreUnreachable, owning again is harmless.
        """
        k = max(self.owner_numbers(), default=0)
        for _ in range(_MAX_LOST_RACES):
            k += 1
            record = record_for_k(k)
            if record.k != k:
                raise ValueError(f"record_for_k({k}) made a record with k={record.k}")
            if self.store.create_if_absent(layout.owner(k), record.body()):
                return record
        raise WriteConflict(
            f"No owner record could be created under {self.store.uri}",
            known=f"{_MAX_LOST_RACES} numbers up to {k} were all taken by others",
            change="look for a process that owns in a loop",
        )

    def update_owner(self, record: OwnerRecord, *, etag: str | None = None) -> str:
        """Note in the own owner record what it acted on; the answer is the new etag. 1 call.

        Only the process that created the record may do this, so no condition is needed; with `etag` it is one
        (WriteConflict).
        """
        key = layout.owner(record.k)
        if etag is None:
            return self.store.write(key, record.body())
        return self.store.replace_if_match(key, record.body(), etag=etag)

    def _owners_newest_first(
        self, known: Mapping[int, OwnerRecord] = MappingProxyType({}), *, after: int = 0
    ) -> Iterator[tuple[int, OwnerRecord]]:
        for k in reversed(self.owner_numbers()):
            if k <= after:
                return
            if k in known:
                yield k, known[k]
                continue
            stored = self.owner(k)
            if stored is not None:
                yield k, stored.record

    # --- attempts ------------------------------------------------------------------------------------------------

    def generations(self) -> tuple[int, ...]:
        """Numbers of all generations, ascending. 1 call; folders of others beside them cost nothing."""
        found = (layout.parse_generation(folder) for folder in self.store.list_folders("g"))
        return tuple(sorted(g for g in found if g is not None))

    def attempts(self, generation: int) -> tuple[AttemptRef, ...]:
        """Attempt folders of a generation, ascending. 1 call. A folder may be empty: only a claim makes it an attempt."""
        folders = self.store.list_folders(f"{layout.generation(generation)}/attempts/")
        found = (layout.parse_attempt(folder) for folder in folders)
        return tuple(AttemptRef(generation=g, attempt=n) for g, n in sorted(pair for pair in found if pair is not None))

    def claim(self, ref: AttemptRef) -> ClaimRecord | None:
        """The claim of an attempt. 1 call."""
        key = layout.claim(ref.generation, ref.attempt)
        stored = self._stored(ClaimRecord, key)
        if stored is not None and stored.record.ref != ref:
            raise _misplaced(key, f"it is the claim of {stored.record.ref}")
        return stored.record if stored else None

    def newest_claim(self) -> ClaimRecord | None:
        """The claim that ranks highest. 3 calls (more where the newest folders hold no claim); 1 for a new experiment."""
        return next(self._claims_newest_first(), None)

    def claims(self) -> dict[AttemptRef, ClaimRecord]:
        """All claims in rank order. 1 call, 1 for each generation and 1 for each attempt."""
        return {claim.ref: claim for claim in reversed(list(self._claims_newest_first()))}

    def create_claim(self, record: ClaimRecord) -> bool:
        """Claim the attempt: False when another process has it. 1 call.

        StoreUnreachable with `may_be_written`: read the claim and compare before anything is posted.
        """
        return self.store.create_if_absent(layout.claim(record.generation, record.attempt), record.body())

    def read_attempt(
        self, ref: AttemptRef, *, claim: ClaimRecord | None = None, with_restored: bool = True
    ) -> AttemptRecords | None:
        """All records of an attempt, or None when it has no claim. At most 5 calls (6 without `claim`).

        `with_restored=False` saves the call for what the driver restored, which no decision needs.
        """
        claim = claim or self.claim(ref)
        if claim is None:
            return None
        folder = layout.attempt(ref.generation, ref.attempt)
        listed = self.store.list_folder(f"{folder}/", start_after=_AFTER_CHECKPOINTS).objects
        present = {info.key for info in listed}
        stops = sorted(k for k in map(layout.parse_stop, present) if k is not None)
        outcome = self.outcome(ref) if layout.outcome(ref.generation, ref.attempt) in present else None
        collected = self.collected(ref) if layout.collected(ref.generation, ref.attempt) in present else None
        is_over = outcome is not None or (collected is not None and collected.record.outcome is not None)
        has_restored = with_restored and layout.restored(ref.generation, ref.attempt) in present
        return AttemptRecords(
            ref=ref,
            claim=claim,
            stops=tuple(stops),
            restored=self.restored(ref) if has_restored else None,
            outcome=outcome,
            collected=collected,
            alive=None if is_over else self.alive(ref),
            manifest=self.manifest(ref),
        )

    def newest_attempt(self, *, with_restored: bool = True) -> AttemptRecords | None:
        """All records of the attempt whose claim ranks highest. At most 8 calls."""
        claim = self.newest_claim()
        return self.read_attempt(claim.ref, claim=claim, with_restored=with_restored) if claim else None

    def _claims_newest_first(self) -> Iterator[ClaimRecord]:
        for generation in reversed(self.generations()):
            for ref in reversed(self.attempts(generation)):
                claim = self.claim(ref)
                if claim is not None:
                    yield claim

    # --- one attempt's records -----------------------------------------------------------------------------------

    def alive(self, ref: AttemptRef) -> Stored[AliveRecord] | None:
        """The driver's sign of life, with its age by the store's clock. 1 call."""
        return self._stored(AliveRecord, layout.alive(ref.generation, ref.attempt))

    def restored(self, ref: AttemptRef) -> RestoredRecord | None:
        """What the driver restored. 1 call."""
        return self._record(RestoredRecord, layout.restored(ref.generation, ref.attempt))

    def outcome(self, ref: AttemptRef) -> OutcomeRecord | None:
        """The driver's word on how the attempt ended. 1 call."""
        return self._record(OutcomeRecord, layout.outcome(ref.generation, ref.attempt))

    def collected(self, ref: AttemptRef) -> Stored[CollectedRecord] | None:
        """What the Airflow side made of it; its etag is what `set_collected` needs. 1 call."""
        return self._stored(CollectedRecord, layout.collected(ref.generation, ref.attempt))

    def set_collected(self, ref: AttemptRef, *, record: CollectedRecord, etag: str | None) -> None:
        """Write the conclusion over the one with `etag`, or as the first one (`etag=None`). 1 call. Raises WriteConflict."""
        self._set(layout.collected(ref.generation, ref.attempt), record, etag=etag)

    def create_stop(self, ref: AttemptRef, *, record: StopRecord) -> bool:
        """Write owner `record.k`'s stop on an attempt; False when it was there already, which counts as written. 1 call."""
        return self.store.create_if_absent(layout.stop(ref.generation, ref.attempt, record.k), record.body())

    def stops(self, ref: AttemptRef) -> dict[int, StopRecord]:
        """All stops on an attempt by owner number, ascending. 1 call, and 1 for each stop."""
        prefix = f"{layout.attempt(ref.generation, ref.attempt)}/stop-"
        found: dict[int, StopRecord] = {}
        for info in self.store.list_folder(prefix).objects:
            k = layout.parse_stop(info.key)
            record = self._record(StopRecord, info.key) if k is not None else None
            if k is not None and record is not None:
                found[k] = record
        return dict(sorted(found.items()))

    def segments(self, ref: AttemptRef, *, warn: Warn | None = None) -> dict[str, RecordSegment]:
        """All record segments of an attempt by name, sorted. 1 call, and 1 for each segment.

        With `warn` those that can't be read are told and passed over. Only for who has the manifest, which is the log.
        """
        prefix = layout.segments(ref.generation, ref.attempt)
        found = {key.removeprefix(prefix).removesuffix(".json"): record for key, record in self._segments(ref, warn)}
        return dict(sorted(found.items()))

    def segments_newest_first(self, ref: AttemptRef, *, warn: Warn | None = None) -> Iterator[RecordSegment]:
        """The segments from the last to the first, late ones before the driver's. 1 call, and 1 for each one taken."""
        return (record for _, record in self._segments(ref, warn))

    def create_segment(self, ref: AttemptRef, *, name: str, record: RecordSegment) -> bool:
        """Add a late segment under a name that nobody else uses; False when it was there already. 1 call."""
        return self.store.create_if_absent(layout.segment(ref.generation, ref.attempt, name), record.body())

    def manifest(self, ref: AttemptRef) -> StoredObject | None:
        """Ray's manifest of an attempt, unparsed. 1 call."""
        return self.store.read(layout.manifest(ref.generation, ref.attempt))

    def published_manifest(self, generation: int) -> StoredObject | None:
        """The plain manifest that a finished generation leaves for Ray, unparsed. 1 call."""
        return self.store.read(layout.published_manifest(generation))

    def quarantined(self, generation: int) -> dict[str, QuarantineRecord]:
        """Quarantine records by checkpoint name, released ones too. 1 call, and 1 for each record."""
        found: dict[str, QuarantineRecord] = {}
        for info in self.store.list_folder(f"{layout.generation(generation)}/quarantine/").objects:
            name = layout.quarantined_name(info.key)
            record = self._record(QuarantineRecord, info.key) if name else None
            if name and record is not None:
                found[name] = record
        return found

    def quarantine(self, generation: int, name: str) -> Stored[QuarantineRecord] | None:
        """The quarantine record of one checkpoint; its etag is what `set_quarantine` needs. 1 call."""
        return self._stored(QuarantineRecord, layout.quarantine(generation, name))

    def set_quarantine(self, generation: int, *, record: QuarantineRecord, etag: str | None) -> None:
        """Write a quarantine record over the one with `etag`, or as the first one (None). 1 call. Raises WriteConflict."""
        self._set(layout.quarantine(generation, record.checkpoint), record, etag=etag)

    # --- inside --------------------------------------------------------------------------------------------------

    def _segments(self, ref: AttemptRef, warn: Warn | None) -> Iterator[tuple[str, RecordSegment]]:
        listed = self.store.list_folder(layout.segments(ref.generation, ref.attempt)).objects
        for key in sorted((info.key for info in listed if info.key.endswith(".json")), reverse=True):
            try:
                record = self._record(RecordSegment, key)
            except RecordUnreadable as error:
                if warn is None:
                    raise
                warn(f"warning: {error}")
                continue
            if record is not None:
                yield key, record

    def _set(self, key: str, record: Record, *, etag: str | None) -> None:
        if etag is not None:
            self.store.replace_if_match(key, record.body(), etag=etag)
        elif not self.store.create_if_absent(key, record.body()):
            raise WriteConflict(f"Another process has already written {self.store.uri}/{key}", known="it exists")

    def _record(self, cls: type[R], key: str) -> R | None:
        stored = self._stored(cls, key)
        return stored.record if stored else None

    def _stored(self, cls: type[R], key: str) -> Stored[R] | None:
        found = self.store.read(key)
        if found is None:
            return None
        return Stored(record=cls.parse(found.body, key=key), etag=found.etag, age_s=found.age_s)


def _misplaced(key: str, known: str) -> RecordUnreadable:
    return RecordUnreadable(
        f"The record {key} was copied from somewhere else",
        known=known,
        change="choose a new experiment path instead of copying another experiment's records",
        key=key,
    )
