"""A look reads only, reads little, and takes nothing unread for nothing there."""

from __future__ import annotations

import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import RecordUnreadable, StoreUnreachable
from airflow_provider.core.records import AliveRecord, Phase
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.experiment_view import ExperimentView
from tests.support.counting_store import CountingStore
from tests.support.experiment import NOW
from tests.support.watched_experiment import WatchedExperiment

READING = {"read", "list", "list_folder", "list_folders", "head"}


@pytest.fixture
def watched() -> WatchedExperiment:
    watched = WatchedExperiment()
    watched.claim()
    watched.commit(*({"epoch": i} for i in range(5)), keep=2)
    return watched


def test_it_only_reads(watched: WatchedExperiment) -> None:
    store = CountingStore(watched.store)
    view = ExperimentView(ExperimentRecords(store))
    for _ in range(2):
        view.look()
        watched.succeed()
    assert set(store.calls) <= READING


def test_a_look_costs_few_calls_whatever_lies_there(watched: WatchedExperiment) -> None:
    """Sensors look for days: what older attempts and segments hold is read once."""
    store = CountingStore(watched.store)
    view = ExperimentView(ExperimentRecords(store))
    for attempt in range(2, 6):
        watched.claim(attempt)
        watched.commit(*({"epoch": i} for i in range(5)), attempt=attempt, keep=2)
    view.look()
    for _ in range(3):
        store.reset()
        view.look()
        assert store.num_calls <= 11, store.log
        assert not [key for verb, key in store.log if verb == "read" and "/records/" in key]
    assert not [key for verb, key in store.log if verb == "read" and "/attempts/000004/" in key]


def test_new_commits_are_seen_with_what_retention_deleted(watched: WatchedExperiment) -> None:
    assert [c.metrics["epoch"] for c in watched.sight().checkpoints] == list(range(5))
    watched.commit({"epoch": 5}, {"epoch": 6}, keep=1)
    sight = watched.sight()
    assert [c.metrics["epoch"] for c in sight.checkpoints] == list(range(7))
    assert [c.metrics["epoch"] for c in sight.committed] == [6]


def test_segments_that_come_after_their_manifest_are_read(watched: WatchedExperiment) -> None:
    """The driver writes the manifest first and records some seconds later, also what retention deleted in between."""
    key = layout.segment(1, 1, "000001")
    before = watched.store.read(key)
    assert before is not None
    watched.commit(*({"epoch": i} for i in range(5, 9)), keep=1)
    after = watched.store.read(key)
    assert after is not None
    watched.store.put_raw(key, before.body)
    assert [c.metrics["epoch"] for c in watched.sight().checkpoints] == [0, 1, 2, 3, 4, 8]
    watched.store.put_raw(key, after.body)
    assert [c.metrics["epoch"] for c in watched.sight().checkpoints] == list(range(9))


def test_what_an_older_attempt_committed_is_usable_while_the_newest_manifest_lists_it(
    watched: WatchedExperiment,
) -> None:
    watched.claim(2)
    assert [c.metrics["epoch"] for c in watched.sight().committed] == [3, 4], "before the new attempt wrote a manifest"
    watched.commit({"epoch": 5}, attempt=2)
    assert [c.metrics["epoch"] for c in watched.sight().committed] == [3, 4, 5]


def test_what_an_older_driver_commits_after_the_newer_claim_is_seen(watched: WatchedExperiment) -> None:
    """The newer one's driver reads the manifest after its claim, and may restore just that checkpoint."""
    watched.claim(2)
    watched.sight()
    watched.commit({"epoch": 5})
    watched.restore(2, back_to=2)
    assert [c.metrics["epoch"] for c in watched.sight().committed] == [3, 4, 5]


def test_the_next_generation_begins_with_nothing(watched: WatchedExperiment) -> None:
    watched.sight()
    watched.claim(1, generation=2, k=2)
    assert watched.sight().checkpoints == ()


def test_the_age_of_the_drivers_sign_of_life_is_seen(watched: WatchedExperiment) -> None:
    assert watched.sight().alive_age_s is None
    alive = AliveRecord(run_uid="u", phase=Phase.TRAINING, phase_since=NOW, written_at=NOW)
    watched.store.put_raw(layout.alive(1, 1), alive.body())
    age_s = watched.sight().alive_age_s
    assert age_s is not None
    assert age_s < 60


def test_a_store_that_is_away_is_an_error_and_no_empty_experiment(watched: WatchedExperiment) -> None:
    for number in range(1, 10):
        watched.store.fail_call(watched.store.num_calls + number)
        with pytest.raises(StoreUnreachable):
            ExperimentView(ExperimentRecords(watched.store)).look()
        assert len(watched.store.fired) == number
        watched.store._faults.clear()


@pytest.mark.parametrize(
    "key", [layout.claim(1, 1), layout.manifest(1, 1), layout.owner(1), layout.segment(1, 1, "000001")]
)
def test_a_damaged_record_is_an_error(watched: WatchedExperiment, key: str) -> None:
    watched.store.put_raw(key, b'{"schema_version": 1, "torn')
    with pytest.raises(RecordUnreadable):
        watched.sight()
