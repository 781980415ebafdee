"""Which checkpoint an attempt starts from: rank the committed ones, verify the best candidate, go on to the next.

The caller does the reading: it asks for `candidates(...)`, lists the files of one candidate at a time, and hands what
it found to `verify(...)`. So 10,000 checkpoints cost one folder listing, not 10,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, NoUsableCheckpoint
from airflow_provider.core.manifest import Manifest, ManifestEntry, finite
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import (
    CheckpointEntry,
    ClaimRecord,
    QuarantineRecord,
    RestoredRecord,
    SkippedCheckpoint,
)
from airflow_provider.core.restore_policy import RestorePolicy

_FROM_THE_START = "from the start: "


@dataclass(frozen=True)
class AttemptCheckpoints:
    """What one older attempt of the generation left: its manifest (None: it wrote none) and its records."""

    ref: AttemptRef
    manifest: Manifest | None = None
    recorded: tuple[CheckpointEntry, ...] = ()
    """In the order of its segments, which is that of the commits; a clock may be set back in between."""
    fallen_metric: str | None = None
    """Of its outcome; where there is none, see `as_it_ended`."""
    restored: RestoredRecord | None = None
    """What its loop ignored, where that metric fell: kept in the store, though its own commit may have replaced it in the manifest."""


@dataclass(frozen=True)
class Candidate:
    """A committed checkpoint that could be restored."""

    name: str
    """Relative to the generation folder."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    listed_by: AttemptRef | None = None
    """Newest attempt whose manifest lists it; None if only records know it."""
    expected: tuple[CheckpointFile, ...] | None = None
    """Recorded file list, or None where nobody recorded one."""
    is_retired: bool = False
    """Known, but no longer in the newest manifest: an older driver may still delete it, so restore from a copy."""


@dataclass(frozen=True)
class Verdict:
    """Whether a candidate's files are all there."""

    is_usable: bool
    why: str


@dataclass(frozen=True)
class RestorePoint:
    """The chosen checkpoint (None: from the start), why, and what was passed over."""

    candidate: Candidate | None
    reason: str
    skipped: tuple[SkippedCheckpoint, ...] = ()

    @property
    def why_nothing(self) -> str:
        """The reason without what follows from it, for where a parent outside may be begun from instead."""
        return self.reason.removeprefix(_FROM_THE_START)


@dataclass(frozen=True)
class Quarantine:
    """Checkpoints of a generation that quarantine records name, as they bind one attempt."""

    banned: frozenset[str] = frozenset()
    """Must not be restored."""
    cleared: frozenset[str] = frozenset()
    """Were suspected by an attempt that never proved it: as good as any, though that attempt's manifest left them out."""


def quarantine_for(attempt: int | None, records: Iterable[QuarantineRecord]) -> Quarantine:
    """Sort the records of a generation for an attempt; None: for nobody's restore, a suspicion counts for its attempt only."""
    banned, cleared = set[str](), set[str]()
    for record in records:
        if record.released_by is None and (not record.is_suspicion or record.attempt == attempt):
            banned.add(record.checkpoint)
        elif record.is_suspicion:
            cleared.add(record.checkpoint)
    return Quarantine(frozenset(banned), frozenset(cleared))


def newest_manifest(attempts: Sequence[AttemptCheckpoints]) -> AttemptCheckpoints | None:
    """The highest-ranked attempt that wrote a manifest."""
    with_manifest = [a for a in attempts if a.manifest is not None]
    return max(with_manifest, key=lambda a: a.ref.rank, default=None)


def registration_order(manifest: Manifest) -> list[ManifestEntry]:
    """Entries oldest first. Ray sorts the list by score where a score attribute is set; indices or `latest` undo that."""
    entries = list(manifest.entries)
    if len(manifest.report_indices) == len(entries):
        entries = [e for _, e in sorted(zip(manifest.report_indices, entries, strict=True), key=lambda pair: pair[0])]
    if manifest.latest is not None:
        entries = [e for e in entries if e.name != manifest.latest.name] + [manifest.latest]
    return entries


