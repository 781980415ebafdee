"""What one try costs, however many checkpoints lie behind it."""

from __future__ import annotations

import pytest

from airflow_provider.operators.training_try import Submitted
from airflow_provider.storage.experiment_records import ExperimentRecords
from tests.support.counting_store import CountingStore
from tests.support.experiment import collected, ref, write_attempt
from tests.support.fake_jobs_client import job
from tests.support.records import outcome
from tests.support.training_try import Bench, job_id

MAX_CALLS = 16
"""Each is a round trip to the bucket between `execute` and the POST, which is to take less than a second."""


def test_a_restoring_try_needs_at_most_16_calls_with_10_000_checkpoints_behind_it() -> None:
    bench = Bench()
    bench.own(1)
    bench.claim(1)
    names = bench.commit(*(f"checkpoint_{n:06d}" for n in range(10_000)))
    bench.end("failed")
    store = CountingStore(bench.store)
    training_try = bench.new_try(2, records=ExperimentRecords(store))
    training_try.own()
    result = training_try.step()
    assert isinstance(result, Submitted)
    assert result.ref == ref(1, 2)
    claim = bench.records.newest_claim()
    assert claim is not None
    assert claim.checkpoint_seen == names[-1]
    assert store.num_calls <= MAX_CALLS, store.log


def test_a_first_try_needs_few_calls() -> None:
    bench = Bench()
    store = CountingStore(bench.store)
    training_try = bench.new_try(1, records=ExperimentRecords(store))
    training_try.own()
    training_try.step()
    assert store.num_calls <= 8, store.log


@pytest.mark.parametrize("left", ["outcome", "collected", "alive"])
def test_a_retry_stays_within_the_budget_however_the_driver_ended(left: str) -> None:
    """By itself; killed and concluded by the try before; killed together with its Airflow worker."""
    bench = Bench()
    write_attempt(bench.store, 1, 1)
    bench.own(1)
    bench.claim(1)
    bench.commit("checkpoint_1")
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "FAILED")
    if left == "outcome":
        bench.end("failed")
    elif left == "collected":
        record = collected(outcome=outcome("failed"))
        bench.store.put_raw("g000001/attempts/000001/collected.json", record.body())
    store = CountingStore(bench.store)
    training_try = bench.new_try(2, records=ExperimentRecords(store))
    training_try.own()
    result = training_try.step()
    assert isinstance(result, Submitted)
    assert result.ref == ref(1, 2)
    assert store.num_calls <= MAX_CALLS, store.log
