"""Ray Train V2's manifest of committed checkpoints: read every schema since 2.51, always write the 2.60 shape."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider.core.errors import RecordUnreadable
from airflow_provider.core.field_types import checked_name
from airflow_provider.core.json_input import UnreadableJson, read_json
from airflow_provider.core.strict_json import shortened

_NO_FOLDERS = frozenset({"", ".", ".."})


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One committed checkpoint: directory name relative to the run directory, and its metrics."""

    name: str
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """Committed checkpoints in Ray's order (registration, or ascending score), and the latest registered one."""

    entries: tuple[ManifestEntry, ...] = ()
    latest: ManifestEntry | None = None
    report_indices: tuple[int, ...] = ()
    ray_version: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Directory names of all committed checkpoints."""
        return tuple(entry.name for entry in self.entries)

    def body(self, *, ray_version: str) -> bytes:
        """The manifest in the 2.60 shape, which 2.51 to 2.60 load. Reports are numbered from 0 where unknown."""
        is_numbered = len(self.report_indices) == len(self.entries)
        indices = self.report_indices if is_numbered else tuple(range(len(self.entries)))
        latest = _dump(self.latest) if self.latest else None
        return json.dumps(
            {
                "ray_version": ray_version,
                "checkpoint_results": [_dump(entry) for entry in self.entries],
                "checkpoint_report_indices": list(indices),
                "latest_checkpoint_result": latest,
                "pending_training_results": [],
                "pending_validation_specs": [],
                "current_report_index": (max(indices) + 1) if indices else 0,
                "validated_checkpoint_dir_names": [],
                "timed_out_validation_checkpoint_dir_names": [],
                "failed_validation_checkpoint_dir_names": [],
            }
        ).encode()


def best_name(manifest: Manifest, *, attribute: str | None, order: str) -> str | None:
    """The listed checkpoint with the best finite score; None without a score attribute or a number."""
    if attribute is None:
        return None
    scored = [(score, e.name) for e in manifest.entries if (score := finite(e.metrics.get(attribute))) is not None]
    if not scored:
        return None
    pick = max if order == "max" else min
    return pick(scored, key=lambda pair: pair[0])[1]


def by_score(manifest: Manifest, *, attribute: str | None, order: str) -> Manifest:
    """The manifest as Ray keeps it where it has a score: worst first, and a score that is no number as NaN, the worst of all.

    Ray takes a list that it loads to be sorted: it would drop the best of another. It writes NaN as null, which it then
    can't compare.
    """
    if attribute is None or len(manifest.report_indices) != len(manifest.entries):
        return manifest
    scorable = {e.name: ManifestEntry(e.name, _with_number(e.metrics, attribute)) for e in manifest.entries}
    factor = 1.0 if order == "max" else -1.0

    def rank(pair: tuple[int, ManifestEntry]) -> tuple[bool, float, int]:
        score = factor * float(_metric(scorable[pair[1].name].metrics, attribute))
        return (False, 0.0, pair[0]) if math.isnan(score) else (True, score, pair[0])

    ranked = sorted(zip(manifest.report_indices, manifest.entries, strict=True), key=rank)
    latest = scorable.get(manifest.latest.name, manifest.latest) if manifest.latest else None
    entries = tuple(scorable[entry.name] for _, entry in ranked)
    return replace(manifest, entries=entries, latest=latest, report_indices=tuple(index for index, _ in ranked))


def _metric(metrics: dict[str, Any], name: str) -> Any:
    """A metric by its flat name, as Ray looks for a score; one that is not there counts as minus infinity with it."""
    if name in metrics:
        return metrics[name]
    head, _, rest = name.partition("/")
    return _metric(metrics[head], rest) if rest and isinstance(metrics.get(head), dict) else -math.inf


def _with_number(metrics: dict[str, Any], name: str) -> dict[str, Any]:
    if name in metrics:
        value = metrics[name]
        return metrics if _is_number(value) else {**metrics, name: math.nan}
    head, _, rest = name.partition("/")
    if rest and isinstance(metrics.get(head), dict):
        return {**metrics, head: _with_number(metrics[head], rest)}
    return metrics


def _is_number(value: object) -> bool:
    """Whether Ray can multiply it by a float."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 1_000)


def finite(value: object) -> float | None:
    """A metric as a number to rank by; None for NaN, infinities, booleans and all that is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON knows integers that no float holds
        return None
    return number if math.isfinite(number) else None


def _dump(entry: ManifestEntry) -> dict[str, Any]:
    return {"version": 0, "checkpoint_dir_name": entry.name, "metrics": entry.metrics}


def parse_manifest(body: bytes, *, key: str) -> Manifest:
    """Read a manifest of any Ray since 2.51. Raises RecordUnreadable when torn, empty or of another shape."""
    try:
        data = read_json(body)
    except UnreadableJson as error:
        raise _unreadable(key, str(error)) from error
    if not isinstance(data, dict) or not isinstance(data.get("checkpoint_results"), list):
        raise _unreadable(key, "no list of checkpoint_results")
    entries = tuple(_entry(item, key=key) for item in data["checkpoint_results"])
    latest_raw = data.get("latest_checkpoint_result")
    indices = data.get("checkpoint_report_indices")
    return Manifest(
        entries=entries,
        latest=_entry(latest_raw, key=key) if latest_raw is not None else None,
        report_indices=tuple(i for i in indices if _is_index(i)) if isinstance(indices, list) else (),
        ray_version=shortened(version, limit=100) if isinstance(version := data.get("ray_version"), str) else "",
    )


def _entry(item: object, *, key: str) -> ManifestEntry:
    if isinstance(item, str):  # Ray nests pydantic models as JSON text in some releases
        try:
            item = read_json(item)
        except UnreadableJson as error:
            raise _unreadable(key, "a checkpoint entry that is not JSON") from error
    if not isinstance(item, dict) or not isinstance(item.get("checkpoint_dir_name"), str):
        raise _unreadable(key, "a checkpoint entry without checkpoint_dir_name")
    name: str = item["checkpoint_dir_name"]
    if not _NO_FOLDERS.isdisjoint(name.split("/")):
        raise _unreadable(key, f"a checkpoint name that leaves the run directory: {name[:80]!r}")
    try:
        checked_name(name)
    except ValueError as error:
        raise _unreadable(key, str(error)) from None
    metrics = item.get("metrics")
    return ManifestEntry(name=name, metrics=metrics if isinstance(metrics, dict) else {})


def _is_index(value: object) -> bool:
    return type(value) is int and abs(value) < 2**63


def _unreadable(key: str, seen: str) -> RecordUnreadable:
    return RecordUnreadable(
        f"The checkpoint manifest {key} can't be read",
        known=f"it holds {seen}; nothing was overwritten and nothing was started",
        change="restore the object from the bucket's versions, or choose a checkpoint explicitly",
        key=key,
    )
