"""A process that Airflow replaced while its marker is still taken: the owners of newer tries tell it, whoever came after them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.core.errors import Superseded
from airflow_provider.core.failure import FailureKind
from airflow_provider.operators.training_try import TrainingTry
from airflow_provider.storage.experiment_records import ExperimentRecords
from tests.support.counting_store import CountingStore
from tests.support.experiment import collected, owner, ref
from tests.support.training_try import Bench, job_id

COLLECTED_1 = "g000001/attempts/000001/collected.json"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def owned(bench: Bench, try_number: int = 2, **changes: Any) -> TrainingTry:
    """A try that owns as number 1."""
    training_try = bench.new_try(try_number, **changes)
    training_try.own()
    bench.log.clear()
    return training_try


def test_a_replaced_try_that_thaws_behind_a_newer_trys_work_touches_nothing(bench: Bench) -> None:
    """Its marker was accepted before; it must not take the newer try's finished work for a clear."""
    training_try = bench.new_try(1)
    training_try.own()
    bench.own(2, try_number=2)
    bench.claim(1, k=2)
    bench.end("success")
    bench.store.put_raw(COLLECTED_1, collected(accepted=True).body())
    before = bench.written()
    with pytest.raises(Superseded, match="owner 2 is try 2, this is try 1") as caught:
        training_try.step()
    assert caught.value.failure.kind is FailureKind.SUPERSEDED
    assert bench.written() == before
    assert bench.client.posted == []
    assert bench.steps("stop") == []


def test_a_newer_trys_owner_counts_although_an_older_one_came_after_it(bench: Bench) -> None:
    """Under a stale event's same id the marker is taken; a zombie's record must not hide the newer try's."""
    training_try = owned(bench)
    bench.own(2, try_number=3)
    bench.own(3, try_number=1)
    with pytest.raises(Superseded, match="A newer try owns") as caught:
        training_try.is_owner()
    assert "owner 2 is try 3, this is try 2" in caught.value.known
    assert "owners/000004.json" not in bench.written()


@pytest.mark.parametrize("moment", ["before the look", "between look and create"])
def test_a_newer_try_that_owns_while_this_one_owns_again_is_seen(bench: Bench, moment: str) -> None:
    """The look said "no newer try"; what came since counts as well, and a lost race looks again."""
    training_try = owned(bench)
    bench.own(2, try_number=1)
    listings: list[str] = []

    def newer_try(verb: str, key: str) -> None:
        if verb == "list_folder" and key == "owners/":
            listings.append(key)
        is_now = (verb, key) == ("create_if_absent", "owners/000003.json")
        if len(listings) == 2 and not is_now and moment == "before the look" and verb == "list_folder":
            bench.own(3, try_number=3)
        if is_now and moment == "between look and create":
            bench.own(3, try_number=3)
            bench.own(4, try_number=1)

    bench.interfere = newer_try
    with pytest.raises(Superseded, match="A newer try owns"):
        training_try.is_owner()
    found = bench.records.owners()
    assert [found[k].try_number for k in sorted(found) if k > 2][:1] == [3]
    assert all(found[k].try_number != 2 for k in found if k > 1)


@pytest.mark.parametrize(
    "changes", [{"max_tries": 2}, {"clear_number": 0}, {"try_number": 1}, {"dag_run_identity": "i0"}]
)
def test_a_final_stop_of_an_older_try_does_not_end_the_cleared_one(bench: Bench, changes: dict[str, Any]) -> None:
    """The listener copies counters of the marked try; the cleared try's task would fail at it, and nobody asked for that."""
    training_try = owned(bench, clear_number=1)
    aimed = {"try_number": 2, "max_tries": 3, "clear_number": 1}
    bench.own(2, try_number=1)
    bench.own(3, final=True, created_by="listener", **{**aimed, **changes})
    assert not training_try.is_owner()
    assert training_try.k == 4


@pytest.mark.parametrize("after", [0, 1])
def test_a_final_stop_of_this_try_ends_it_whoever_owned_after_it(bench: Bench, after: int) -> None:
    training_try = owned(bench)
    bench.own(2, final=True, try_number=2)
    for k in range(3, 3 + after):
        bench.own(k, try_number=1)
    with pytest.raises(Superseded, match="stopped for good"):
        training_try.is_owner()
    assert bench.steps("marker") == []


def test_a_final_stop_of_a_newer_try_ends_this_one(bench: Bench) -> None:
    """Cleared, and then marked: whoever is older than the marked try is replaced for sure."""
    training_try = owned(bench)
    bench.own(2, final=True, try_number=4, max_tries=6)
    with pytest.raises(Superseded, match="A newer try owns"):
        training_try.is_owner()


def test_a_try_that_a_foreign_final_stop_hit_restores_over_what_it_ended(bench: Bench) -> None:
    """Drivers obey any final owner newer than their claim: the try claims again, as a newer owner than the final one."""
    training_try = owned(bench, max_tries=6)

    def marked(verb: str, key: str) -> None:
        if (verb, key) == ("create_if_absent", "g000001/attempts/000001/claim.json"):
            bench.own(2, try_number=1)
            bench.own(3, final=True, try_number=1)

    bench.interfere = marked
    training_try.step()
    newest = bench.records.newest_claim()
    assert newest is not None
    assert (newest.ref, newest.k) == (ref(1, 2), 4)
    assert bench.client.posted == [job_id(1, 2)]


def test_one_call_where_nobody_came_and_one_for_each_that_did(bench: Bench) -> None:
    store = CountingStore(bench.store)
    training_try = bench.new_try(9, records=ExperimentRecords(store))
    training_try.own()
    store.log.clear()
    assert training_try.is_owner()
    assert len(store.log) == 1
    for k in range(2, 6):
        bench.store.put_raw(f"owners/{k:06d}.json", owner(k, try_number=1).body())
    store.log.clear()
    assert not training_try.is_owner()
    # Number 2, a listing, numbers 3 to 5; owning: a listing and the new record.
    assert len(store.log) == 7, store.log
