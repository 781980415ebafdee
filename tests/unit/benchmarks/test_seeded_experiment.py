"""What the submit benchmark puts into the bucket is read as what a failed try leaves."""

from __future__ import annotations

from typing import cast

import pytest

from airflow_provider.operators.training_try import Submitted
from airflow_provider.storage.experiment_records import ExperimentRecords
from benchmarks.seeded_experiment import BODY, SeededExperiment
from benchmarks.submit import MAX_CALLS
from tests.stack.s3 import S3Server
from tests.support.counting_store import CountingStore
from tests.support.experiment import NOW, ref
from tests.support.fake_jobs_client import SESSION
from tests.support.training_try import KEY, Bench


@pytest.mark.parametrize("num_checkpoints", [1, 1_000, 2_500])
def test_a_try_behind_it_restores_the_newest_checkpoint_with_few_calls(num_checkpoints: int) -> None:
    """Also where the records fill several segments."""
    seeded = SeededExperiment(cast("S3Server", None), "submit/x", KEY, "i1", num_checkpoints)
    bench = Bench()
    etags = [bench.store.write(f"g000001/{name}/state.json", BODY) for name in seeded.names]
    for key, body in seeded.records(
        seeded.names, etags, at=NOW, address="http://ray:8265", session_name=SESSION
    ).items():
        bench.store.put_raw(key, body)
    store = CountingStore(bench.store)
    training_try = bench.new_try(2, records=ExperimentRecords(store))
    training_try.own()
    result = training_try.step()
    assert isinstance(result, Submitted)
    assert result.ref == ref(1, 2)
    claim = bench.records.newest_claim()
    assert claim is not None
    assert claim.checkpoint_seen == seeded.names[-1]
    assert any("all 1 files there with their sizes" in said or "etag" in said for said in bench.said), bench.said
    assert store.num_calls <= MAX_CALLS, store.log
