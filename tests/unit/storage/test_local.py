"""What only a file system can get wrong."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from airflow_provider.core.errors import BucketNotFound, InvalidConfig, StorePermissionDenied, StoreUnreachable
from airflow_provider.storage.local import LocalObjectStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "exp").mkdir()
    return tmp_path / "exp"


def test_missing_root_is_not_an_empty_store(tmp_path: Path) -> None:
    """An unmounted share must not start an experiment from scratch."""
    store = LocalObjectStore(str(tmp_path / "gone"))
    for ask in (lambda: store.read("x"), lambda: list(store.list("")), lambda: store.write("x", b"1")):
        with pytest.raises(BucketNotFound):
            ask()
    assert not (tmp_path / "gone").exists()


def test_anchor_lets_a_new_experiment_begin(tmp_path: Path) -> None:
    """Below the storage path, the experiment's own folder doesn't exist yet at the first try."""
    store = LocalObjectStore(f"file://{tmp_path}/dag/run/task", anchor=str(tmp_path))
    assert store.read("owners/000001.json") is None
    assert store.list_folders("") == ()
    assert store.create_if_absent("owners/000001.json", b"1")
    assert store.uri == f"file://{tmp_path}/dag/run/task"


def test_links_out_of_the_root_are_refused(root: Path) -> None:
    """A key may not reach another experiment."""
    (root.parent / "other").mkdir()
    (root / "link").symlink_to(root.parent / "other")
    with pytest.raises(InvalidConfig, match="outside"):
        LocalObjectStore(str(root)).write("link/x", b"1")
    with pytest.raises(InvalidConfig):
        LocalObjectStore(str(root)).write(".objectstore/x", b"1")
    assert list((root.parent / "other").iterdir()) == []


def test_nothing_temporary_is_listed_or_left(root: Path) -> None:
    """Ray and people look into this folder too."""
    store = LocalObjectStore(str(root))
    store.write("a", b"1")
    store.create_if_absent("b/c", b"1")
    store.create_if_absent("b/c", b"2")
    store.replace_if_match("a", b"2", etag=store.write("a", b"3"))
    store.copy("a", "d")
    assert [info.key for info in store.list("")] == ["a", "b/c", "d"]
    assert store.list_folders("") == ("b/",)
    assert [path for path in root.rglob("*") if path.suffix in {".tmp", ".now"}] == []


def test_reading_leaves_no_trace(root: Path) -> None:
    """A sensor or a warm start reads another's experiment, perhaps without the right to write."""
    (root / "x").write_bytes(b"1")
    found = LocalObjectStore(str(root)).read("x")
    assert found is not None
    assert found.age_s < 60
    assert [path.name for path in root.iterdir()] == ["x"]


def test_listing_is_sorted_by_bytes(root: Path) -> None:
    """As AWS sorts, not folder by folder."""
    store = LocalObjectStore(str(root))
    for key in ("a/b", "a b", "a.b", "aé", "a0"):
        store.write(key, b"1")
    assert [info.key for info in store.list("a")] == ["a b", "a.b", "a/b", "a0", "aé"]


def test_create_survives_a_repeated_nfs_link(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a link whose reply was lost: EEXIST, though it is our file."""
    link = os.link

    def linked_but_lost(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "exists")

    monkeypatch.setattr(os, "link", linked_but_lost)
    assert LocalObjectStore(str(root)).create_if_absent("x", b"1") is True


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EPERM, InvalidConfig),
        (errno.EOPNOTSUPP, InvalidConfig),
        (errno.EACCES, StorePermissionDenied),
        (errno.EROFS, StorePermissionDenied),
        (errno.ENOSPC, StoreUnreachable),
        (errno.ESTALE, StoreUnreachable),
        (errno.EIO, StoreUnreachable),
    ],
)
def test_file_system_errors_are_typed(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    """A full disk is tried again, a missing right or hard links that don't exist are not."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(expected):
        LocalObjectStore(str(root)).create_if_absent("x", b"1")


def test_a_name_is_a_file_or_a_folder(root: Path) -> None:
    """A limit of file systems that is said, not hit as a traceback."""
    store = LocalObjectStore(str(root))
    store.write("a", b"1")
    with pytest.raises(InvalidConfig, match="share a name"):
        store.write("a/b", b"1")
    with pytest.raises(InvalidConfig):
        store.write("n" * 300, b"1")


def _create(root: str, number: int) -> bool:
    return LocalObjectStore(root).create_if_absent("claim.json", f"{number}".encode())


def test_one_winner_across_processes(root: Path) -> None:
    """Airflow's tries are processes, not threads."""
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        won = list(pool.map(_create, [str(root)] * 8, range(8)))
    assert won.count(True) == 1
    assert (root / "claim.json").read_bytes() == f"{won.index(True)}".encode()
