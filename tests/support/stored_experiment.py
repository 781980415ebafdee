"""Writes the records of an experiment as drivers and tries would have left them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.core import layout
from airflow_provider.core.records import QuarantineRecord
from tests.support.experiment import NOW

if TYPE_CHECKING:
    from airflow_provider.core.lineage import ExperimentFacts
    from airflow_provider.storage.object_store import ObjectStore


def write_experiment(store: ObjectStore, facts: ExperimentFacts) -> None:
    """All of it, below the store's root."""
    for owner in facts.owners:
        store.write(layout.owner(owner.k), owner.body())
    for attempt in facts.attempts:
        rank = attempt.claim.ref.rank
        store.write(layout.claim(*rank), attempt.claim.body())
        for record, key in (
            (attempt.restored, layout.restored(*rank)),
            (attempt.outcome, layout.outcome(*rank)),
            (attempt.collected, layout.collected(*rank)),
            (attempt.alive, layout.alive(*rank)),
        ):
            if record is not None:
                store.write(key, record.body())
        if attempt.manifest is not None:
            store.write(layout.manifest(*rank), attempt.manifest.body(ray_version="2.60.0"))
        for number, segment in enumerate(attempt.segments, 1):
            store.write(layout.segment(*rank, f"{number:06d}"), segment.body())
    for generation, names in facts.quarantined.items():
        for name in names:
            why = "its files are not those that were recorded: model.pt has 7 of 8 bytes"
            record = QuarantineRecord(checkpoint=name, reason=why, attempt=1, created_at=NOW)
            store.write(layout.quarantine(generation, name), record.body())