def candidates(
    attempts: Sequence[AttemptCheckpoints], *, policy: RestorePolicy, quarantine: Quarantine = Quarantine()
) -> list[Candidate]:
    """All committed checkpoints, best first under the policy: the newest manifest's, then retired ones.

    A cleared checkpoint that descends from the newest listed one is newer still: it was left out only while suspected.
    """
    ranked = sorted(attempts, key=lambda a: a.ref.rank, reverse=True)
    expected = {e.checkpoint: e for a in sorted(attempts, key=lambda a: a.ref.rank) for e in a.recorded}
    newest = newest_manifest(attempts)
    found = {c.name: c for c in _cleared(newest, expected, quarantine.cleared)}
    for attempt in ranked:
        listed = reversed(registration_order(attempt.manifest)) if attempt.manifest else ()
        for entry in listed:
            found.setdefault(entry.name, _candidate(entry, attempt, expected, is_retired=attempt is not newest))
        for record in reversed(attempt.recorded):
            name, files = record.checkpoint, record.files or None
            found.setdefault(name, Candidate(name, record.metrics, None, files, is_retired=newest is not None))
        ignored = attempt.restored
        if ignored is not None and ignored.checkpoint is not None:
            entry = ManifestEntry(ignored.checkpoint, ignored.metrics)
            found.setdefault(entry.name, replace(_candidate(entry, attempt, expected, is_retired=True), listed_by=None))
    usable = [c for c in found.values() if c.name not in quarantine.banned]
    return _by_policy(usable, policy)


def _cleared(
    newest: AttemptCheckpoints | None, recorded: Mapping[str, CheckpointEntry], names: frozenset[str]
) -> list[Candidate]:
    """Newest first: each the child of the one before, up to the newest that a manifest lists."""
    listed = registration_order(newest.manifest) if newest is not None and newest.manifest is not None else []
    if not listed:
        return []
    known = {entry.name for entry in listed}
    children = {e.parent: e for e in recorded.values() if e.checkpoint in names and e.checkpoint not in known}
    found: list[Candidate] = []
    parent = listed[-1].name
    while (child := children.pop(parent, None)) is not None:
        parent = child.checkpoint
        found.insert(0, Candidate(parent, child.metrics, None, child.files or None))
    return found


def _candidate(
    entry: ManifestEntry, attempt: AttemptCheckpoints, expected: Mapping[str, CheckpointEntry], *, is_retired: bool
) -> Candidate:
    record = expected.get(entry.name)
    files = record.files if record and record.files else None
    return Candidate(entry.name, entry.metrics, attempt.ref, files, is_retired)


def _by_policy(usable: list[Candidate], policy: RestorePolicy) -> list[Candidate]:
    if policy.mode == "latest":
        return usable
    if policy.mode == "explicit":
        return [c for c in usable if c.name == policy.checkpoint]
    if policy.metric is None:
        raise InvalidConfig("restore='best' needs a metric", change="name one: restore={'mode': 'best', 'metric': ...}")
    scored = [(score, c) for c in usable if (score := finite(c.metrics.get(policy.metric))) is not None]
    return [c for _, c in sorted(scored, key=lambda pair: pair[0], reverse=policy.order == "max")]


def policy_of_attempt(
    asked: RestorePolicy, *, before: ClaimRecord | None, has_committed: bool, answers_clear: bool
) -> RestorePolicy:
    """What the next attempt restores by: a retry goes on from what was committed since a checkpoint was named, a clear names it anew.

    `before` is the newest claim of the generation, `has_committed` whether that attempt committed anything.
    """
    if asked.mode != "explicit" or before is None or answers_clear:
        return asked
    if before.asked.mode != "explicit" or before.asked.checkpoint != asked.checkpoint:
        return asked
    is_begun = before.asked_before is not None or has_committed
    return RestorePolicy(mode="latest", on_corrupt=asked.on_corrupt) if is_begun else asked


