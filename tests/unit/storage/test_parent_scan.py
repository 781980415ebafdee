"""What lies behind a parent's URI, read from a real folder: found, torn, deleted, foreign, unreadable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import ForeignLayout, InvalidConfig, RecordUnreadable, StorePermissionDenied
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.parent import Look, Unusable, Usable
from airflow_provider.core.records import QuarantineRecord
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.storage.local import LocalObjectStore
from airflow_provider.storage.parent_scan import ParentScan
from tests.support.experiment import NOW
from tests.support.parents import WEIGHTS, checkpoint_name, folder_of, uri_of, write_experiment

LATEST = RestorePolicy()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An experiment of an earlier run that committed epochs 0 to 2."""
    return write_experiment(tmp_path / "train" / "run-1", 0, 1, 2)


def scan(root: Path, policy: RestorePolicy = LATEST) -> ParentScan:
    anchor = str(root.parent.parent)
    return ParentScan(lambda uri: LocalObjectStore(uri, anchor=anchor), policy=policy)


def look(root: Path, uri: str | None = None, policy: RestorePolicy = LATEST) -> Look:
    return scan(root, policy).look((uri or str(root)).removeprefix("file://"))


def used(found: Look) -> str:
    assert isinstance(found, Usable), found
    return found.parent.uri


def why_not(found: Look) -> str:
    assert isinstance(found, Unusable), found
    return found.why


def test_an_experiment_gives_its_latest_verified_checkpoint_with_its_files(root: Path) -> None:
    found = look(root)
    assert used(found) == uri_of(root, 2)
    assert isinstance(found, Usable)
    assert [(f.key, f.size) for f in found.parent.files] == [("state.pt", len(WEIGHTS))]
    assert found.parent.files[0].etag
    assert found.parent.metrics["epoch"] == 2
    assert "latest committed" in found.why


def test_or_its_best_by_metric(root: Path) -> None:
    assert used(look(root, policy=RestorePolicy(mode="best", metric="loss", order="max"))) == uri_of(root, 0)


def test_a_torn_newest_checkpoint_is_passed_over_as_in_a_restore(root: Path) -> None:
    (folder_of(root, 2) / "state.pt").write_bytes(b"torn")
    found = look(root)
    assert used(found) == uri_of(root, 1)
    assert isinstance(found, Usable)
    assert "1 newer ones can't be used" in found.why


def test_a_fresh_generation_without_commits_leaves_the_one_before(root: Path) -> None:
    write_experiment(root, generation=2)
    assert used(look(root)) == uri_of(root, 2)
    write_experiment(root, 7, generation=2)
    assert used(look(root)) == uri_of(root, 7, generation=2)


def test_nothing_committed_and_everything_torn_are_reasons_and_no_errors(root: Path, tmp_path: Path) -> None:
    assert why_not(look(write_experiment(tmp_path / "train" / "run-0"))) == "no committed checkpoint"
    for epoch in range(3):
        shutil.rmtree(folder_of(root, epoch))
    assert "None of 3 committed checkpoints" in why_not(look(root))


def test_a_named_checkpoint_is_verified_against_its_experiments_records(root: Path) -> None:
    assert used(look(root, uri_of(root, 1))) == uri_of(root, 1)
    (folder_of(root, 1) / "state.pt").write_bytes(b"torn")
    assert "not those that were committed" in why_not(look(root, uri_of(root, 1)))
    shutil.rmtree(folder_of(root, 1))
    assert "gone" in why_not(look(root, uri_of(root, 1)))


def test_a_checkpoint_that_was_never_committed_is_no_parent(root: Path) -> None:
    folder = folder_of(root, 9)
    folder.mkdir()
    (folder / "state.pt").write_bytes(WEIGHTS)
    assert "never committed" in why_not(look(root, uri_of(root, 9)))


def test_a_quarantined_checkpoint_is_no_parent(root: Path) -> None:
    name = checkpoint_name(2)
    record = QuarantineRecord(checkpoint=name, reason="poison", attempt=1, created_at=NOW)
    LocalObjectStore(str(root)).write(layout.quarantine(1, name), record.body())
    assert used(look(root)) == uri_of(root, 1)
    assert "quarantine" in why_not(look(root, uri_of(root, 2)))


