"""Ray's own CheckpointManager reads the manifests that we write."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.training_report import _TrainingReport

from airflow_provider.core import layout
from airflow_provider.core.manifest import Manifest, ManifestEntry, by_score, parse_manifest
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.runtime.fencing import AttemptStorageContext, Fence, FencedLocalFileSystem

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray calls deprecated parts of pydantic


def loaded(root: Path, manifest: Manifest, *, attempt: int, **config: Any) -> CheckpointManager:
    for name in manifest.names:
        (root / "g000001" / name).mkdir(parents=True, exist_ok=True)
    path = root / layout.manifest(1, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(manifest.body(ray_version=ray.__version__))
    context = AttemptStorageContext(FencedLocalFileSystem(Fence(str(root), AttemptRef(generation=1, attempt=attempt))))

    async def load() -> CheckpointManager:
        return CheckpointManager(ray.train.CheckpointConfig(**config), context)

    return asyncio.run(load())


ENTRIES = tuple(ManifestEntry(f"attempts/{n:06d}/checkpoint_{i}", {"epoch": i}) for n, i in ((1, 0), (1, 1), (2, 2)))


def test_nested_names_of_several_attempts_load_and_survive_the_round_trip(tmp_path: Path) -> None:
    manager = loaded(tmp_path, Manifest(ENTRIES, ENTRIES[1], (0, 1, 2)), attempt=3)
    assert manager.latest_checkpoint_result.metrics == {"epoch": 1}
    assert manager.latest_checkpoint_result.checkpoint.path.endswith("g000001/attempts/000001/checkpoint_1")
    again = parse_manifest(manager._save_state().encode(), key="x")
    assert again.names == tuple(e.name for e in ENTRIES)
    assert again.latest == ENTRIES[1]


def test_empty_manifest_starts_from_scratch(tmp_path: Path) -> None:
    manager = loaded(tmp_path, Manifest(), attempt=1)
    assert manager.latest_checkpoint_result is None


def test_published_manifest_is_read_by_plain_ray(tmp_path: Path) -> None:
    """`Result.from_path` on the generation's folder: no class of ours involved."""
    loaded(tmp_path, Manifest(ENTRIES, ENTRIES[2], (0, 1, 2)), attempt=2)
    (tmp_path / layout.published_manifest(1)).write_bytes((tmp_path / layout.manifest(1, 2)).read_bytes())
    result = ray.train.Result.from_path(str(tmp_path / "g000001"))
    assert result.checkpoint.path.endswith("attempts/000002/checkpoint_2")
    assert len(result.best_checkpoints) == 3


def test_ray_writes_the_manifest_to_the_attempts_path(tmp_path: Path) -> None:
    manager = loaded(tmp_path, Manifest(ENTRIES, ENTRIES[2], (0, 1, 2)), attempt=4)
    manager._write_state_to_storage()
    written = json.loads((tmp_path / layout.manifest(1, 4)).read_bytes())
    assert [e["checkpoint_dir_name"] for e in written["checkpoint_results"]] == [e.name for e in ENTRIES]
    assert not (tmp_path / layout.published_manifest(1)).exists()


@pytest.mark.parametrize(
    ("order", "values", "reported", "kept"),
    [
        ("max", [0.9, 0.6], 0.7, {0.9, 0.7}),
        ("min", [0.1, 0.6], 0.5, {0.1, 0.5}),
        ("max", [0.9, 0.6, None], 0.7, {0.9, 0.7}),
        ("min", [0.1, None], 0.5, {0.1, 0.5}),
    ],
    ids=["best was first", "lowest was first", "the latest is no number", "the latest of the lowest is no number"],
)
def test_the_best_by_score_survives_the_first_report_after_a_restore(
    tmp_path: Path, order: str, values: list[float | None], reported: float, kept: set[float]
) -> None:
    """Ray inserts a new checkpoint into a list that it takes to be sorted, and drops from its front. It writes NaN as null."""
    entries = tuple(ManifestEntry(f"attempts/000001/c{i}", {"val/acc": value}) for i, value in enumerate(values))
    written = by_score(Manifest(entries, entries[-1], tuple(range(len(entries)))), attribute="val/acc", order=order)
    score = {"checkpoint_score_attribute": "val/acc", "checkpoint_score_order": order}
    manager = loaded(tmp_path, written, attempt=2, num_to_keep=1, **score)

    new = tmp_path / "g000001/attempts/000002/new"
    new.mkdir(parents=True)

    async def report() -> None:
        checkpoint = ray.train.Checkpoint(str(new), manager._storage_context.storage_filesystem)
        manager.register_checkpoint(_TrainingReport(checkpoint, {"val/acc": reported}, None))

    asyncio.run(report())
    assert {result.metrics["val/acc"] for result in manager._checkpoint_results} == kept
