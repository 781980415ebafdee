"""Owning: what the store can promise is asked once, and a race that is lost for ever comes to an end."""

from __future__ import annotations

import pytest

from airflow_provider.core.errors import StorePermissionDenied, WriteConflict
from airflow_provider.operators.ownership import MAX_LOST_RACES
from tests.support.experiment import owner
from tests.support.memory_store import CarelessStore
from tests.support.training_try import URI, Bench


def warnings(bench: Bench) -> list[str]:
    return [line for line in bench.said if line.startswith("WARNING")]


def probes(bench: Bench) -> list[str]:
    return [step for step in bench.steps("create_if_absent", "delete") if " probe/" in step]


def test_a_new_experiment_asks_once_whether_the_store_keeps_its_word_and_cleans_up() -> None:
    bench = Bench()
    bench.new_try().own()
    verbs, keys = zip(*(step.split(" ") for step in probes(bench)), strict=True)
    assert verbs == ("create_if_absent", "create_if_absent", "delete")
    assert len(set(keys)) == 1
    assert bench.written() == ["owners/000001.json"]
    assert warnings(bench) == []


def test_each_try_probes_a_key_of_its_own() -> None:
    """Two tries that probe the same key at once would each believe that the store is careless."""
    one, two = Bench(), Bench()
    one.new_try().own()
    two.new_try().own()
    assert set(probes(one)).isdisjoint(probes(two))


def test_a_store_that_ignores_conditional_writes_is_said_and_not_refused() -> None:
    bench = Bench(CarelessStore(URI))
    training_try = bench.new_try()
    training_try.own()
    assert training_try.k == 1
    (line,) = warnings(bench)
    assert "If-None-Match" in line
    assert bench.written() == ["owners/000001.json"]


def test_where_there_is_an_owner_nothing_is_probed_again() -> None:
    bench = Bench(CarelessStore(URI))
    bench.own(1)
    training_try = bench.new_try(2)
    training_try.own()
    assert training_try.k == 2
    assert (probes(bench), warnings(bench)) == ([], [])


def test_owning_again_probes_nothing() -> None:
    bench = Bench()
    training_try = bench.new_try(2)
    training_try.own()
    bench.own(2, try_number=1)
    bench.log.clear()
    assert not training_try.is_owner()
    assert training_try.k == 3
    assert probes(bench) == []


def test_a_store_that_refuses_the_probe_is_an_error_before_anything_is_owned() -> None:
    bench = Bench()
    bench.store.fail_call(2, StorePermissionDenied("no PutObject"))
    with pytest.raises(StorePermissionDenied):
        bench.new_try().own()
    assert bench.store.fired[0][0] == "create_if_absent"
    assert bench.written() == []


@pytest.mark.parametrize("num_lost", [1, MAX_LOST_RACES - 1, MAX_LOST_RACES])
def test_races_are_lost_at_most_a_hundred_times(num_lost: int) -> None:
    bench = Bench()
    lost: list[str] = []

    def other_is_first(verb: str, key: str) -> None:
        if verb == "create_if_absent" and key.startswith("owners/") and len(lost) < num_lost:
            lost.append(key)
            bench.store.put_raw(key, owner(len(lost), try_number=1).body())

    bench.interfere = other_is_first
    training_try = bench.new_try(2)
    if num_lost < MAX_LOST_RACES:
        training_try.own()
        assert training_try.k == num_lost + 1
        return
    with pytest.raises(WriteConflict, match=f"in {MAX_LOST_RACES} races"):
        training_try.own()
    assert len(lost) == MAX_LOST_RACES
    assert bench.steps("marker") == []
