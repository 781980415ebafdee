"""Old experiments: deleted whole, unless they may go on, another one began from them, or the next run would."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.cli import gc_experiments
from airflow_provider.cli.exit_codes import OK, PROBLEM
from airflow_provider.core import layout
from airflow_provider.core.records import CollectedRecord, ParentCheckpoint, WarmStartRecord
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import Fault
from tests.support.command_line import CommandLine, files, make_older, on_disk
from tests.support.experiment import NOW, owner
from tests.support.training_try import Bench
from tests.unit.cli.garbage import items, send


def experiment(root: Path, name: str, *, days: float, accepted: bool | None = True, **changes: Any) -> Path:
    """An experiment of DAG run `name` that changed so many days ago for the last time."""
    bench = Bench()
    bench.own(1, run_id=name, created_at=NOW - timedelta(days=days))
    bench.claim(1, **changes)
    bench.commit("checkpoint_a")
    if accepted is not None:
        bench.end("success")
        bench.store.put_raw(layout.collected(1, 1), CollectedRecord(k=1, accepted=accepted, written_at=NOW).body())
    path = on_disk(bench, root / "d" / "train" / name)
    make_older(path, days=days)
    return path


def parent(path: Path) -> WarmStartRecord:
    uri = f"{path}/g000001/attempts/000001/checkpoint_a"
    return WarmStartRecord(parent=ParentCheckpoint(uri=uri), reason="previous run")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


def test_old_experiments_are_deleted_whole_and_nothing_beside_them(
    cli: CommandLine, root: Path, server: FakeJobsServer
) -> None:
    old, newer = experiment(root, "old", days=90), experiment(root, "newer", days=10)
    before = files(root)
    looked = cli("gc", root, "--experiments", "--json")
    assert looked.code == OK, looked.out
    assert list(items(looked, "collect")) == ["old"]
    assert items(looked, "keep") == {"newer": "it last changed 10 d ago"}
    assert files(root) == before
    done = cli("gc", root, "--experiments", "--apply")
    assert done.code == OK, done.out
    assert files(old) == {}
    assert files(newer) == {k.removeprefix("d/train/newer/"): v for k, v in before.items() if "/newer/" in k}


def test_what_another_one_began_from_stays(cli: CommandLine, root: Path, server: FakeJobsServer) -> None:
    first = experiment(root, "first", days=90)
    second = experiment(root, "second", days=80, warm_start=parent(first))
    experiment(root, "third", days=1, warm_start=parent(second))
    looked = cli("gc", root, "--experiments", "--json")
    assert items(looked, "collect") == {}
    assert "second began from it" in items(looked, "keep")["first"]


def test_the_newest_with_a_checkpoint_stays_for_the_next_run(
    cli: CommandLine, root: Path, server: FakeJobsServer
) -> None:
    experiment(root, "a", days=90)
    experiment(root, "b", days=80)
    looked = cli("gc", root, "--experiments", "--json")
    assert list(items(looked, "collect")) == ["a"]
    assert "previous_run" in items(looked, "keep")["b"]


def test_what_may_go_on_stays(cli: CommandLine, root: Path, server: FakeJobsServer) -> None:
    experiment(root, "newest", days=1)
    experiment(root, "unaccepted", days=90, accepted=None)
    assert "it may go on" in items(cli("gc", root, "--experiments", "--json"), "keep")["unaccepted"]


def test_one_whose_job_lives_or_cannot_be_asked_for_stays(cli: CommandLine, root: Path, server: FakeJobsServer) -> None:
    path = experiment(root, "old", days=90)
    experiment(root, "newest", days=1)
    send(server, path, 1)
    assert items(cli("gc", root, "--experiments", "--json"), "keep")["old"] == "its last job is RUNNING"
    server.add(Fault("answer", status=502))
    assert "the cluster can't be asked" in items(cli("gc", root, "--experiments", "--json"), "keep")["old"]


def test_a_damaged_one_stays_and_protects_all_the_others(cli: CommandLine, root: Path, server: FakeJobsServer) -> None:
    """It may have begun from any of them."""
    experiment(root, "old", days=90)
    experiment(root, "newest", days=1)
    broken = experiment(root, "broken", days=90)
    (broken / layout.claim(1, 1)).write_bytes(b"torn")
    looked = cli("gc", root, "--experiments", "--json")
    assert items(looked, "collect") == {}
    assert "can't be read" in items(looked, "keep")["old"]


def test_an_owner_that_came_meanwhile_keeps_its_experiment(
    cli: CommandLine, root: Path, server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = experiment(root, "old", days=90)
    experiment(root, "newest", days=1)
    real = gc_experiments._final_owner

    def late(records: Any, seen: Any) -> int:
        (old / layout.owner(2)).write_bytes(owner(2).body())
        return real(records, seen)

    monkeypatch.setattr(gc_experiments, "_final_owner", late)
    said = cli("gc", root, "--experiments", "--apply", "--json")
    assert said.code == PROBLEM
    assert (old / layout.manifest(1, 1)).exists()
    assert layout.owner(2) in files(old)
