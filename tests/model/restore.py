"""The driver's own `restoring.resolve` over the model's checkpoints, behind a store that is a few sets."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from airflow_provider.core import layout
from airflow_provider.core.errors import NoUsableCheckpoint
from airflow_provider.core.records import AttemptRef, CheckpointFile, QuarantineRecord, RestorePolicy
from airflow_provider.core.restore import AttemptCheckpoints
from airflow_provider.runtime.restoring import EarlierAttempt, resolve
from tests.model.state import COPY, PER_ATTEMPT, SCRATCH
from tests.support.records import NOW, manifest

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


class _Names:
    """Checkpoints of the model by their names in the bucket, and back."""

    def __init__(self, listed: tuple[tuple[tuple[int, int], int, tuple[int, ...]], ...], own: tuple[int, int]) -> None:
        self.numbers = {a: rank[1] for rank, a, _ in listed} | {own[0]: own[1]}
        self.back: dict[str, int] = {}

    def of(self, c: int, number: int | None = None) -> str:
        a, ordinal = divmod(c, PER_ATTEMPT)
        what = "restored-from-before" if ordinal == COPY else f"checkpoint_{ordinal}"
        # An attempt that is in no list (its manifest wasn't read) still names what others list of it.
        name = f"attempts/{self.numbers.get(a, 900 + a) if number is None else number:06d}/{what}"
        self.back[name] = c
        return name


class _Store:
    """The store as `resolve` uses it."""

    def __init__(self, names: _Names, files: Files, generation: int) -> None:
        self.files_of = {
            f"{layout.generation(generation)}/{names.of(c)}": [BROKEN if c in files.corrupt else GOOD] for c in files.exist
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
def resolve_point(
    rank: tuple[int, int], own: int, listed: tuple[tuple[tuple[int, int], int, tuple[int, ...]], ...], files: Files
) -> Point | None:
    """`runtime.restoring.resolve`; None where it refuses."""
    names = _Names(listed, (own, rank[1]))
    store = _Store(names, files, rank[0])
    attempts = [
        EarlierAttempt(
            ref=AttemptRef(generation=r[0], attempt=r[1]),
            checkpoints=AttemptCheckpoints(
                ref=AttemptRef(generation=r[0], attempt=r[1]), manifest=manifest(*(names.of(c) for c in checkpoints))
            ),
            outcome=None,
            folders=tuple(names.of(c) for c in files.exist if c // PER_ATTEMPT == a),
            is_fenced=True,
        )
        for r, a, checkpoints in listed
    ]
    ref = AttemptRef(generation=rank[0], attempt=rank[1])
    # Folders of attempts that wrote no manifest are listed as well; here only what some manifest lists exists.
    others = [c for c in files.exist if all(c // PER_ATTEMPT != a for _, a, _ in listed)]
    if attempts and others:
        folders = (*attempts[-1].folders, *(names.of(c) for c in others))
        attempts[-1] = EarlierAttempt(
            ref=attempts[-1].ref, checkpoints=attempts[-1].checkpoints, outcome=None, folders=folders, is_fenced=True
        )
    try:
        resolved = resolve(store, ref, policy=RestorePolicy(), attempts=attempts, say=lambda _: None)  # type: ignore[arg-type]
    except NoUsableCheckpoint:
        return None
    return _point(resolved, store, names, own)


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
