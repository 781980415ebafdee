"""Finds the restore point after the claim exists: reads what earlier attempts left, verifies, rolls back, quarantines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from airflow_provider.core import layout
from airflow_provider.core.errors import RecordUnreadable
from airflow_provider.core.manifest import Manifest, parse_manifest
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import (
    CheckpointEntry,
    OutcomeRecord,
    QuarantineRecord,
    RecordSegment,
    RestoredRecord,
    SkippedCheckpoint,
)
from airflow_provider.core.restore import (
    AttemptCheckpoints,
    Candidate,
    Quarantine,
    RestorePoint,
    Verdict,
    as_it_ended,
    began_again,
    candidates,
    conclude,
    quarantine_for,
    start_manifest,
    verify,
)
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.core.strict_json import bounded_metrics
from airflow_provider.runtime.recorder import ETAGS_PER_CHECKPOINT
from airflow_provider.runtime.storage import ExperimentStore

_READERS = 8
_MAX_NAMED = 100
Say = Callable[[str], None]


@dataclass(frozen=True)
class EarlierAttempt:
    """What one attempt of this generation left in the bucket."""

    ref: AttemptRef
    checkpoints: AttemptCheckpoints
    outcome: OutcomeRecord | None
    folders: tuple[str, ...]
    """Checkpoint folders that are there, relative to the generation's folder."""
    is_fenced: bool

    @property
    def recorded_names(self) -> frozenset[str]:
        """Checkpoints that records know."""
        return frozenset(entry.checkpoint for entry in self.checkpoints.recorded)


@dataclass(frozen=True)
class Resolved:
    """Where this fit starts, and the manifest that tells Ray so."""

    point: RestorePoint
    manifest: Manifest
    uncommitted: tuple[str, ...] = ()
    parent: str | None = None
    """URI of the warm start's parent, while nothing of this generation is committed."""

    @property
    def checkpoint(self) -> str | None:
        """Name of the restored checkpoint, relative to the generation's folder."""
        return self.point.candidate.name if self.point.candidate else None

    def record(self, *, fit: int, fenced: bool, progress_metric: str | None = None) -> RestoredRecord:
        """What `restored.json` says."""
        candidate = self.point.candidate
        return RestoredRecord(
            checkpoint=self.checkpoint,
            warm_started_from=self.parent,
            from_attempt=_attempt_of(candidate) if candidate else None,
            reason=self.point.reason,
            metrics=bounded_metrics(candidate.metrics)[0] if candidate else {},
            progress_metric=progress_metric,
            skipped=self.point.skipped,
            uncommitted=self.uncommitted,
            fit=fit,
            fenced=fenced,
            created_at=datetime.now(timezone.utc),
        )


def _attempt_of(candidate: Candidate) -> int | None:
    parts = candidate.name.split("/")
    if parts[0] == "attempts" and len(parts) > 2 and _is_number(parts[1]):
        return int(parts[1])
    return candidate.listed_by.attempt if candidate.listed_by else None


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) == 6  # of other scripts `int` makes numbers, too


def read_attempts(store: ExperimentStore, ref: AttemptRef, *, say: Say) -> list[EarlierAttempt]:
    """All attempts of the generation up to and with `ref`, oldest first; one without records and manifest as well.

    Raises RecordUnreadable for a segment of records where no manifest is left: nobody else tells what was committed.
    """
    names = store.folders(f"{layout.generation(ref.generation)}/attempts")
    numbers = sorted(int(n) for n in names if _is_number(n) and int(n) <= ref.attempt)
    torn: list[RecordUnreadable] = []
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(lambda n: _read_attempt(store, ref.generation, n, torn=torn), numbers))
    if torn and all(attempt.checkpoints.manifest is None for attempt in found):
        raise torn[0]
    for error in torn:
        # The manifest is the log; without this segment its checkpoints are only verified less closely.
        say(f"warning: {error}")
    return found


