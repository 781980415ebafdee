"""Reads at the end of a run what the bucket holds of it: beside the lineage, from records, manifests and the objects themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.core import layout
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.operators.collecting import read_experiment
from tests.chaos.observer import sizes_below, split_file
from tests.chaos.retention import Kept

if TYPE_CHECKING:
    from airflow_provider.storage.experiment_records import ExperimentRecords
    from tests.stack.s3 import S3Server


def read_kept(s3: S3Server, records: ExperimentRecords, *, committed: frozenset[str]) -> Kept:
    """What is there; `committed` are the names that the lineage shows so."""
    attempts = read_experiment(records).attempts
    entries = {name: entry for attempt in attempts for name, entry in attempt.entries.items()}
    found: dict[str, dict[str, int]] = {}
    for key, size in sizes_below(s3.client(), f"{records.store.uri.split('/', 3)[3]}/").items():
        if (parts := split_file(key)) is not None:
            found.setdefault(parts[0], {})[parts[1]] = size
    listed = {}
    for attempt in attempts:
        if attempt.manifest is not None:
            listed = {f"the manifest of {attempt.claim.ref}": frozenset(attempt.manifest.names)}
    generation = attempts[-1].claim.generation
    if (published := records.published_manifest(generation)) is not None:
        names = parse_manifest(published.body, key=layout.published_manifest(generation)).names
        listed["the published manifest"] = frozenset(names)
    return Kept(
        recorded={n: {f.key: f.size for f in entries[n].files} if n in entries else {} for n in committed},
        found=found,
        listed=listed,
    )
