"""The experiment's records: races, torn and foreign objects, and how few calls they cost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import RecordUnreadable, StoreUnreachable, WriteConflict
from airflow_provider.core.records import OutcomeState, QuarantineRecord, RecordSegment
from airflow_provider.storage.experiment_records import ExperimentRecords
from tests.support import experiment as make
from tests.support.counting_store import CountingStore
from tests.support.memory_store import MemoryStore

NUM_CHECKPOINTS = 10_000
BUDGET = 16


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def records(store: MemoryStore) -> ExperimentRecords:
    return ExperimentRecords(store)


# --- owners ------------------------------------------------------------------------------------------------------------


def test_new_experiment_is_empty(records: ExperimentRecords) -> None:
    assert records.newest_owner() is None
    assert records.owners() == {}
    assert records.newest_claim() is None
    assert records.newest_attempt() is None
    assert records.claims() == {}


def test_owners_count_up(records: ExperimentRecords, store: MemoryStore) -> None:
    """The newest number owns, whatever other files lie there."""
    store.put_raw("owners/notes.txt", b"x")
    assert [records.create_owner(make.owner).k for _ in range(3)] == [1, 2, 3]
    newest = records.newest_owner()
    assert newest is not None
    assert (newest[0], newest[1].try_number) == (3, 3)
    assert list(records.owners()) == [1, 2, 3]


def test_eight_racing_owners_get_eight_numbers(records: ExperimentRecords) -> None:
    """Two processes with one number would both think they own."""
    start = threading.Barrier(8)

    def own(number: int) -> tuple[int, str]:
        start.wait()
        record = records.create_owner(lambda k: make.owner(k, run_id=f"run {number}"))
        return record.k, record.run_id

    with ThreadPoolExecutor(8) as pool:
        made = dict(pool.map(own, range(8)))
    assert sorted(made) == list(range(1, 9))
    assert {k: owner.run_id for k, owner in records.owners().items()} == made


def test_lost_races_are_bounded(records: ExperimentRecords, store: MemoryStore) -> None:
    """A store that always says "exists" must not loop for ever."""

    def take(verb: str, key: str, number: int) -> None:
        if verb == "create_if_absent":
            store.put_raw(key, b"theirs")

    store.before_call = take
    with pytest.raises(WriteConflict, match="100 numbers"):
        records.create_owner(make.owner)


def test_lost_reply_of_owning_is_harmless(records: ExperimentRecords, store: MemoryStore) -> None:
    """The process owns again under the next number; the newest counts."""
    store.lose_reply(2)
    with pytest.raises(StoreUnreachable):
        records.create_owner(make.owner)
    assert store.fired == [("create_if_absent", "owners/000001.json", 2)]
    assert records.create_owner(make.owner).k == 2


def test_owner_notes_what_it_acted_on(records: ExperimentRecords) -> None:
    """With an etag the note is conditional."""
    mine = records.create_owner(make.owner)
    etag = records.update_owner(mine.model_copy(update={"acted_on": make.ref(1, 1)}))
    stored = records.owner(1)
    assert stored is not None
    assert stored.etag == etag
    assert stored.record.acted_on == make.ref(1, 1)
    records.update_owner(mine, etag=etag)
    with pytest.raises(WriteConflict):
        records.update_owner(mine.model_copy(update={"final": True}), etag=etag)


def test_owner_that_acted_is_not_simply_the_last(records: ExperimentRecords) -> None:
    """PROTOCOL 5, story 2: a cleared try that died before claiming must not count."""
    for _ in range(4):
        records.create_owner(make.owner)
    claim = make.claim(1, 1, k=2)
    acted = records.owner_that_acted_on(claim)
    assert acted is not None
    assert acted.k == 2, "the claimer acted, also where it died before noting it"
    records.update_owner(make.owner(3, acted_on=make.ref(1, 1)))
    acted = records.owner_that_acted_on(claim)
    assert acted is not None
    assert acted.k == 3
    assert records.owner_that_acted_on(make.claim(1, 1, k=9)) is None


# --- attempts ------------------------------------------------------------------------------------------------------------


def test_claims_rank_by_generation_then_attempt(records: ExperimentRecords, store: MemoryStore) -> None:
    """Attempt 1 of generation 2 outranks attempt 3 of generation 1; folders without a claim are no attempts."""
    for generation, attempt in [(1, 1), (1, 2), (1, 3), (2, 1)]:
        assert records.create_claim(make.claim(generation, attempt)) is True
    assert records.create_claim(make.claim(2, 1, k=7)) is False
    store.put_raw("g000002/attempts/000002/left-over", b"")
    store.put_raw("g000003/attempts/000001/", b"")
    store.put_raw("gallery/x", b"")
    newest = records.newest_claim()
    assert newest is not None
    assert (newest.ref, newest.k) == (make.ref(2, 1), 1)
    assert list(records.claims()) == [make.ref(1, 1), make.ref(1, 2), make.ref(1, 3), make.ref(2, 1)]
    assert records.generations() == (1, 2, 3)
    assert records.attempts(2) == (make.ref(2, 1), make.ref(2, 2))


def test_an_attempts_records_are_read_together(records: ExperimentRecords, store: MemoryStore) -> None:
    make.write_attempt(store, 1, 1, k=4)
    assert records.create_stop(make.ref(1, 1), record=make.stop(5)) is True
    assert records.create_stop(make.ref(1, 1), record=make.stop(5)) is False
    assert records.create_stop(make.ref(1, 1), record=make.stop(12)) is True
    found = records.newest_attempt()
    assert found is not None
    assert (found.ref, found.claim.k, found.stops) == (make.ref(1, 1), 4, (5, 12))
    assert found.alive is not None
    assert found.restored is not None
    assert found.manifest is not None
    assert (found.outcome, found.collected) == (None, None)
    assert list(records.stops(make.ref(1, 1))) == [5, 12]
    assert records.read_attempt(make.ref(1, 2)) is None


def test_age_of_alive_is_by_the_stores_clock() -> None:
    """A worker's own clock may be hours off."""
    clock = [datetime(2000, 1, 1, tzinfo=timezone.utc)]
    store = MemoryStore(clock=lambda: clock[0])
    make.write_attempt(store, 1, 1)
    clock[0] += timedelta(seconds=42)
    alive = ExperimentRecords(store).alive(make.ref(1, 1))
    assert alive is not None
    assert alive.age_s == 42