def _read_attempt(store: ExperimentStore, g: int, n: int, *, torn: list[RecordUnreadable]) -> EarlierAttempt:
    restored = store.read_record(RestoredRecord, layout.restored(g, n))
    is_fenced = restored is None or restored.fenced
    key = layout.manifest(g, n) if is_fenced else layout.published_manifest(g)
    body = store.read(key)
    own = [f"attempts/{n:06d}/{name}" for name in store.folders(layout.attempt(g, n)) if name != "records"]
    plain = [] if is_fenced else [f for f in store.folders(layout.generation(g)) if f not in ("attempts", "quarantine")]
    ref = AttemptRef(generation=g, attempt=n)
    outcome = store.read_record(OutcomeRecord, layout.outcome(g, n))
    fallen = outcome.fallen_metric if outcome else None
    checkpoints = AttemptCheckpoints(
        ref=ref,
        manifest=None if body is None else parse_manifest(body, key=key),
        recorded=tuple(_recorded(store, g, n, torn=torn)),
        fallen_metric=fallen,
        restored=restored if fallen else None,
    )
    return EarlierAttempt(
        ref=ref,
        checkpoints=checkpoints if outcome else as_it_ended(checkpoints, restored=restored),
        outcome=outcome,
        folders=(*own, *plain),
        is_fenced=is_fenced,
    )


def _recorded(store: ExperimentStore, g: int, n: int, *, torn: list[RecordUnreadable]) -> Iterable[CheckpointEntry]:
    for name in store.names(layout.segments(g, n).rstrip("/")):
        key = layout.segments(g, n) + name
        try:
            segment = store.read_record(RecordSegment, key)
        except RecordUnreadable as error:
            torn.append(error)
            continue
        yield from segment.checkpoints if segment else ()


def read_quarantine(store: ExperimentStore, ref: AttemptRef) -> Quarantine:
    """What quarantine records mean for this attempt; names are relative to the generation's folder."""
    folder = f"{layout.generation(ref.generation)}/quarantine"
    records = (store.read_record(QuarantineRecord, f"{folder}/{name}") for name in store.names(folder))
    return quarantine_for(ref.attempt, (r for r in records if r is not None))


def resolve(
    store: ExperimentStore, ref: AttemptRef, *, policy: RestorePolicy, attempts: Sequence[EarlierAttempt], say: Say
) -> Resolved:
    """The newest (or best, or named) committed checkpoint whose files are there. Raises where going on would lose one."""
    known = [a.checkpoints for a in attempts]
    quarantine = read_quarantine(store, ref)
    names = {name for a in known for name in _names(a)}
    folders = {folder for a in attempts for folder in a.folders}
    on_disk = frozenset(names & (folders | _deeper(store, ref.generation, names)))
    # Retired and gone is what retention leaves behind: pruned, not corrupt.
    ranked = [
        c
        for c in candidates(known, policy=policy, quarantine=quarantine)
        if not (c.is_retired and c.name not in on_disk)
    ]
    skipped: list[SkippedCheckpoint] = []
    # Of a retired one a copy is restored: that is what was set aside.
    ranked = [c for c in ranked if not (c.is_retired and layout.copy_name(ref.attempt, c.name) in quarantine.banned)]
    worthless = began_again(known) if policy.mode != "explicit" else {}
    chosen, verdict = _first_usable(store, ref, ranked, skipped, worthless=worthless, policy=policy)
    is_rolled_back = chosen is not None and policy.on_corrupt == "rollback"
    for bad in skipped:
        # Where the run is refused instead, a person may repair the objects: no quarantine must pass them over then.
        if is_rolled_back:
            _quarantine(store, ref, bad)
        where = "is in quarantine" if is_rolled_back else "can't be restored"
        say(f"checkpoint {bad.checkpoint} {where}: {bad.why}")
    considered = ranked if policy.mode != "explicit" else []
    point = conclude(chosen, verdict=verdict, considered=considered, skipped=skipped, attempts=known, policy=policy)
    committed = {_folder_of(n) for n in names}
    return Resolved(
        point=point,
        manifest=start_manifest(known, point=point, on_disk=on_disk, quarantined=quarantine.banned),
        uncommitted=tuple(sorted(f for f in folders if f not in committed and layout.copied_from(f) is None))[
            :_MAX_NAMED
        ],
    )


