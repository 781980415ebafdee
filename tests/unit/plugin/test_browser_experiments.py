"""The experiments that the browser's tests look at are made here too: those tests run seldom, and what they need changes often."""

from __future__ import annotations

from airflow_provider.core.lineage import ExperimentFacts, Lineage, project
from airflow_provider.operators.collecting import read_experiment
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.testing.memory_store import MemoryStore
from tests.browser import recorded
from tests.support.stored_experiment import write_experiment


def read_back(facts: ExperimentFacts) -> Lineage:
    store = MemoryStore(facts.uri)
    write_experiment(store, facts)
    return project(read_experiment(ExperimentRecords(store)))


def test_every_state_of_a_checkpoint_is_there_and_a_warm_start() -> None:
    found = read_back(recorded.every_state()).checkpoints

    assert {one.state for one in found} == {"committed", "pruned", "quarantined", "uncommitted"}
    assert any(one.parent and one.parent.startswith("s3://") for one in found)


def test_their_sizes() -> None:
    assert len(read_back(recorded.ten_thousand()).checkpoints) == 10_000
    assert len(read_back(recorded.one()).checkpoints) == 1
