"""The table of checkpoints, and one checkpoint in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from urllib.parse import quote

from airflow_provider.core import layout
from airflow_provider.core.lineage import AttemptRecords, LineageCheckpoint
from airflow_provider.core.strict_json import storable
from airflow_provider.plugin.view import words
from airflow_provider.plugin.view.facts import Recorded, Seen
from airflow_provider.plugin.view.snippets import Snippet, snippets_for

PAGE_SIZE = 100
STATES = ("committed", "pruned", "quarantined", "uncommitted")
Order = Literal["newest", "oldest", "highest", "lowest"]
MAX_METRICS = 4
"""Metrics beside each checkpoint in the table."""
MAX_FILES = 50
MAX_RELATIVES = 50


@dataclass(frozen=True)
class Filter:
    """Which checkpoints, and in which order."""

    state: str = ""
    attempt: str = ""
    order: Order = "newest"
    page: int = 1


@dataclass(frozen=True)
class Parent:
    """Where a checkpoint's training began. `how` says by which way; `name` is another row's, or another experiment's URI."""

    how: Literal["after", "restored from", "warm-started from"]
    name: str
    label: str
    is_known: bool


@dataclass(frozen=True)
class Row:
    """One checkpoint in the table."""

    name: str
    label: str
    attempt: str
    state: str
    why: str
    parent: Parent | None
    size: str
    metrics: tuple[tuple[str, str], ...]
    reported_at: datetime | None
    is_late: bool


@dataclass(frozen=True)
class Table:
    """A page of them."""

    rows: tuple[Row, ...]
    num_matching: int
    num_all: int
    page: int
    num_pages: int
    attempts: tuple[str, ...]
    counts: tuple[tuple[str, int], ...]
    """By state, those that occur."""

    @property
    def first(self) -> int:
        """Number of the first row shown."""
        return (self.page - 1) * PAGE_SIZE + 1 if self.rows else 0


@dataclass(frozen=True)
class File:
    """One object of a checkpoint."""

    key: str
    size: str


@dataclass(frozen=True)
class Detail:
    """Everything about one checkpoint."""

    row: Row
    uri: str
    object_url: str | None
    metrics: tuple[tuple[str, str], ...]
    metrics_cut: bool
    files: tuple[File, ...]
    num_files: int
    ancestors: tuple[Parent, ...]
    """From its parent to the beginning, at most 50."""
    has_more_ancestors: bool
    children: tuple[str, ...]
    snippets: tuple[Snippet, ...]


