"""A warm start on the cluster: the parent is given while nothing is committed, and never becomes one of the run's own."""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import ray.train
from ray.train.v2._internal.execution import context as ray_context
from ray.train.v2._internal.execution.callback import WorkerCallback
from ray.train.v2._internal.execution.context import TrainContext

from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, NoParentCheckpoint, StorePermissionDenied
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.lineage import AttemptRecords, ExperimentFacts, project
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.core.parent import parent_of
from airflow_provider.core.record_parts import CheckpointFile, WarmStartRecord
from airflow_provider.core.records import RecordSegment, RestoredRecord
from airflow_provider.runtime.events import ReportEvent, append_event
from airflow_provider.runtime.train_v2 import build_run_config
from tests.support.experiment import claim, owner
from tests.support.fit_world import AT, FakeRay, World, dies, ends, fails
from tests.support.fit_world import Killed as DriverKilled
from tests.support.parents import WEIGHTS, bytes_below, folder_of, uri_of, write_experiment

FIRST = "attempts/000001/checkpoint_0"


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """The experiment of an earlier run that committed epochs 0 to 11."""
    return write_experiment(tmp_path / "models" / "earlier", *range(12))


@pytest.fixture
def world(tmp_path: Path, parent: Path) -> World:
    found = World(tmp_path)
    files = [CheckpointFile(key="state.pt", size=len(WEIGHTS), etag="of Airflow's listing")]
    record = parent_of(uri_of(parent, 11), files, metrics={"epoch": 11})
    found.warm_start = WarmStartRecord(parent=record, reason="warm start from it because a test says so")
    return found


def restored(world: World, n: int) -> RestoredRecord:
    found = world.store.read_record(RestoredRecord, layout.restored(1, n))
    assert found is not None
    return found


def test_each_fit_begins_from_the_parent_until_something_is_committed(world: World, parent: Path) -> None:
    before = bytes_below(parent)
    loop, fake = world.attempt(1, fails(FailureKind.NETWORK), fails(FailureKind.NETWORK, 0), ends(1))
    assert loop.run() is None
    uri = uri_of(parent, 11)
    assert fake.parents == [uri, uri, None]
    assert fake.starts == [None, None, FIRST]
    record = restored(world, 1)
    assert (record.checkpoint, record.warm_started_from) == (None, uri)
    assert record.reason.startswith("warm start from it because a test says so")
    manifest = parse_manifest(world.store.read(layout.manifest(1, 1)) or b"", key="m")
    assert manifest.names == (FIRST, "attempts/000001/checkpoint_1"), "the parent is none of the run's own"
    assert bytes_below(parent) == before


def test_the_first_commit_carries_the_edge_into_the_lineage(world: World, parent: Path) -> None:
    loop, _ = world.attempt(1, ends(0, 1))
    loop.run()
    segment = world.store.read_record(RecordSegment, layout.segment(1, 1, "000001"))
    assert segment is not None
    uri = uri_of(parent, 11)
    assert [c.warm_started_from for c in segment.checkpoints] == [uri, None]
    records = AttemptRecords(claim=claim(1, 1), restored=restored(world, 1), segments=(segment,))
    lineage = project(ExperimentFacts("s3://m/child", (owner(1),), (records,)))
    assert [c.parent for c in lineage.checkpoints] == [uri, f"g000001/{FIRST}"]
    assert lineage.attempts[0].warm_started_from == uri


def test_a_late_record_gets_the_edge_from_what_was_restored(world: World, parent: Path) -> None:
    """A driver that dies at once writes no segment: the manifest and restored.json are left."""
    loop, _ = world.attempt(1, dies(0))
    with pytest.raises(DriverKilled):
        loop.run()
    manifest = parse_manifest(world.store.read(layout.manifest(1, 1)) or b"", key="m")
    records = AttemptRecords(claim=claim(1, 1), restored=restored(world, 1), manifest=manifest)
    lineage = project(ExperimentFacts("s3://m/child", (owner(1),), (records,)))
    assert lineage.checkpoints[0].parent == uri_of(parent, 11)


