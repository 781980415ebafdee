"""Looks at an experiment again and again, as a sensor does: reads only, and little where little has changed.

A look costs about ten calls while nothing is committed, whatever number of checkpoints lies there. Attempts that a newer one
has followed are read once, those without an outcome when the newer one's driver has begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.core.experiment_sight import ExperimentSight
from airflow_provider.core.lineage import AttemptRecords, ExperimentFacts, project
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import RecordSegment
from airflow_provider.storage.restore_scan import active_quarantine, read_manifest

if TYPE_CHECKING:
    from airflow_provider.storage.experiment_records import AttemptRecords as FoundAttempt
    from airflow_provider.storage.experiment_records import ExperimentRecords


class ExperimentView:
    """The newest generation of one experiment. Used by one thread at a time; nothing is ever written."""

    def __init__(self, records: ExperimentRecords) -> None:
        self._records = records
        self._followed: dict[AttemptRef, AttemptRecords] = {}
        self._begun: AttemptRef | None = None
        self._segments: tuple[tuple[AttemptRef, str] | None, tuple[RecordSegment, ...]] = (None, ())

    def look(self) -> ExperimentSight:
        """Read once. Raises the store's errors and RecordUnreadable: what could not be read is never "nothing there"."""
        records = self._records
        claim = records.newest_claim()
        # After the claim: an owner that is newer than what was read of attempts is seen, never the other way round.
        newest = records.newest_owner()
        owner = newest[1] if newest is not None else None
        if claim is None:
            return ExperimentSight(records.store.uri, owner)
        if claim.ref != self._begun:
            # Until its driver has read what lies there, the driver before may still commit.
            self._followed = {ref: found for ref, found in self._followed.items() if found.outcome is not None}
        older = self._older(claim.ref)
        found = records.read_attempt(claim.ref, claim=claim)
        if found is not None and (found.restored is not None or found.manifest is not None):
            self._begun = claim.ref
        attempts = [*older, self._newest(found) if found is not None else AttemptRecords(claim=claim)]
        alive_age_s = found.alive.age_s if found is not None and found.alive is not None else None
        quarantined = {claim.generation: active_quarantine(records, claim.generation)}
        facts = ExperimentFacts(records.store.uri, (owner,) if owner else (), tuple(attempts), quarantined)
        stops = tuple(records.stops(claim.ref).values()) if found is not None and found.stops else ()
        return ExperimentSight(records.store.uri, owner, facts, project(facts), alive_age_s, stops)

    def _newest(self, found: FoundAttempt) -> AttemptRecords:
        # Segments follow the manifest: while it is the same, so are they. An unfenced attempt has none of its own.
        state = (found.ref, found.manifest.etag) if found.manifest is not None else None
        if state is None or state != self._segments[0]:
            self._segments = (state, self._read_segments(found.ref))
        newest = self._with(found, self._segments[1])
        if any(name not in newest.entries for name in newest.own_commits):
            # They follow some seconds later: what retention has deleted since may still be on its way into them.
            self._segments = (None, ())
        return newest

    def _older(self, newest: AttemptRef) -> list[AttemptRecords]:
        """The generation's attempts before the newest, oldest first. A folder without a claim is none."""
        for ref in self._records.attempts(newest.generation):
            if ref.rank < newest.rank and ref not in self._followed:
                found = self._records.read_attempt(ref)
                if found is not None:
                    self._followed[ref] = self._with(found, self._read_segments(ref))
        refs = (r for r in self._followed if r.generation == newest.generation and r.rank < newest.rank)
        return [self._followed[ref] for ref in sorted(refs, key=lambda ref: ref.rank)]

    def _read_segments(self, ref: AttemptRef) -> tuple[RecordSegment, ...]:
        return tuple(self._records.segments(ref).values())

    def _with(self, found: FoundAttempt, segments: tuple[RecordSegment, ...]) -> AttemptRecords:
        return AttemptRecords(
            claim=found.claim,
            restored=found.restored,
            outcome=found.outcome,
            collected=found.collected.record if found.collected else None,
            manifest=read_manifest(self._records, found.ref, known=found),
            segments=segments,
            alive=found.alive.record if found.alive else None,
            alive_age_s=found.alive.age_s if found.alive else None,
        )