def as_it_ended(attempt: AttemptCheckpoints, *, restored: RestoredRecord | None) -> AttemptCheckpoints:
    """An attempt that has no outcome, with the metric that fell at its first commit: its driver died before it told.

    A later fall is nobody's: a metric that rises and falls had been proven, and what was committed since would be lost.
    """
    metric = restored.progress_metric if restored else None
    if restored is None or metric is None:
        return attempt
    fallen = replace(attempt, fallen_metric=metric, restored=restored)
    values, before = _values([attempt], metric), finite(restored.metrics.get(metric))
    first = next((values[name] for name, _ in _own_commits(fallen) if name in values), None)
    return fallen if before is not None and first is not None and first < before else attempt


def began_again(attempts: Sequence[AttemptCheckpoints]) -> dict[str, str]:
    """Why checkpoints of the newest attempt that has a manifest are not gone on from: their loop ignored what was restored.

    They are the newest by order and stand at the beginning: after a repair of the loop, a try that went on from them would
    have begun again in silence. Only a fall at a commit of the attempt's own counts: a restore of an older one is no fall.
    """
    newest = newest_manifest(attempts)
    if newest is None or newest.fallen_metric is None:
        return {}
    metric, values = newest.fallen_metric, _values(attempts, newest.fallen_metric)
    found: dict[str, str] = {}
    for name, parent in _own_commits(newest):
        before, value = values.get(parent or ""), values.get(name)
        if parent in found:
            found[name] = found[parent]
        elif before is not None and value is not None and value < before:
            found[name] = f"its loop began again: {metric} fell from {before:g} to {value:g}"
        elif before is not None and value is None:
            values[name] = before
    return found


def _values(attempts: Sequence[AttemptCheckpoints], metric: str) -> dict[str, float]:
    """What each known checkpoint reports of a metric."""
    known = [(e.name, e.metrics) for a in attempts if a.manifest for e in a.manifest.entries]
    known += [(e.checkpoint, e.metrics) for a in attempts for e in a.recorded]
    known += [(a.restored.checkpoint or "", a.restored.metrics) for a in attempts if a.restored]
    return {name: value for name, metrics in known if (value := finite(metrics.get(metric))) is not None}


def _own_commits(attempt: AttemptCheckpoints) -> list[tuple[str, str | None]]:
    """An attempt's own checkpoints with what each was made from, oldest first: recorded ones, then what only Ray's list knows."""
    listed = [e.name for e in registration_order(attempt.manifest)] if attempt.manifest else []
    restored = attempt.restored.checkpoint if attempt.restored else None
    parents = dict(zip(listed[1:], listed, strict=False)) | {
        e.checkpoint: e.parent for e in attempt.recorded if e.parent
    }
    recorded = sorted(attempt.recorded, key=lambda e: e.late)
    names = dict.fromkeys([*(e.checkpoint for e in recorded), *listed])
    own = [n for n in names if layout.is_commit_of(attempt.ref.attempt, n)]
    told = {e.checkpoint for e in recorded if not e.late}
    # What a driver could no longer tell came after all that it told, unless the list shows where it belongs.
    last = next((n for n in reversed(own) if n in told), restored) if told.isdisjoint(listed) else restored
    made_from = {name: parents.get(name, restored if name in told else last) for name in own}
    # A parent that a torn segment hides came after what was restored.
    hidden = {
        p
        for p in made_from.values()
        if p and p not in made_from and p not in listed and layout.is_commit_of(attempt.ref.attempt, p)
    }
    return _parents_first({name: restored if parent in hidden else parent for name, parent in made_from.items()})


def _parents_first(made_from: Mapping[str, str | None]) -> list[tuple[str, str | None]]:
    """What was recorded late, or is only listed, may be the parent of what was told."""
    ordered: dict[str, str | None] = {}
    for name in made_from:
        line: list[str] = []
        ancestor: str | None = name
        while ancestor is not None and ancestor in made_from and ancestor not in ordered and ancestor not in line:
            line.append(ancestor)
            ancestor = made_from[ancestor]
        ordered |= {one: made_from[one] for one in reversed(line)}
    return list(ordered.items())


