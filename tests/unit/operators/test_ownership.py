"""Owning: what the store can promise is asked once, and a race that is lost for ever comes to an end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider.core.errors import StorePermissionDenied, WriteConflict
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.operators.ownership import MAX_LOST_RACES
from tests.support.experiment import owner, ref
from tests.support.memory_store import CarelessStore
from tests.support.training_try import URI, Bench


def warnings(bench: Bench) -> list[str]:
    return [line for line in bench.said if line.startswith("WARNING")]


def creates(bench: Bench) -> list[str]:
    return bench.steps("create_if_absent")


def test_a_new_experiment_is_asked_once_whether_its_store_keeps_its_word() -> None:
    """By creating the first owner again: no other object, no right to delete is needed."""
    bench = Bench()
    bench.new_try().own()
    assert creates(bench) == ["create_if_absent owners/000001.json"] * 2
    assert bench.steps("delete") == []
    assert bench.written() == ["owners/000001.json"]
    assert warnings(bench) == []


def test_a_store_that_ignores_conditional_writes_is_said_and_not_refused() -> None:
    bench = Bench(CarelessStore(URI))
    training_try = bench.new_try()
    training_try.own()
    assert training_try.k == 1
    (line,) = warnings(bench)
    assert "If-None-Match" in line
    assert bench.written() == ["owners/000001.json"]


def test_where_there_is_an_owner_nothing_is_asked_again() -> None:
    bench = Bench(CarelessStore(URI))
    bench.own(1)
    bench.log.clear()
    training_try = bench.new_try(2)
    training_try.own()
    assert training_try.k == 2
    assert creates(bench) == ["create_if_absent owners/000002.json"]
    assert warnings(bench) == []


def test_a_store_that_refuses_the_first_owner_is_an_error_before_anything_is_owned() -> None:
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


def test_what_it_acts_on_changes_nothing_else_of_the_owner() -> None:
    """After a deferral another process goes on for the same owner: when it came tells where the try's time began."""
    bench = Bench()
    first = bench.new_try()
    first.own()
    owned = bench.records.owner(1)
    assert owned is not None
    an_hour_later = owned.record.created_at + timedelta(hours=1)
    for going_on in (first, bench.new_try()):
        going_on.k, going_on.now = 1, lambda: an_hour_later
        going_on.acted_on(ref(1, 1), "job")
        acted = bench.records.owner(1)
        assert acted is not None
        assert acted.record == owned.record.model_copy(update={"acted_on": ref(1, 1), "submission_id": "job"})


@pytest.mark.parametrize(
    ("kind", "try_number", "is_told"),
    [
        (FailureKind.USER, 1, True),
        (FailureKind.PREEMPTION, 3, False),
        (FailureKind.PREEMPTION, 4, True),
        (FailureKind.NETWORK, 4, False),
    ],
)
def test_the_owner_says_that_the_task_ended_only_where_no_try_follows(
    kind: FailureKind, try_number: int, is_told: bool
) -> None:
    """Of three retries. Behind a cluster that is away the training goes on, also after the last one."""
    bench = Bench()
    training_try = bench.new_try(try_number)
    training_try.own()
    before = bench.records.owner(1)
    failure = Failure(kind=kind, reason="it ended")
    training_try.give_up(failure)
    after = bench.records.owner(1)
    assert before is not None
    assert after is not None
    assert after.record == before.record.model_copy(update={"gave_up": failure if is_told else None})


def test_a_try_that_never_owned_ends_nothing() -> None:
    bench = Bench()
    bench.own(1)
    bench.new_try(2).give_up(Failure(kind=FailureKind.CONFIG, reason="it ended"))
    assert bench.steps("replace_if_match") == []
