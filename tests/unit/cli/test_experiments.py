"""The list of experiments: found wherever they lie below a path, newest first, damage shown and not hidden."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider.cli import discovery
from airflow_provider.cli.exit_codes import NOT_FOUND, OK, PROBLEM, USAGE
from airflow_provider.core import layout
from tests.support.command_line import CommandLine, on_disk
from tests.support.experiment import NOW
from tests.support.training_try import Bench


def training(root: Path, path: str, *, hours: int = 0, state: str | None = "success", **names: str) -> Path:
    """An experiment that was last tried so many hours after the others."""
    bench = Bench()
    bench.own(1, created_at=NOW + timedelta(hours=hours), **names)
    bench.claim(1)
    bench.commit("checkpoint_a")
    if state is not None:
        bench.end(state)
    return on_disk(bench, root / path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    training(root, "d/train/run-1", hours=1)
    training(root, "d/train/run-2", hours=2, state="failed")
    training(root, "by/name", hours=3, dag_id="other")
    (root / "d/train/runs-0123456789ab").mkdir()
    (root / "d/train/runs-0123456789ab/20261129T000000000000-0123456789ab.json").write_text("{}")
    return root


def test_all_are_found_newest_first(cli: CommandLine, root: Path) -> None:
    data = cli("experiments", root, "--json").json
    assert data["num_found"] == 3
    assert [e["experiment"].removeprefix(f"{root}/") for e in data["experiments"]] == [
        "by/name",
        "d/train/run-2",
        "d/train/run-1",
    ]
    assert [e["state"] for e in data["experiments"]] == ["running", "running", "running"]
    assert "the next one restores" in data["experiments"][1]["reason"]


def test_a_person_gets_two_lines_and_a_count(cli: CommandLine, root: Path) -> None:
    said = cli("experiments", root, "--limit", "2")
    assert said.code == OK, said.err
    assert "run-2" in said.out
    assert "run-1" not in said.out
    assert "running  g1/a1, 1 checkpoint, last try 2026-11-29 14:00:00" in said.out
    assert "3 experiments, 1 older ones not shown (--limit)" in said.out


def test_names_choose(cli: CommandLine, root: Path) -> None:
    assert cli("experiments", root, "--dag-id", "other", "--json").json["num_found"] == 1
    assert cli("experiments", root, "--dag-id", "other", "--task-id", "no", "--json").json["num_found"] == 0


def test_one_that_cannot_be_read_is_shown_and_is_a_problem(cli: CommandLine, root: Path) -> None:
    (root / "d/train/run-2" / layout.owner(1)).write_bytes(b"torn")
    said = cli("experiments", root, "--json", "--dag-id", "d")
    assert said.code == PROBLEM
    assert [e["state"] for e in said.json["experiments"]] == ["running", "unreadable"]
    assert "owners/000001.json can't be read" in said.json["experiments"][1]["reason"]


def test_nothing_inside_an_experiment_is_listed(cli: CommandLine, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand checkpoints must not be walked through."""
    from airflow_provider.storage.local import LocalObjectStore

    listed: list[str] = []
    original = LocalObjectStore.list_folders

    def note(self: LocalObjectStore, prefix: str) -> tuple[str, ...]:
        listed.append(prefix)
        return original(self, prefix)

    monkeypatch.setattr(LocalObjectStore, "list_folders", note)
    from_root = discovery.find_experiments(str(root), aws_conn_id=None, depth=5)
    assert len(from_root.experiments) == 3
    assert not [prefix for prefix in listed if "g000001" in prefix or "owners" in prefix]


def test_one_inside_another_ones_folder_is_found(cli: CommandLine, root: Path, bench: Bench) -> None:
    """`experiment_name` may be `a` and `a/b`."""
    on_disk(bench, root / "d/train/run-1/v2/b")
    found = discovery.find_experiments(str(root), aws_conn_id=None, depth=6)
    assert len(found.experiments) == 4
    assert found.is_whole


def test_folders_that_are_too_deep_are_said(cli: CommandLine, root: Path) -> None:
    said = cli("experiments", root, "--depth", "1")
    assert "folders deeper than 1 were not looked at (--depth)" in said.out
    assert cli("experiments", root, "--depth", "1", "--json").json["is_whole"] is False
    assert cli("experiments", root, "--json").json["is_whole"] is True
    assert cli("experiments", root, "--depth", "-1").code == USAGE


def test_folders_of_others_may_be_called_anything(cli: CommandLine, root: Path) -> None:
    """No experiment can lie there, and no listing of ours could name them."""
    (root / "back\\slash" / "deep").mkdir(parents=True)
    said = cli("experiments", root, "--json")
    assert said.code == OK, said.out
    assert said.json["num_found"] == 3


def test_a_path_with_too_many_folders_is_refused(cli: CommandLine, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MAX_FOLDERS", 2)
    said = cli("experiments", root)
    assert said.code == USAGE
    assert "more than 2 folders" in said.err


def test_a_path_that_is_not_there(cli: CommandLine, tmp_path: Path) -> None:
    assert cli("experiments", tmp_path / "nowhere").code == NOT_FOUND
    assert cli("experiments", tmp_path, "--json").json["experiments"] == []


def test_any_depth_ends_with_the_folders(cli: CommandLine, root: Path) -> None:
    """Each level below the last folder would cost some microseconds, and this number of them hours."""
    said = cli("experiments", root, "--depth", "1000000000", "--json")
    assert (said.code, said.json["num_found"]) == (OK, 3)
