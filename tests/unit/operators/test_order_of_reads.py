"""A try asks for the job before it reads the records: what changes between its reads must not be mistaken."""

from __future__ import annotations

import pytest

from airflow_provider.core.decision import Refuse
from airflow_provider.operators.training_try import Submitted, TrainingTry
from tests.support.experiment import ref, stop
from tests.support.fake_jobs_client import job
from tests.support.records import alive
from tests.support.training_try import Bench, job_id


@pytest.fixture
def bench() -> Bench:
    return Bench()


def submitted(training_try: TrainingTry) -> Submitted:
    training_try.own()
    result = training_try.step()
    assert isinstance(result, Submitted)
    return result


def test_an_older_trys_stop_that_falls_between_the_reads_is_not_taken_for_one_from_outside(bench: Bench) -> None:
    """A late on_kill stops the job while the next try reads its facts: that try restores, it must not fail for good."""
    bench.own(1)
    bench.claim(1)
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "RUNNING")

    def late_on_kill(verb: str, key: str) -> None:
        if verb == "read" and key.endswith("alive.json"):
            bench.records.create_stop(ref(1, 1), record=stop(1))
            bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "STOPPED")

    bench.interfere = late_on_kill
    training_try = bench.new_try(2)
    training_try.own()
    newest = training_try.read_newest()
    assert newest is not None
    assert not isinstance(training_try.decide(newest), Refuse)
    bench.interfere = lambda _verb, _key: None
    assert submitted(training_try).ref == ref(1, 2)


def test_a_job_that_was_sent_between_the_reads_is_attached_to_and_not_taken_for_lost(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)

    def sent(verb: str, key: str) -> None:
        if verb == "read" and key.endswith("alive.json"):
            bench.store.put_raw(key, alive().body())
            bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "RUNNING")

    bench.interfere = sent
    assert submitted(bench.new_try(2)).ref == ref(1, 1)
