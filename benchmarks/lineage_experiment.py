"""Experiments of any number of checkpoints, as drivers and tries would have left them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from airflow_provider.core.lineage import AttemptRecords, ExperimentFacts
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.records import CheckpointEntry, RecordSegment
from tests.support.experiment import owner
from tests.support.records import NOW, attempt_records, claim, entry, file, outcome

NUM_ATTEMPTS = 4
SEGMENT = 1_000
"""Entries that the driver puts into one segment."""
NUM_FILES = 8
"""Files of a checkpoint: a few shards, the optimizer and metadata."""


def experiment(uri: str, num_checkpoints: int) -> ExperimentFacts:
    """Four attempts that restored one another, with retention off: each manifest lists all checkpoints so far, the costliest case."""
    per = num_checkpoints // NUM_ATTEMPTS
    attempts: list[AttemptRecords] = []
    done: list[CheckpointEntry] = []
    for number in range(1, NUM_ATTEMPTS + 1):
        own: list[CheckpointEntry] = []
        for i in range(per):
            parent = (own or done)[-1].checkpoint if own or done else None
            own.append(_entry(number, i, parent=parent, step=len(done) + i))
        done += own
        attempts.append(
            attempt_records(
                number,
                claim=claim(1, number, k=number),
                restored_from=own[0].parent,
                segments=tuple(_segments(own)),
                manifest=_manifest(done),
                outcome=outcome("success" if number == NUM_ATTEMPTS else "failed"),
            )
        )
    owners = tuple(owner(number, try_number=number) for number in range(1, NUM_ATTEMPTS + 1))
    return ExperimentFacts(uri, owners, tuple(attempts), {})


def _manifest(entries: Sequence[CheckpointEntry]) -> Manifest:
    listed = tuple(ManifestEntry(one.checkpoint, dict(one.metrics)) for one in entries)
    return Manifest(entries=listed, latest=listed[-1])


def _name(attempt: int, number: int) -> str:
    return f"attempts/{attempt:06d}/checkpoint_{number:06d}"


def _entry(attempt: int, number: int, *, parent: str | None, step: int) -> CheckpointEntry:
    return entry(
        _name(attempt, number),
        parent=parent,
        files=tuple(file(f"shard_{i}.pt", size=1 << 20, etag=f"{step:032x}") for i in range(NUM_FILES)),
        metrics={"step": step, "loss": 4.0 / (1 + step), "accuracy": 1 - 1 / (2 + step), "lr": 0.001},
        reported_at=NOW + timedelta(seconds=30 * step),
    )


def _segments(entries: Sequence[CheckpointEntry]) -> Iterator[RecordSegment]:
    for start in range(0, len(entries), SEGMENT):
        yield RecordSegment(checkpoints=tuple(entries[start : start + SEGMENT]), written_at=NOW)
