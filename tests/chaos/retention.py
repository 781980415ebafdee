"""What retention may delete and must leave, judged from what was seen of one run. Pure, like the verdict that asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.observer import Event

Files = Mapping[str, int]
"""Sizes of a checkpoint's files, by their names in its folder."""


@dataclass(frozen=True)
class Kept:
    """What the bucket and the records held when a run was over. Checkpoints by their names relative to the generation."""

    recorded: Mapping[str, Files]
    """Of each checkpoint that the lineage shows as committed, the files that its record lists."""
    found: Mapping[str, Files]
    """What lies in the bucket, of committed checkpoints and of others."""
    listed: Mapping[str, frozenset[str]]
    """Names by the manifest that lists them: the newest attempt's, and the plain one that was published."""


def missing_files(kept: Kept) -> list[str]:
    """Committed checkpoints that the bucket does not hold as they were recorded."""
    told = []
    for name, files in kept.recorded.items():
        found = kept.found.get(name, {})
        wrong = {file: found.get(file) for file, size in files.items() if found.get(file) != size}
        if wrong or not files:
            told.append(f"committed {name} should hold {dict(files)}, but of these there is {wrong or 'no record'}")
    return told


def wrong_lists(kept: Kept) -> list[str]:
    """Manifests that list something else than what the lineage shows as committed."""
    told = [] if kept.listed else ["no manifest was there at the end"]
    for manifest, names in kept.listed.items():
        if names != kept.recorded.keys():
            told.append(f"{manifest} lists {sorted(names)}, the lineage shows {sorted(kept.recorded)} as committed")
    return told


def wrong_deletions(events: Sequence[Event], *, num_late_allowed: int = 0) -> list[str]:
    """Deletions that were not the newest attempt's own: only what its own manifest listed before, and no longer lists, may go."""
    last: dict[tuple[int, int], frozenset[str]] = {}
    ever: dict[tuple[int, int], set[str]] = {}
    newest = (0, 0)
    told, late = [], []
    for event in events:
        if event.kind == "restored":
            newest = max(event.rank, newest)
        elif event.kind == "manifest":
            last[event.rank] = frozenset(event.names)
            ever.setdefault(event.rank, set()).update(event.names)
        elif event.kind == "deleted":
            holder = max((rank for rank in last if rank <= newest), default=newest)
            for name in event.names:
                if name in last.get(holder, ()):
                    told.append(f"{name} was deleted while the manifest of attempt {holder} listed it")
                elif not any(name in names for names in ever.values()):
                    told.append(f"{name} was deleted, which no manifest had listed")
                elif name not in ever.get(newest, ()):
                    late.append(f"{name} was deleted after attempt {newest} had begun, which never listed it")
    return [*told, *late[num_late_allowed:]]


def dropped_last(events: Sequence[Event]) -> set[str]:
    """What retention dropped with the last commit of an attempt that another followed: its driver may have died before it recorded it.

    Nobody can complete that later: no manifest lists it any more (docs/guarantees.md, G7).
    """
    newest = max((event.rank for event in events if event.kind == "claim"), default=(0, 0))
    lists: dict[tuple[int, int], list[frozenset[str]]] = {}
    for event in events:
        if event.kind == "manifest" and event.rank < newest:
            mine = lists.setdefault(event.rank, [frozenset()])
            if mine[-1] != frozenset(event.names):
                mine.append(frozenset(event.names))
    return {name for mine in lists.values() for name in mine[-2] - mine[-1]}


def pending_deletions(events: Sequence[Event]) -> set[str]:
    """What an older attempt dropped with its last commit and had not deleted when a newer one came: a zombie would go on with it."""
    deleted = {name for event in events if event.kind == "deleted" for name in event.names}
    return dropped_last(events) - deleted
