"""The fence on a local file system: who may create and delete, and where this attempt's things lie."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import ray.train
from ray.train.v2._internal.execution.storage import delete_fs_path

from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, StorePermissionDenied, Superseded
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.spec import StorageConfig
from airflow_provider.runtime.fencing import AttemptStorageContext, Fence, FencedLocalFileSystem, FencedS3FileSystem
from airflow_provider.runtime.storage import s3_options

OWN = AttemptRef(generation=2, attempt=3)


def fenced(root: Path) -> FencedLocalFileSystem:
    return FencedLocalFileSystem(Fence(str(root), OWN))


def claim(root: Path, g: int, n: int) -> None:
    path = root / layout.claim(g, n)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")


def local_checkpoint(folder: Path) -> ray.train.Checkpoint:
    folder.mkdir(parents=True)
    (folder / "weights").write_text("1")
    return ray.train.Checkpoint.from_directory(folder)


@pytest.mark.parametrize(("g", "n"), [(2, 4), (3, 1)], ids=["next attempt", "next generation"])
def test_newer_claim_refuses_creation_and_deletion(tmp_path: Path, g: int, n: int) -> None:
    """G1: only the newest claim may commit."""
    filesystem, target = fenced(tmp_path), tmp_path / "g000002" / "attempts" / "000003" / "checkpoint_1"
    filesystem.create_dir(str(target))
    claim(tmp_path, g, n)
    with pytest.raises(Superseded, match="newer claim exists"):
        filesystem.create_dir(str(target))
    for delete in (filesystem.delete_dir, filesystem.delete_dir_contents, filesystem.delete_file):
        with pytest.raises(Superseded):
            delete(str(target))
    assert target.is_dir()


def test_older_claims_and_other_files_change_nothing(tmp_path: Path) -> None:
    claim(tmp_path, 2, 2)
    claim(tmp_path, 1, 9)
    filesystem, target = fenced(tmp_path), tmp_path / "g000002" / "attempts" / "000003" / "checkpoint_1"
    filesystem.create_dir(str(target))
    filesystem.delete_dir(str(target))
    assert not target.exists()


@pytest.mark.parametrize(
    "path", ["elsewhere/parent", "g000001/checkpoint_1", "g000002", "g000002/attempts", "g000002/../owners", "owners"]
)
def test_nothing_outside_the_generation_is_deleted(tmp_path: Path, path: str) -> None:
    """A warm start's parent checkpoint is listed in our manifest, so retention tries to delete it."""
    target = tmp_path / path
    target.mkdir(parents=True, exist_ok=True)
    with pytest.raises(StorePermissionDenied, match="outside"):
        fenced(tmp_path).delete_dir(str(target))
    assert target.is_dir()


def test_retention_of_ray_survives_the_refusal(tmp_path: Path) -> None:
    """Ray logs the refusal and goes on: the parent stays, the training too."""
    parent = tmp_path / "other" / "checkpoint_1"
    parent.mkdir(parents=True)
    delete_fs_path(fenced(tmp_path / "mine"), str(parent))
    assert parent.is_dir()


def test_unreadable_claim_is_not_permission(tmp_path: Path) -> None:
    """Not knowing is not holding: a claim that can't be looked up refuses."""
    (tmp_path / "g000002" / "attempts" / "000004").mkdir(parents=True)
    (tmp_path / "g000002" / "attempts" / "000004" / "claim.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        fenced(tmp_path).create_dir(str(tmp_path / "g000002" / "x"))


def test_checkpoints_go_to_the_attempts_own_folder(tmp_path: Path) -> None:
    """G12: a name that two attempts report mixes nothing."""
    context = AttemptStorageContext(fenced(tmp_path))
    stored = context.persist_current_checkpoint(local_checkpoint(tmp_path / "local"), "checkpoint_7")
    assert stored.path == str(tmp_path / "g000002" / "attempts" / "000003" / "checkpoint_7")
    name = context.extract_checkpoint_dir_name_from_path(stored.path)
    assert name == "attempts/000003/checkpoint_7"
    assert context.build_checkpoint_path_from_name(name) == stored.path
    assert context.checkpoint_manager_snapshot_path == str(tmp_path / layout.manifest(2, 3))


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "records", "records/1"])
def test_checkpoint_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    context = AttemptStorageContext(fenced(tmp_path / "e"))
    with pytest.raises(InvalidConfig, match="checkpoint_dir_name"):
        context.persist_current_checkpoint(local_checkpoint(tmp_path / "local"), name)


def test_superseded_upload_writes_nothing(tmp_path: Path) -> None:
    context = AttemptStorageContext(fenced(tmp_path))
    claim(tmp_path, 2, 4)
    with pytest.raises(Superseded):
        context.persist_current_checkpoint(local_checkpoint(tmp_path / "local"), "checkpoint_7")
    assert not (tmp_path / "g000002" / "attempts" / "000003").exists()


def test_fence_survives_pickling_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """G11: it travels to each worker; each finds the cluster's identity by itself."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    options = s3_options(StorageConfig(endpoint_url="http://127.0.0.1:9", region="us-east-1"), bucket="b")
    filesystem = FencedS3FileSystem(Fence("b/x", OWN), **options)
    body = pickle.dumps(filesystem)
    assert b"very-secret" not in body
    copy = pickle.loads(body)  # noqa: S301 our own
    assert copy.fence == filesystem.fence
    assert copy == filesystem


def test_an_upload_function_of_the_training_is_given_a_name_of_the_attempt_s_own(tmp_path: Path) -> None:
    """G12: two attempts that report one name through one function write to different folders."""
    context = AttemptStorageContext(fenced(tmp_path))
    local, asked = local_checkpoint(tmp_path / "local"), list[str]()

    def upload(checkpoint: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
        """The author's."""
        asked.append(name)
        return checkpoint

    guarded = context.guarded(upload)
    assert guarded(local, "checkpoint_7") is local
    assert asked == ["attempts/000003/checkpoint_7"]
    assert guarded.__doc__ == "The author's."
    with pytest.raises(InvalidConfig, match="checkpoint_dir_name"):
        guarded(local, "../checkpoint_7")
    claim(tmp_path, 2, 4)
    with pytest.raises(Superseded):
        guarded(local, "checkpoint_8")
    assert len(asked) == 1, "a superseded worker uploads nothing"