def test_collected_is_replaced_only_by_who_has_read_it(records: ExperimentRecords) -> None:
    """Two processes that collect: the second one learns it."""
    first = make.ref(1, 1)
    records.set_collected(first, record=make.collected(), etag=None)
    with pytest.raises(WriteConflict):
        records.set_collected(first, record=make.collected(2), etag=None)
    seen = records.collected(first)
    assert seen is not None
    records.set_collected(first, record=make.collected(accepted=True), etag=seen.etag)
    with pytest.raises(WriteConflict):
        records.set_collected(first, record=make.collected(2), etag=seen.etag)
    now = records.collected(first)
    assert now is not None
    assert now.record.accepted is True


def test_segments_and_quarantine(records: ExperimentRecords, store: MemoryStore) -> None:
    first = make.ref(1, 1)
    for name in ("000002", "000001", "late-k000003"):
        assert records.create_segment(first, name=name, record=RecordSegment(written_at=make.NOW))
    assert not records.create_segment(first, name="000001", record=RecordSegment(written_at=make.NOW))
    assert list(records.segments(first)) == ["000001", "000002", "late-k000003"]
    calls = store.num_calls
    next(iter(records.segments_newest_first(first)))
    assert store.num_calls - calls == 2, "one listing and one read"
    name = "attempts/000001/checkpoint_2026"
    quarantine = QuarantineRecord(checkpoint=name, reason="poison", attempt=1, created_at=make.NOW)
    store.write(layout.quarantine(1, name), quarantine.body())
    assert records.quarantined(1) == {name: quarantine}
    assert records.quarantined(2) == {}
    assert records.published_manifest(1) is None


# --- nothing is guessed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"schema_version": 99}', b"\xff\xfe"])
def test_torn_or_newer_records_are_errors(records: ExperimentRecords, store: MemoryStore, body: bytes) -> None:
    """A record that can't be read is not a record that isn't there."""
    store.put_raw(layout.owner(1), body)
    store.put_raw(layout.claim(1, 1), body)
    with pytest.raises(RecordUnreadable, match="owners/000001"):
        records.newest_owner()
    with pytest.raises(RecordUnreadable, match="claim"):
        records.newest_attempt()


def test_copied_records_are_refused(records: ExperimentRecords, store: MemoryStore) -> None:
    """Somebody copied a folder to start from it: its numbers promise what isn't so."""
    store.put_raw(layout.owner(2), make.owner(1).body())
    store.put_raw(layout.claim(1, 2), make.claim(1, 1).body())
    with pytest.raises(RecordUnreadable, match="copied"):
        records.newest_owner()
    with pytest.raises(RecordUnreadable, match="copied"):
        records.newest_claim()


@pytest.mark.parametrize("number", range(1, 8))
def test_no_read_of_an_outage_is_nothing(records: ExperimentRecords, store: MemoryStore, number: int) -> None:
    """Whichever call fails, the answer is an error and never "no attempt" (G2)."""
    make.write_attempt(store, 1, 1)
    store.fail_call(store.num_calls + number)
    with pytest.raises(StoreUnreachable):
        records.newest_attempt()
    assert len(store.fired) == 1


# --- the budget ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_try_needs_few_calls_behind_10000_checkpoints(store: MemoryStore, *, has_ended: bool) -> None:
    """DESIGN 6: at most 16 calls between `execute` and the POST."""
    for number in range(NUM_CHECKPOINTS):
        half = 1 + number % 2
        store.put_raw(f"{layout.attempt(1, half)}/checkpoint_{number:06d}/model.pt", b"x")
    for attempt in (1, 2):
        make.write_attempt(store, 1, attempt, k=attempt, has_ended=has_ended)
    counting = CountingStore(store)
    records = ExperimentRecords(counting)
    store.put_raw(layout.owner(1), make.owner(1, acted_on=make.ref(1, 1)).body())
    store.put_raw(layout.owner(2), make.owner(2, acted_on=make.ref(1, 2)).body())

    mine = records.create_owner(make.owner)
    newest = records.newest_attempt()
    assert newest is not None
    assert newest.ref == make.ref(1, 2)
    assert (newest.outcome is not None) is has_ended
    if newest.outcome is not None:
        assert newest.outcome.state is OutcomeState.SUCCESS
    acted = records.owner_that_acted_on(newest.claim)
    assert acted is not None
    assert acted.k == 2
    assert records.create_claim(make.claim(1, 3, k=mine.k))
    assert records.owner_numbers()[-1] == mine.k
    assert counting.num_calls <= BUDGET, counting.log
    assert counting.calls["list"] == 0