def build_table(seen: Seen, wanted: Filter, *, metric: str | None) -> Table:
    """The page that was asked for, or the last one there is."""
    everything = seen.lineage.checkpoints
    names = {c.name: c for c in everything}
    matching = [
        c
        for c in everything
        if (not wanted.state or c.state == wanted.state) and (not wanted.attempt or c.attempt == wanted.attempt)
    ]
    ordered = _ordered(matching, wanted.order, metric=metric)
    num_pages = max(1, -(-len(ordered) // PAGE_SIZE))
    page = min(max(1, wanted.page), num_pages)
    rows = [row_of(c, names, seen, metric=metric) for c in ordered[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]]
    counts = [(state, sum(1 for c in everything if c.state == state)) for state in STATES]
    return Table(
        rows=tuple(rows),
        num_matching=len(ordered),
        num_all=len(everything),
        page=page,
        num_pages=num_pages,
        attempts=tuple(a.ref for a in seen.lineage.attempts),
        counts=tuple((state, number) for state, number in counts if number),
    )


def _ordered(
    checkpoints: Sequence[LineageCheckpoint], order: Order, *, metric: str | None
) -> Sequence[LineageCheckpoint]:
    if order == "oldest":
        return checkpoints
    if order == "newest" or metric is None:
        return checkpoints[::-1]
    sign = -1 if order == "highest" else 1
    ranked = [(number, c) for c in checkpoints if (number := words.number(c.metrics.get(metric))) is not None]
    without = [c for c in checkpoints if words.number(c.metrics.get(metric)) is None]
    return [*(c for _, c in sorted(ranked, key=lambda pair: sign * pair[0])), *without]


def row_of(
    checkpoint: LineageCheckpoint, names: dict[str, LineageCheckpoint], seen: Seen, *, metric: str | None
) -> Row:
    """A checkpoint as the table shows it."""
    return Row(
        name=checkpoint.name,
        label=label_of(checkpoint.name),
        attempt=checkpoint.attempt,
        state=checkpoint.state,
        why=seen.quarantine.get(checkpoint.name, ""),
        parent=parent_of(checkpoint, names),
        size=words.size(checkpoint.size_bytes),
        metrics=_metrics(checkpoint, first=metric)[:MAX_METRICS],
        reported_at=checkpoint.reported_at,
        is_late=checkpoint.late,
    )


def label_of(name: str) -> str:
    """The folder's own name; a name that isn't ours is shown as it is."""
    original = layout.copied_from(name)
    folder = name.rpartition("/")[2]
    return f"copy of {label_of(original)}" if original else folder or name


def parent_of(checkpoint: LineageCheckpoint, names: dict[str, LineageCheckpoint]) -> Parent | None:
    """By which way a checkpoint's training came from another one."""
    if checkpoint.parent is None:
        return None
    known = names.get(checkpoint.parent)
    if known is None and layout.parse_generation(checkpoint.parent) is None:
        return Parent("warm-started from", checkpoint.parent, checkpoint.parent, is_known=False)
    is_same = known is not None and known.attempt == checkpoint.attempt
    label = label_of(checkpoint.parent)
    return Parent("after" if is_same else "restored from", checkpoint.parent, label, is_known=known is not None)


def _metrics(checkpoint: LineageCheckpoint, *, first: str | None) -> tuple[tuple[str, str], ...]:
    found = checkpoint.metrics
    order = sorted(found, key=lambda name: (name != first, words.number(found[name]) is None))
    return tuple((name, words.value_shown(found[name])) for name in order)


def build_detail(seen: Seen, recorded: Recorded, name: str, *, metric: str | None) -> Detail | None:
    """None for a name that the lineage doesn't have: a browser can't ask for anything else in the bucket."""
    names = {c.name: c for c in seen.lineage.checkpoints}
    # An address can't hold half of a character: it asks for such a name as it can be written.
    checkpoint = names.get(name) or next((c for c in names.values() if storable(c.name) == name), None)
    if checkpoint is None:
        return None
    name = checkpoint.name
    ancestors = _ancestors(checkpoint, names)
    files = _files(seen, name)
    base = words.web_address(recorded.experiment_url)
    return Detail(
        row=row_of(checkpoint, names, seen, metric=metric),
        uri=f"{seen.lineage.experiment}/{name}",
        object_url=f"{base.rstrip('/')}/{quote(storable(checkpoint.name))}/" if base else None,
        metrics=_metrics(checkpoint, first=metric),
        metrics_cut=checkpoint.metrics_cut,
        files=files[:MAX_FILES],
        num_files=len(files),
        ancestors=tuple(ancestors[:MAX_RELATIVES]),
        has_more_ancestors=len(ancestors) > MAX_RELATIVES,
        children=tuple(c.name for c in seen.lineage.checkpoints if c.parent == name)[:MAX_RELATIVES],
        snippets=snippets_for(checkpoint, seen, recorded),
    )


def _ancestors(checkpoint: LineageCheckpoint, names: dict[str, LineageCheckpoint]) -> list[Parent]:
    found: list[Parent] = []
    visited = {checkpoint.name}
    current: LineageCheckpoint | None = checkpoint
    while current is not None and len(found) <= MAX_RELATIVES:
        parent = parent_of(current, names)
        if parent is None or parent.name in visited:
            break
        visited.add(parent.name)
        found.append(parent)
        current = names.get(parent.name)
    return found


def _files(seen: Seen, name: str) -> tuple[File, ...]:
    for attempt in seen.facts.attempts if seen.facts else ():
        generation = f"{layout.generation(attempt.claim.generation)}/"
        if name.startswith(generation):
            entry = _entry(attempt, name.removeprefix(generation))
            if entry:
                return entry
    return ()


def _entry(attempt: AttemptRecords, name: str) -> tuple[File, ...]:
    entry = attempt.entries.get(name)
    return tuple(File(f.key, words.size(f.size)) for f in entry.files) if entry else ()
