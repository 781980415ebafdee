"""Folders that no package can be made of: a typed error in good time, never a hang and never a full memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from airflow_provider.client import packages
from airflow_provider.client.packages import package_directory
from airflow_provider.core.errors import FileChanged, InvalidConfig
from airflow_provider.hooks.job_package import code_package


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    root.mkdir()
    (root / "train.py").write_text("x = 1")
    return root


def test_a_huge_file_is_refused_before_it_is_read(folder: Path) -> None:
    """50 GB on paper; reading them would end the worker."""
    with (folder / "data.bin").open("wb") as file:
        file.truncate(50 * 1024**3)
    with pytest.raises(InvalidConfig, match=r"over the limit.*data\.bin \(53,687,091,200 bytes\)"):
        package_directory(folder)


def test_a_name_that_is_not_utf8_is_named(folder: Path) -> None:
    (Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt"))).write_text("x")
    with pytest.raises(InvalidConfig, match="caf\ufffd\\.txt is not UTF-8") as caught:
        package_directory(folder)
    str(caught.value).encode()
    assert package_directory(folder, excludes=["caf*"]).num_files == 1


def test_fifos_and_sockets_are_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a FIFO would wait for a writer for ever."""
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / ".gitignore")
    monkeypatch.chdir(folder)  # the address of a socket has at most 108 bytes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert package_directory(folder).num_files == 1


def test_a_file_that_became_a_fifo_does_not_hang(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def swap(path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    after_walk(monkeypatch, swap)
    with pytest.raises(FileChanged, match="no regular file"):
        package_directory(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.unlink(), "gone"),
        (lambda path: path.write_text("longer than it was"), "size"),
        (lambda path: path.write_text(""), "another"),
        (lambda path: os.utime(path, ns=(0, 0)), "time"),
    ],
)
def test_a_file_that_changes_meanwhile_is_tried_again_by_the_next_try(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: object, words: str
) -> None:
    """A deployment under a running task: the package would be half old, half new."""
    after_walk(monkeypatch, change)
    with pytest.raises(FileChanged, match=rf"train\.py changed.*{words}") as caught:
        package_directory(folder)
    assert caught.value.kind.is_retryable


def after_walk(monkeypatch: pytest.MonkeyPatch, change: object) -> None:
    entry = packages._entry

    def then(name: str, path: Path) -> object:
        found = entry(name, path)
        change(path)  # type: ignore[operator]
        return found

    monkeypatch.setattr(packages, "_entry", then)


def test_a_folder_that_goes_away_during_the_walk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sub").mkdir()
    children = packages._children

    def then(path: Path) -> list[Path]:
        if path.name == "sub":
            path.rmdir()
        return children(path)

    monkeypatch.setattr(packages, "_children", then)
    with pytest.raises(FileChanged, match="went away"):
        package_directory(folder)


def test_too_many_files_are_counted_and_not_collected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MAX_FILES", 5)
    for number in range(10):
        (folder / f"{number}.txt").write_text("")
    with pytest.raises(InvalidConfig, match="more than 5 files"):
        package_directory(folder)
    assert package_directory(folder, excludes=["*.txt"]).num_files == 1


def test_an_endless_ignore_file_is_refused(folder: Path) -> None:
    with (folder / ".rayignore").open("wb") as file:
        file.truncate(50 * 1024**3)
    with pytest.raises(InvalidConfig, match=r"\.rayignore has more than"):
        package_directory(folder)


@pytest.mark.parametrize("name", ["a" * 5_000, "a\0b", "\ud800", "x/" * 5_000])
def test_a_path_that_no_file_system_takes_is_no_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfig, match="not a directory"):
        code_package(name, dag_folder=tmp_path)
    with pytest.raises(InvalidConfig, match="does not exist"):
        package_directory(tmp_path / name)
