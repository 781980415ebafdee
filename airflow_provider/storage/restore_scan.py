"""Find the restore point from the Airflow side, before GPUs are taken: reads one manifest and lists one checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider.core import layout
from airflow_provider.core.errors import NoUsableCheckpoint, RayTrainError, RecordUnreadable
from airflow_provider.core.manifest import Manifest, parse_manifest
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import CheckpointEntry, RestoredRecord, SkippedCheckpoint
from airflow_provider.core.restore import (
    AttemptCheckpoints,
    Candidate,
    RestorePoint,
    Verdict,
    as_it_ended,
    began_again,
    candidates,
    conclude,
    quarantine_for,
    verify,
)
from airflow_provider.core.restore_policy import RestorePolicy

if TYPE_CHECKING:
    from airflow_provider.storage.experiment_records import AttemptRecords, ExperimentRecords, Warn

_MAX_NAMED = 10


def scan_restore_point(
    records: ExperimentRecords,
    *,
    ref: AttemptRef,
    policy: RestorePolicy,
    newest: AttemptRecords | None = None,
    warn: Warn = lambda _: None,
) -> RestorePoint | None:
    """Where attempt `ref` would restore from, or None for the first attempt of a generation.

    The driver resolves again after its claim; this look finds what can't work before anything is claimed. Raises
    NoUsableCheckpoint, RecordUnreadable and the store's errors: "could not read" is never "nothing there". `newest` is
    the newest attempt's folder where the caller has just read it. A checkpoint whose recorded file list can't be read is
    verified without it, and `warn` told, as the driver does.
    """
    if ref.attempt == 1:
        return None
    try:
        attempts = _attempts(records, ref, newest, warn=warn)
    except RecordUnreadable as error:
        raise _naming_checkpoints(records, error) from error
    try:
        return _look(records, ref, attempts, policy=policy, warn=warn)
    except NoUsableCheckpoint:
        # The driver reads all attempts: it may go on from a checkpoint that the newest manifest no longer lists.
        return _look(records, ref, _all_attempts(records, ref, warn=warn), policy=policy, warn=warn)


def _look(
    records: ExperimentRecords,
    ref: AttemptRef,
    attempts: list[AttemptCheckpoints],
    *,
    policy: RestorePolicy,
    warn: Warn,
) -> RestorePoint:
    quarantine = quarantine_for(ref.attempt, records.quarantined(ref.generation).values())
    considered = candidates(attempts, policy=policy, quarantine=quarantine)
    worthless = began_again(attempts) if policy.mode != "explicit" else {}
    skipped: list[SkippedCheckpoint] = []
    chosen: Candidate | None = None
    verdict: Verdict | None = None
    folders = _Folders(records, ref.generation)
    for candidate in considered:
        if candidate.is_retired and candidate.name not in folders:
            continue  # retention deleted it: pruned is not corrupt
        if candidate.name in worthless:
            skipped.append(SkippedCheckpoint(checkpoint=candidate.name, why=worthless[candidate.name]))
            continue
        files = _files(records, ref.generation, candidate.name)
        verdict = verify(_with_record(records, ref, candidate, warn=warn), files)
        if verdict.is_usable:
            chosen = candidate
            break
        skipped.append(SkippedCheckpoint(checkpoint=candidate.name, why=verdict.why))
    return conclude(chosen, verdict=verdict, considered=considered, skipped=skipped, attempts=attempts, policy=policy)


def _naming_checkpoints(records: ExperimentRecords, error: RecordUnreadable) -> RecordUnreadable:
    """The error of a manifest with the checkpoint folders beside it: what a person can choose from."""
    folder, slash, file = str(error.facts.get("key", "")).rpartition("/")
    if file != layout.MANIFEST:
        return error
    prefix = f"{folder}{slash}"
    try:
        found = [name.removeprefix(prefix).rstrip("/") for name in records.store.list_folders(prefix)]
    except RayTrainError:
        return error
    checkpoints = [name for name in found if name not in layout.RECORD_FOLDERS]
    listed = ", ".join(checkpoints[-_MAX_NAMED:]) or "no checkpoint"
    more = f" and {len(checkpoints) - _MAX_NAMED} older ones" if len(checkpoints) > _MAX_NAMED else ""
    known = f"{error.known}; beside it lie {listed}{more}"
    return RecordUnreadable(error.what, known=known, change=error.change, **error.facts)


class _Folders:
    """Which checkpoint folders exist: one listing for all that share a parent, made when first asked."""

    def __init__(self, records: ExperimentRecords, generation: int) -> None:
        self._store = records.store
        self._root = f"{layout.generation(generation)}/"
        self._known: dict[str, frozenset[str]] = {}

    def __contains__(self, name: str) -> bool:
        parent = f"{self._root}{name}".rpartition("/")[0] + "/"
        if parent not in self._known:
            self._known[parent] = frozenset(self._store.list_folders(parent))
        return f"{self._root}{name}/" in self._known[parent]


def active_quarantine(records: ExperimentRecords, generation: int) -> frozenset[str]:
    """Checkpoints of a generation that must not be restored."""
    return quarantine_for(None, records.quarantined(generation).values()).banned


def read_manifest(
    records: ExperimentRecords, ref: AttemptRef, *, known: AttemptRecords | None = None
) -> Manifest | None:
    """An attempt's manifest, parsed; an unfenced attempt kept it in the generation's folder, where plain Ray does.

    Raises RecordUnreadable when it is torn.
    """
    is_known = known is not None and known.ref == ref
    stored, key = (known.manifest if known and is_known else records.manifest(ref)), layout.manifest(*ref.rank)
    if stored is None:
        # The caller may have read the folder without this record: it needs it only here.
        restored = (known.restored if known and is_known else None) or records.restored(ref)
        if restored is not None and not restored.fenced:
            stored, key = records.published_manifest(ref.generation), layout.published_manifest(ref.generation)
    return parse_manifest(stored.body, key=key) if stored is not None else None


def has_committed(records: ExperimentRecords, attempt: AttemptRecords) -> bool:
    """Whether an attempt committed a checkpoint of its own, as its driver or its manifest tells.

    Also where the manifest is torn: whoever restores says so. At most 2 calls.
    """
    if attempt.outcome is not None and attempt.outcome.num_commits > 0:
        return True
    try:
        manifest = read_manifest(records, attempt.ref, known=attempt)
    except RecordUnreadable:
        return True
    names = manifest.names if manifest is not None else ()
    return any(layout.is_commit_of(attempt.ref.attempt, name) for name in names)


def _attempts(
    records: ExperimentRecords, ref: AttemptRef, newest: AttemptRecords | None, *, warn: Warn
) -> list[AttemptCheckpoints]:
    """Older attempts, newest first, down to the first one with a manifest: it lists what the older ones committed.

    Where none lists a checkpoint, with the records of those that have no manifest.
    """
    found: list[AttemptCheckpoints] = []
    for number in range(ref.attempt - 1, 0, -1):
        older = AttemptRef(generation=ref.generation, attempt=number)
        manifest = read_manifest(records, older, known=newest)
        if manifest is not None:
            is_known = newest is not None and newest.ref == older
            outcome = newest.outcome if newest is not None and is_known else records.outcome(older)
            listing = AttemptCheckpoints(ref=older, manifest=manifest)
            if outcome is None and any(layout.is_of(number, name) for name in manifest.names):
                # In a try, which counts its calls, the caller has not read this one: then only the driver judges.
                restored = newest.restored if newest is not None and is_known else _restored(records, older)
                listing = _as_it_ended(records, listing, restored, warn=warn)
            elif outcome is not None and outcome.fallen_metric is not None:
                listing = _began_again(records, listing, outcome.fallen_metric, warn=warn)
            if not manifest.names:
                found = [replace(a, recorded=_recorded(records, a.ref, warn=warn)) for a in found]
            return [*found, listing]
        found.append(AttemptCheckpoints(ref=older))
    return [replace(a, recorded=_recorded(records, a.ref)) for a in found]


def _all_attempts(records: ExperimentRecords, ref: AttemptRef, *, warn: Warn) -> list[AttemptCheckpoints]:
    """All older attempts with their records, as the driver reads them."""
    found: list[AttemptCheckpoints] = []
    for number in range(ref.attempt - 1, 0, -1):
        older = AttemptRef(generation=ref.generation, attempt=number)
        manifest = read_manifest(records, older)
        attempt = AttemptCheckpoints(older, manifest, recorded=_recorded(records, older, warn=warn))
        outcome, restored = records.outcome(older), _restored(records, older)
        if outcome is None:
            attempt = as_it_ended(attempt, restored=restored)
        elif outcome.fallen_metric is not None:
            attempt = replace(attempt, fallen_metric=outcome.fallen_metric, restored=restored)
        found.append(attempt)
    return found


def _restored(records: ExperimentRecords, ref: AttemptRef) -> RestoredRecord | None:
    """The first attempt of a generation restores nothing."""
    return records.restored(ref) if ref.attempt > 1 else None


def _as_it_ended(
    records: ExperimentRecords, attempt: AttemptCheckpoints, restored: RestoredRecord | None, *, warn: Warn
) -> AttemptCheckpoints:
    """Its records are read only where the manifest shows a fall, or no longer lists what its first commit came from."""
    if restored is None or restored.progress_metric is None or restored.checkpoint is None:
        return attempt
    is_listed = attempt.manifest is not None and restored.checkpoint in attempt.manifest.names
    if is_listed and as_it_ended(attempt, restored=restored).fallen_metric is None:
        return attempt
    recorded = replace(attempt, recorded=_recorded(records, attempt.ref, warn=warn))
    return as_it_ended(recorded, restored=restored)


def _began_again(
    records: ExperimentRecords, attempt: AttemptCheckpoints, fallen: str, *, warn: Warn
) -> AttemptCheckpoints:
    """With what the loop ignored, which the manifest may no longer list: its own commits of before, and what it restored."""
    recorded = _recorded(records, attempt.ref, warn=warn)
    return replace(attempt, fallen_metric=fallen, recorded=recorded, restored=records.restored(attempt.ref))


def _recorded(records: ExperimentRecords, ref: AttemptRef, *, warn: Warn | None = None) -> tuple[CheckpointEntry, ...]:
    return tuple(e for segment in records.segments(ref, warn=warn).values() for e in segment.checkpoints)


def _files(records: ExperimentRecords, generation: int, name: str) -> Iterator[CheckpointFile]:
    prefix = f"{layout.generation(generation)}/{name}/"
    for info in records.store.list(prefix):
        if not info.key.endswith("/"):
            yield CheckpointFile(key=info.key.removeprefix(prefix), size=info.size, etag=info.etag)


def _with_record(records: ExperimentRecords, ref: AttemptRef, candidate: Candidate, *, warn: Warn) -> Candidate:
    """The candidate with its recorded file list, read from the newest segments of the attempt that reported it."""
    if candidate.expected is not None:
        return candidate
    parsed = layout.parse_attempt(f"{layout.generation(ref.generation)}/{candidate.name}/")
    if parsed is None:
        return candidate
    owner = AttemptRef(generation=parsed[0], attempt=parsed[1])
    for segment in records.segments_newest_first(owner, warn=warn):
        entry = _entry(segment.checkpoints, candidate.name)
        if entry is not None and entry.files:
            return Candidate(candidate.name, candidate.metrics, candidate.listed_by, entry.files, candidate.is_retired)
    return candidate


def _entry(entries: tuple[CheckpointEntry, ...], name: str) -> CheckpointEntry | None:
    return next((e for e in reversed(entries) if e.checkpoint == name), None)