def verify(candidate: Candidate, found: Iterable[CheckpointFile]) -> Verdict:
    """Compare the recorded file list with the store's listing. Without a record, look for what can't be right."""
    files = {f.key: f for f in found}
    if not files:
        return Verdict(is_usable=False, why="no file is left of it")
    # A recorded list of empty files proves nothing: it was made some time after the commit.
    if all(f.size == 0 for f in files.values()):
        return Verdict(is_usable=False, why=f"all {len(files)} files are empty")
    if candidate.expected is None:
        return Verdict(is_usable=True, why=f"{len(files)} files, no recorded list to compare with")
    for expected in candidate.expected:
        file = files.get(expected.key)
        if file is None:
            return Verdict(is_usable=False, why=f"{expected.key} is missing ({len(files)} files there)")
        if file.size != expected.size:
            return Verdict(is_usable=False, why=f"{expected.key} has {file.size} bytes instead of {expected.size}")
        if expected.etag and file.etag and expected.etag != file.etag:
            return Verdict(is_usable=False, why=f"{expected.key} was written again: its etag changed")
    return Verdict(is_usable=True, why=f"all {len(candidate.expected)} files there with their sizes")


def conclude(
    chosen: Candidate | None,
    *,
    verdict: Verdict | None,
    considered: Sequence[Candidate],
    skipped: Sequence[SkippedCheckpoint],
    attempts: Sequence[AttemptCheckpoints],
    policy: RestorePolicy,
) -> RestorePoint:
    """The restore point, or a typed error where going on would lose or ignore a committed checkpoint."""
    if skipped and policy.on_corrupt == "fail":
        raise NoUsableCheckpoint(
            f"Checkpoint {skipped[0].checkpoint} can't be restored",
            known=f"{skipped[0].why}; on_corrupt='fail' forbids going back to an older one",
            change="restore its objects, or set on_corrupt='rollback'",
        )
    if chosen is not None and verdict is not None:
        back = f"; went back over {len(skipped)} unusable" if skipped else ""
        reason = f"restoring {chosen.name} ({policy.mode}, {verdict.why}{back})"
        return RestorePoint(chosen, reason, tuple(skipped))
    if considered or policy.mode == "explicit":
        names = ", ".join(s.checkpoint for s in skipped[:5]) or str(policy.checkpoint)
        raise NoUsableCheckpoint(
            f"None of {len(considered)} committed checkpoints can be restored",
            known=f"{names}; nothing was overwritten",
            change="restore the objects, choose a checkpoint, or start again with on_clear='fresh'",
        )
    # Records alone prove commits too: a manifest that is gone is no reason to begin again.
    listed = {name for a in attempts if a.manifest for name in a.manifest.names}
    known = len(listed or {e.checkpoint for a in attempts for e in a.recorded})
    if known and policy.mode == "best":
        raise NoUsableCheckpoint(
            f"No checkpoint reports a finite {policy.metric}",
            known=f"{known} committed checkpoints",
            change="restore 'latest', or name a metric that the training reports",
        )
    if known:
        raise NoUsableCheckpoint(
            f"All {known} committed checkpoints are in quarantine",
            change="release one, or start again with on_clear='fresh'",
        )
    if not attempts:
        return RestorePoint(None, f"{_FROM_THE_START}there is no earlier attempt")
    return RestorePoint(None, f"{_FROM_THE_START}no committed checkpoint in {len(attempts)} earlier attempts")


def start_manifest(
    attempts: Sequence[AttemptCheckpoints],
    *,
    point: RestorePoint,
    on_disk: frozenset[str],
    quarantined: frozenset[str] = frozenset(),
) -> Manifest:
    """The manifest an attempt writes before it fits: what still exists, with the restore point as the latest.

    Ray refuses to start when any listed directory is gone, so unusable and vanished ones are left out.
    """
    newest = newest_manifest(attempts)
    left_out = quarantined | {s.checkpoint for s in point.skipped}
    kept = [
        e
        for e in (registration_order(newest.manifest) if newest and newest.manifest else [])
        if e.name in on_disk and e.name not in left_out
    ]
    if point.candidate is None:
        return Manifest()
    latest = ManifestEntry(point.candidate.name, dict(point.candidate.metrics))
    entries = [e for e in kept if e.name != latest.name] + [latest]
    return Manifest(entries=tuple(entries), latest=latest, report_indices=tuple(range(len(entries))))
