"""Finished experiments on a shared folder, as earlier DAG runs leave them: what a warm start may begin from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider.core import layout
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.record_parts import CheckpointFile
from airflow_provider.core.records import CheckpointEntry, RecordSegment
from airflow_provider.storage.local import LocalObjectStore
from tests.support.experiment import NOW, claim, owner

WEIGHTS = b"weights!"


def checkpoint_name(epoch: int, *, attempt: int = 1) -> str:
    """Relative to the generation's folder."""
    return f"attempts/{attempt:06d}/checkpoint_{epoch}"


def write_experiment(
    root: Path, *epochs: int, generation: int = 1, attempt: int = 1, metrics: Mapping[str, Any] | None = None
) -> Path:
    """One attempt that committed these epochs, with file lists; each epoch's loss is `10 - epoch` unless said otherwise."""
    store = LocalObjectStore(str(root), anchor=str(root.parent.parent))
    store.create_if_absent(layout.owner(1), owner(1).body())
    store.write(layout.claim(generation, attempt), claim(generation, attempt).body())
    entries, recorded = [], []
    for epoch in epochs:
        name = checkpoint_name(epoch, attempt=attempt)
        etag = store.write(f"{layout.generation(generation)}/{name}/state.pt", WEIGHTS)
        values = {"epoch": epoch, "loss": 10.0 - epoch, **(metrics or {})}
        entries.append(ManifestEntry(name, values))
        files = (CheckpointFile(key="state.pt", size=len(WEIGHTS), etag=etag),)
        recorded.append(CheckpointEntry(checkpoint=name, files=files, metrics=values, reported_at=NOW))
    if entries:
        manifest = Manifest(entries=tuple(entries), latest=entries[-1])
        store.write(layout.manifest(generation, attempt), manifest.body(ray_version="2.60.0"))
        segment = RecordSegment(checkpoints=tuple(recorded), written_at=NOW)
        store.write(layout.segment(generation, attempt, "000001"), segment.body())
    return root


def uri_of(root: Path, epoch: int, *, generation: int = 1, attempt: int = 1) -> str:
    """URI of a checkpoint of such an experiment."""
    return f"file://{root}/{layout.generation(generation)}/{checkpoint_name(epoch, attempt=attempt)}"


def folder_of(root: Path, epoch: int, **ref: int) -> Path:
    """Its folder."""
    return Path(uri_of(root, epoch, **ref).removeprefix("file://"))


def bytes_below(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file: what must not change under a warm start."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }
