"""Writes what Ray's manifest can't hold: file lists of committed checkpoints, restarts, failures and phases, in segments.

An open segment is written again under its own number until it is full: only this driver writes these names. What a
crash keeps it from writing is completed from the manifest, by `late_entries`, later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timezone

from airflow_provider.core import layout
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.manifest import Manifest
from airflow_provider.core.phases import with_phase
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import CheckpointEntry, Phase, PhaseEntry, RecordSegment, RestartEntry
from airflow_provider.core.restore import registration_order
from airflow_provider.core.strict_json import bounded_metrics
from airflow_provider.runtime.events import CommitEvent, Event, FailureEvent, PhaseEvent
from airflow_provider.runtime.storage import ExperimentStore

MAX_ENTRIES = 1_000
MAX_FILES = 20_000
"""Files in one segment: a sharded checkpoint can have thousands."""
ETAGS_PER_CHECKPOINT = 8
"""Etags cost one HEAD each; sizes of all files come with the listing."""
_MIN_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0


def list_checkpoint(store: ExperimentStore, ref: AttemptRef, name: str) -> CheckpointEntry:
    """A checkpoint's files as they are now; retention may have deleted them already."""
    folder = f"{layout.generation(ref.generation)}/{name}"
    files = store.with_etags(folder, store.files(folder), limit=ETAGS_PER_CHECKPOINT)
    return CheckpointEntry(checkpoint=name, files=files, reported_at=datetime.now(timezone.utc))


class Recorder:
    """Turns events into record segments. Not thread-safe: one thread feeds and flushes it."""

    def __init__(self, store: ExperimentStore, ref: AttemptRef) -> None:
        """Segments start at 000001: a driver that finds its attempt's manifest present has ended before."""
        self.store, self.ref = store, ref
        self.parent: str | None = None
        """The checkpoint that the next commit descends from; set anew before each fit."""
        self.warm_started_from: str | None = None
        """URI of the parent that it descends from instead, as long as this generation has no commit."""
        self.recorded: set[str] = set()
        self.has_begun = False
        """Whether this run's manifest is written. Before that the attempt may be another run's, with records of its own under
        these names: a phase alone is written at the end, where nothing is there yet."""
        self._sequence = 1
        self._checkpoints: list[CheckpointEntry] = []
        self._restarts: list[RestartEntry] = []
        self._phases: list[PhaseEntry] = []
        self._has_new_phase = False
        self._unlisted: list[tuple[CommitEvent, str | None, str | None]] = []
        """Commits with their parent in the experiment and the one outside, whose files are still to be listed."""
        self._is_dirty = False
        self._next_write = 0.0
        self._num_commits = 0

    def take(self, events: Iterable[Event]) -> None:
        """Note events; nothing is read or written yet."""
        for event in events:
            if isinstance(event, CommitEvent):
                self._num_commits += 1
                self._unlisted.append((event, self.parent, self.warm_started_from))
                self.parent, self.warm_started_from = event.checkpoint, None
            elif isinstance(event, FailureEvent):
                entry = RestartEntry(
                    failure=event.failure,
                    decision=event.decision,
                    at=event.at,
                    commits_before=self._num_commits,
                    is_restart=not event.is_final,
                )
                self._restarts.append(entry)
                self._is_dirty = True
            elif isinstance(event, PhaseEvent):
                self.note_phase(event.phase, event.at)

    def note_phase(self, phase: Phase, at: datetime) -> None:
        """Note a phase of the driver or its controller; one thread tells the one, another the other, so not always in order."""
        phases = with_phase(self._phases, phase, at)
        self._has_new_phase |= phases != self._phases
        self._phases = phases

    def note_restart(self, entry: RestartEntry) -> None:
        """Note a failure that no controller could tell, for example its own death."""
        self._restarts.append(entry)
        self._is_dirty = True

    def flush(self, *, is_final: bool = False) -> None:
        """List new checkpoints and write the open segment when it is due. Store errors leave everything for next time."""
        if not is_final and time.monotonic() < self._next_write:
            return
        while self._unlisted:
            event, parent, outside = self._unlisted[0]
            listed = list_checkpoint(self.store, self.ref, event.checkpoint)
            self._checkpoints.append(
                replace(listed, metrics=event.metrics, reported_at=event.at, parent=parent, warm_started_from=outside)
            )
            self.recorded.add(event.checkpoint)
            self._unlisted.pop(0)
            self._is_dirty = True
            if self._is_full:
                self._write()
        if self._is_dirty or (self._has_new_phase and (self.has_begun or (is_final and not self._is_written()))):
            self._write()

    @property
    def _is_full(self) -> bool:
        num_files = sum(len(c.files) for c in self._checkpoints)
        return len(self._checkpoints) + len(self._restarts) >= MAX_ENTRIES or num_files >= MAX_FILES

    def _is_written(self) -> bool:
        return self.store.exists(self._key)

    @property
    def _key(self) -> str:
        return layout.segment(*self.ref.rank, f"{self._sequence:06d}")

    def _write(self) -> None:
        segment = RecordSegment(
            checkpoints=tuple(self._checkpoints),
            restarts=tuple(self._restarts),
            phases=tuple(self._phases),
            written_at=datetime.now(timezone.utc),
        )
        self.store.write_record(self._key, segment)
        self._is_dirty = self._has_new_phase = False
        # A long open segment is written less often: rewriting costs what it has grown to.
        self._next_write = time.monotonic() + min(_MAX_PAUSE_S, _MIN_PAUSE_S + len(self._checkpoints) / 50)
        if self._is_full:
            self._sequence += 1
            self._checkpoints, self._restarts = [], []
            self._phases = self._phases[-1:]  # the present one, so that the next segment repeats nothing else


def late_entries(
    store: ExperimentStore, ref: AttemptRef, *, manifest: Manifest, known: frozenset[str] | set[str], parent: str | None
) -> tuple[CheckpointEntry, ...]:
    """Entries for this attempt's checkpoints that the manifest lists and no record knows; listed now, so marked late."""
    own = f"attempts/{ref.attempt:06d}/"
    found: list[CheckpointEntry] = []
    for entry in registration_order(manifest):
        if entry.name.startswith(own) and entry.name not in known:
            metrics, _ = bounded_metrics(entry.metrics)
            listed = list_checkpoint(store, ref, entry.name)
            found.append(replace(listed, metrics=metrics, parent=parent, late=True))
        parent = entry.name
    return tuple(found)


def write_late(store: ExperimentStore, ref: AttemptRef, entries: tuple[CheckpointEntry, ...], *, writer: str) -> None:
    """Write late entries under names that only `writer` uses, at most 1,000 each."""
    for start in range(0, len(entries), MAX_ENTRIES):
        part = entries[start : start + MAX_ENTRIES]
        segment = RecordSegment(checkpoints=part, written_at=datetime.now(timezone.utc))
        store.write_record(layout.segment(*ref.rank, f"late-{writer}-{start // MAX_ENTRIES + 1}"), segment)


def complete_quietly(
    store: ExperimentStore, ref: AttemptRef, *, manifest: Manifest, known: frozenset[str] | set[str], writer: str
) -> int:
    """Complete an attempt's records from its manifest. They are a convenience: a failure is returned as -1, not raised."""
    try:
        entries = late_entries(store, ref, manifest=manifest, known=known, parent=None)
        write_late(store, ref, entries, writer=writer)
    except RayTrainError:
        return -1
    return len(entries)
