"""The driver's own `restoring.resolve` over the model's checkpoints, behind a store that is a few sets."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from airflow_provider.core import layout
from airflow_provider.core.errors import NoUsableCheckpoint
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import QuarantineRecord
from airflow_provider.core.restore import AttemptCheckpoints
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.runtime.restoring import EarlierAttempt, resolve
from tests.model.state import COPY, PER_ATTEMPT, SCRATCH
from tests.support.records import NOW, entry, manifest

GOOD, BROKEN = CheckpointFile(key="model.pt", size=8), CheckpointFile(key="model.pt", size=0)


class Files(NamedTuple):
    """What of the listed checkpoints is there, what of that is broken, what is in quarantine."""

    exist: frozenset[int]
    corrupt: frozenset[int]
    quarantine: frozenset[int]


class Point(NamedTuple):
    """Where the fit starts, and with which manifest."""

    chosen: int
    manifest: tuple[int, ...]
    skipped: frozenset[int]
    copied: int
    """Original of the copy that was made, or SCRATCH."""


class Left(NamedTuple):
    """What one attempt left: its manifest and what its records know."""

    rank: tuple[int, int]
    attempt: int
    manifest: tuple[int, ...] | None
    recorded: tuple[int, ...]


class _Names:
    """Checkpoints of the model by their names in the bucket, and back."""

    def __init__(self, left: tuple[Left, ...], own: tuple[int, int]) -> None:
        self.numbers = {x.attempt: x.rank[1] for x in left} | {own[0]: own[1]}
        self.back: dict[str, int] = {}

    def of(self, c: int) -> str:
        a, ordinal = divmod(c, PER_ATTEMPT)
        what = "restored-from-before" if ordinal == COPY else f"checkpoint_{ordinal}"
        name = f"attempts/{self.numbers[a]:06d}/{what}"
        self.back[name] = c
        return name


class _Store:
    """The store as `resolve` uses it."""

    def __init__(self, names: _Names, files: Files, generation: int) -> None:
        self.files_of = {
            f"{layout.generation(generation)}/{names.of(c)}": [BROKEN if c in files.corrupt else GOOD]
            for c in files.exist
        }
        self.quarantined = [names.of(c) for c in files.quarantine]
        self.written: list[str] = []
        self.copied: dict[str, str] = {}

    def names(self, _folder: str) -> list[str]:
        return [str(i) for i in range(len(self.quarantined))]

    def read_record(self, _cls: Any, key: str) -> QuarantineRecord:
        name = self.quarantined[int(key.rpartition("/")[2])]
        return QuarantineRecord(checkpoint=name, reason="broken", attempt=1, created_at=NOW)

    def write_record(self, _key: str, record: Any) -> None:
        self.written.append(record.checkpoint)

    def folders(self, _folder: str) -> list[str]:
        return []

    def files(self, folder: str) -> list[CheckpointFile]:
        return self.files_of.get(folder, [])

    def with_etags(self, _folder: str, files: Any, *, limit: int) -> Any:
        return files[:limit]

    def copy_folder(self, source: str, target: str) -> None:
        self.files_of[target] = self.files_of[source]
        self.copied[target.partition("/")[2]] = source.partition("/")[2]


@cache
def resolve_point(rank: tuple[int, int], own: int, left: tuple[Left, ...], files: Files) -> Point | None:
    """`runtime.restoring.resolve`; None where it refuses."""
    names = _Names(left, (own, rank[1]))
    store = _Store(names, files, rank[0])
    ref = AttemptRef(generation=rank[0], attempt=rank[1])
    attempts = [_earlier(x, names, files) for x in left]
    try:
        resolved = resolve(store, ref, policy=RestorePolicy(), attempts=attempts, say=lambda _: None)  # type: ignore[arg-type]
    except NoUsableCheckpoint:
        return None
    return _point(resolved, store, names, own)


def _earlier(left: Left, names: _Names, files: Files) -> EarlierAttempt:
    ref = AttemptRef(generation=left.rank[0], attempt=left.rank[1])
    listed = None if left.manifest is None else manifest(*(names.of(c) for c in left.manifest))
    recorded = tuple(entry(names.of(c), c % PER_ATTEMPT, files=()) for c in left.recorded)
    return EarlierAttempt(
        ref=ref,
        checkpoints=AttemptCheckpoints(ref=ref, manifest=listed, recorded=recorded),
        outcome=None,
        folders=tuple(names.of(c) for c in files.exist if c // PER_ATTEMPT == left.attempt),
        is_fenced=True,
    )


def _point(resolved: Any, store: _Store, names: _Names, own: int) -> Point:
    copy = own * PER_ATTEMPT + COPY
    back = dict(names.back)
    copied = SCRATCH
    for target, source in store.copied.items():
        back[target], copied = copy, names.back[source]
    return Point(
        chosen=SCRATCH if resolved.checkpoint is None else back[resolved.checkpoint],
        manifest=tuple(back[n] for n in resolved.manifest.names),
        skipped=frozenset(back[n] for n in store.written),
        copied=copied,
    )