def _names(attempt: AttemptCheckpoints) -> Iterable[str]:
    if attempt.manifest is not None:
        yield from attempt.manifest.names
    yield from (entry.checkpoint for entry in attempt.recorded)
    if attempt.restored is not None and attempt.restored.checkpoint is not None:
        yield attempt.restored.checkpoint


def _deeper(store: ExperimentStore, generation: int, names: set[str]) -> set[str]:
    """Existing folders beside names that no attempt's listing shows: one listing per parent.

    Nested ones (`epoch/3`, V1's run directories), and those that a training uploaded into the generation's folder itself.
    """
    parents = {name.rpartition("/")[0] for name in names if not _is_in_attempt(name)}
    base = layout.generation(generation)
    return {f"{p}/{c}" if p else c for p in parents for c in store.folders(f"{base}/{p}".rstrip("/"))}


def _is_in_attempt(name: str) -> bool:
    return name.startswith("attempts/") and name == _folder_of(name)


def _folder_of(name: str) -> str:
    """The folder that a listing shows for a checkpoint; a name may be nested deeper."""
    parts = name.split("/")
    return "/".join(parts[:3]) if parts[0] == "attempts" else parts[0]


def _first_usable(
    store: ExperimentStore,
    ref: AttemptRef,
    ranked: Sequence[Candidate],
    skipped: list[SkippedCheckpoint],
    *,
    worthless: Mapping[str, str],
    policy: RestorePolicy,
) -> tuple[Candidate | None, Verdict | None]:
    for candidate in ranked:
        folder = f"{layout.generation(ref.generation)}/{candidate.name}"
        found = store.files(folder)
        if candidate.is_retired and not found:
            continue  # pruned
        verdict = verify(candidate, _with_expected_etags(store, folder, candidate, found))
        if candidate.name in worthless:
            verdict = Verdict(is_usable=False, why=worthless[candidate.name])
        usable = candidate
        if verdict.is_usable and candidate.is_retired:
            usable, verdict = _copied(store, ref, candidate)
        if verdict.is_usable:
            return usable, verdict
        skipped.append(SkippedCheckpoint(checkpoint=candidate.name, why=verdict.why))
        if policy.on_corrupt == "fail":
            break
    return None, None


def _with_expected_etags(
    store: ExperimentStore, folder: str, candidate: Candidate, found: Sequence[CheckpointFile]
) -> Sequence[CheckpointFile]:
    """Etags only of the files whose etag was recorded: each costs a request."""
    tagged = {f.key for f in candidate.expected or () if f.etag}
    first = [f for f in found if f.key in tagged]
    rest = [f for f in found if f.key not in tagged]
    return [*store.with_etags(folder, first, limit=ETAGS_PER_CHECKPOINT), *rest]


def _copied(store: ExperimentStore, ref: AttemptRef, candidate: Candidate) -> tuple[Candidate, Verdict]:
    """A copy inside the own attempt: an older driver, frozen between its check and its delete, can't reach it."""
    generation = layout.generation(ref.generation)
    target = layout.copy_name(ref.attempt, candidate.name)
    before = store.files(f"{generation}/{candidate.name}")
    store.copy_folder(f"{generation}/{candidate.name}", f"{generation}/{target}")
    # A copy may have another etag (multipart objects do): sizes and names decide.
    expected = tuple(replace(f, etag="") for f in candidate.expected or before)
    copy = replace(candidate, name=target, is_retired=False, expected=expected)
    verdict = verify(copy, store.files(f"{generation}/{target}"))
    return copy, replace(verdict, why=f"a copy of retired {candidate.name}, {verdict.why}")


def _quarantine(store: ExperimentStore, ref: AttemptRef, bad: SkippedCheckpoint) -> None:
    record = QuarantineRecord(
        checkpoint=bad.checkpoint, reason=bad.why, attempt=ref.attempt, created_at=datetime.now(timezone.utc)
    )
    store.write_record(layout.quarantine(ref.generation, bad.checkpoint), record)