def test_a_retry_with_a_commit_restores_it_and_one_without_gets_the_parent(world: World, parent: Path) -> None:
    first, fake = world.attempt(1, dies())
    with pytest.raises(DriverKilled):
        first.run()
    second, fake = world.attempt(2, dies(0))
    with pytest.raises(DriverKilled):
        second.run()
    assert fake.parents == [uri_of(parent, 11)]
    third, fake = world.attempt(3, ends(1))
    assert third.run() is None
    assert (fake.starts, fake.parents) == (["attempts/000002/checkpoint_0"], [None])
    assert restored(world, 3).warm_started_from is None


def test_counting_epochs_from_zero_is_no_failed_restore(world: World) -> None:
    """The parent's `epoch` is 11 and the declared progress metric begins at 0 again."""

    def counts_anew(fake: FakeRay) -> None:
        append_event(fake.events_path, ReportEvent(at=AT, metrics={"epoch": 0}))
        fake.commit(0)

    loop, _ = world.attempt(1, counts_anew)
    assert loop.run() is None
    assert loop.scribe.proof is None


@pytest.mark.parametrize("damage", ["deleted", "torn"])
def test_a_parent_that_changed_since_the_claim_ends_the_attempt_before_any_worker(
    world: World, parent: Path, damage: str
) -> None:
    if damage == "deleted":
        shutil.rmtree(folder_of(parent, 11))
    else:
        (folder_of(parent, 11) / "state.pt").write_bytes(b"torn")
    loop, fake = world.attempt(1, ends(0))
    with pytest.raises(NoParentCheckpoint) as error:
        loop.run()
    assert fake.starts == []
    assert error.value.failure.kind is FailureKind.CHECKPOINT


def test_a_decision_for_no_parent_is_said_and_trains_from_the_start(world: World) -> None:
    world.warm_start = WarmStartRecord(parent=None, reason="no warm start from x: from the start, missing='fresh'")
    loop, fake = world.attempt(1, ends(0))
    assert loop.run() is None
    assert fake.parents == [None]
    assert "no warm start from x" in restored(world, 1).reason


# --- in Ray's own objects --------------------------------------------------------------------------------------------


@pytest.fixture
def spec(world: World) -> JobSpec:
    loop, _ = world.attempt(1)
    return loop.spec


def train_context(monkeypatch: pytest.MonkeyPatch, checkpoint: Any) -> TrainContext:
    """Ray's real context of a worker, without a cluster behind it."""
    values = {field.name: None for field in fields(TrainContext) if field.init}
    made = TrainContext(**{**values, "checkpoint": checkpoint})
    monkeypatch.setattr(ray_context, "_train_context", made)
    return made


def callback_of(spec: JobSpec) -> Any:
    """As it reaches a worker: pickled with the run config."""
    config = build_run_config(spec, events_path="/nowhere", is_fenced=True)
    return cloudpickle.loads(cloudpickle.dumps(config)).callbacks[0]


def test_the_worker_sees_the_parent_where_ray_has_no_checkpoint(
    spec: JobSpec, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = callback_of(spec)
    context = train_context(monkeypatch, None)
    callback.after_init_train_context()
    assert context.checkpoint is not None
    assert context.checkpoint.path == str(folder_of(parent, 11))
    own = ray.train.Checkpoint("/own")
    context = train_context(monkeypatch, own)
    callback.after_init_train_context()
    assert context.checkpoint is own


def test_the_parent_can_be_read_through_the_fence_and_not_deleted(spec: JobSpec, parent: Path) -> None:
    before = bytes_below(parent)
    checkpoint = callback_of(spec).parent
    with checkpoint.as_directory() as folder:
        assert (Path(folder) / "state.pt").read_bytes() == WEIGHTS
    with pytest.raises(StorePermissionDenied):
        checkpoint.filesystem.delete_dir(checkpoint.path)
    assert bytes_below(parent) == before


def test_a_ray_without_the_seam_is_refused_before_it_trains_from_scratch(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(WorkerCallback, "after_init_train_context")
    with pytest.raises(InvalidConfig, match="after_init_train_context"):
        build_run_config(spec, events_path="/nowhere", is_fenced=True)


def test_without_a_warm_start_nothing_is_given(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.warm_start = None
    loop, _ = world.attempt(1)
    context = train_context(monkeypatch, None)
    callback_of(loop.spec).after_init_train_context()
    assert context.checkpoint is None