def test_a_torn_manifest_is_never_taken_for_nothing(root: Path) -> None:
    (root / layout.manifest(1, 1)).write_bytes(b"{")
    with pytest.raises(RecordUnreadable):
        look(root)
    with pytest.raises(RecordUnreadable):
        look(root, uri_of(root, 1))


def test_a_folder_that_must_not_be_read_is_never_taken_for_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StorePermissionDenied("no")

    monkeypatch.setattr(LocalObjectStore, "list_folder", refuse)
    with pytest.raises(StorePermissionDenied):
        look(root)


def test_a_plain_folder_of_files_is_a_checkpoint(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "base" / "v3"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "model.pt").write_bytes(b"m")
    found = look(root, str(folder))
    assert used(found) == f"file://{folder}"
    assert isinstance(found, Usable)
    assert [f.key for f in found.parent.files] == ["inner/model.pt"]
    (folder / "inner" / "model.pt").write_bytes(b"")
    assert "empty" in why_not(look(root, str(folder)))


def test_a_plain_run_of_ray_gives_what_its_manifest_lists(root: Path, tmp_path: Path) -> None:
    run = tmp_path / "plain" / "run"
    for name in ("checkpoint_a", "checkpoint_b", "checkpoint_c"):
        (run / name).mkdir(parents=True)
        (run / name / "state.pt").write_bytes(WEIGHTS)
    entries = tuple(ManifestEntry(n, {"loss": loss}) for n, loss in (("checkpoint_a", 1.0), ("checkpoint_b", 2.0)))
    body = Manifest(entries=entries, latest=entries[-1]).body(ray_version="2.60.0")
    (run / layout.MANIFEST).write_bytes(body)
    assert used(look(root, str(run))) == f"file://{run}/checkpoint_b"
    assert used(look(root, f"{run}/checkpoint_a")) == f"file://{run}/checkpoint_a"
    assert "not committed" in why_not(look(root, f"{run}/checkpoint_c"))


def test_nothing_there_and_a_single_file_are_told_apart(root: Path, tmp_path: Path) -> None:
    assert why_not(look(root, str(tmp_path / "gone"))) == "nothing is there"
    (tmp_path / "model.ckpt").write_bytes(b"m")
    with pytest.raises(ForeignLayout, match="single file"):
        look(root, str(tmp_path / "model.ckpt"))


@pytest.mark.parametrize("below", ["", "train", "train/run-1/g000001", "train/run-1/g000001/attempts/000001"])
def test_a_folder_that_holds_many_checkpoints_is_not_taken_for_one(root: Path, tmp_path: Path, below: str) -> None:
    with pytest.raises(ForeignLayout, match=r"a folder of experiments|a part of the experiment"):
        look(root, str(tmp_path / below))


def test_another_frameworks_folder_is_refused(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mlflow"
    folder.mkdir()
    (folder / "MLmodel").write_bytes(b"flavors:")
    with pytest.raises(ForeignLayout, match="MLflow"):
        look(root, str(folder))


def test_a_v1_run_can_be_read_or_says_why_not(root: Path, tmp_path: Path) -> None:
    run = tmp_path / "v1run"
    run.mkdir()
    (run / "trainer.pkl").write_bytes(b"x")
    with pytest.raises(RecordUnreadable, match=r"tuner\.pkl"):
        look(root, str(run))
    with pytest.raises(InvalidConfig, match="best"):
        look(root, str(run), RestorePolicy(mode="best", metric="loss"))


def test_a_recorded_parent_that_was_written_again_is_noticed(root: Path) -> None:
    found = look(root)
    assert isinstance(found, Usable)
    assert scan(root).verify(found.parent).is_usable
    (folder_of(root, 2) / "state.pt").write_bytes(WEIGHTS[::-1])
    assert "written again" in scan(root).verify(found.parent).why
    shutil.rmtree(folder_of(root, 2))
    assert "no file is left" in scan(root).verify(found.parent).why
