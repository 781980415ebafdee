"""Old experiments: deleted whole, unless they may go on, another one began from them, or the next run would."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.cli import gc_experiments
from airflow_provider.cli.airflow_side import TaskInAirflow
from airflow_provider.cli.discovery import Discovered, find_experiments
from airflow_provider.cli.exit_codes import OK, PROBLEM
from airflow_provider.core import layout
from airflow_provider.core.decision import JobUnknown
from airflow_provider.core.errors import StorePermissionDenied, StoreUnreachable
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.record_parts import ParentCheckpoint, WarmStartRecord
from airflow_provider.core.records import CollectedRecord, OutcomeState
from airflow_provider.core.run_index import RunRecord, index_uri
from airflow_provider.storage.local import LocalObjectStore
from airflow_provider.storage.run_index import RunIndex
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import Fault
from tests.support.command_line import CommandLine, files, make_older, on_disk
from tests.support.experiment import NOW, outcome, owner
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


TASK = TaskInstanceKey("d", "any", "train")


def note(root: Path, path: Path, *, run_after: datetime) -> None:
    """What `previous_run` notes of an experiment."""
    names: dict[str, Any] = {"dag_id": TASK.dag_id, "task_id": TASK.task_id, "run_id": path.name}
    record = RunRecord(**names, run_after=run_after, experiment=f"file://{path}", created_at=NOW)
    RunIndex(LocalObjectStore(index_uri(str(root), TASK), anchor=str(root))).note(record)


def parent(path: Path) -> WarmStartRecord:
    uri = f"{path}/g000001/attempts/000001/checkpoint_a"
    return WarmStartRecord(parent=ParentCheckpoint(uri=uri), reason="previous run")


def looked(root: Path) -> Callable[[], Discovered]:
    return lambda: find_experiments(str(root), aws_conn_id=None, depth=5)


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


@pytest.mark.parametrize("has_outcome", [False, True])
@pytest.mark.parametrize("is_concluded", [False, True])
def test_one_with_an_orphan_stays_until_that_is_over(
    cli: CommandLine, root: Path, server: FakeJobsServer, has_outcome: bool, is_concluded: bool
) -> None:
    """Its claims hold the orphan back: without them it would write below the path again.

    One whose driver wrote its outcome writes nothing more; what a try concluded without the driver ends nothing.
    """
    bench = Bench()
    bench.own(1, run_id="old", created_at=NOW - timedelta(days=90))
    bench.claim(1)
    if has_outcome:
        bench.end("failed")
    if is_concluded:
        lost = CollectedRecord(k=1, outcome=outcome(OutcomeState.FAILED), written_at=NOW)
        bench.store.put_raw(layout.collected(1, 1), lost.body())
    bench.claim(2)
    bench.commit("checkpoint_a", attempt=2)
    bench.end("success", attempt=2)
    bench.store.put_raw(layout.collected(1, 2), CollectedRecord(k=1, accepted=True, written_at=NOW).body())
    path = on_disk(bench, root / "d" / "train" / "old")
    make_older(path, days=90)
    experiment(root, "newer", days=10)
    send(server, path, 1)
    looked = cli("gc", root, "--experiments", "--json")
    kept = items(looked, "keep")
    assert kept.get("old") == (None if has_outcome else "the job of g1/a1 is RUNNING")


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


def test_what_lies_in_its_folder_and_is_not_its_own_keeps_it(
    cli: CommandLine, root: Path, server: FakeJobsServer
) -> None:
    """Another training may be called `old/v2`, and a person may have put an export beside the records."""
    old, exported = experiment(root, "old", days=90), experiment(root, "exported", days=90)
    nested = experiment(root, "old/v2", days=1)
    (exported / "model.onnx").write_bytes(b"served")
    before = files(nested)
    said = cli("gc", root, "--experiments", "--apply", "--json")
    kept = items(said, "keep")
    assert "its folder holds v2/" in kept["old"]
    assert "its folder holds model.onnx" in kept["exported"]
    assert files(nested) == before
    assert (old / layout.claim(1, 1)).exists()


def test_what_is_put_there_after_the_look_stays(
    cli: CommandLine, root: Path, server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = experiment(root, "old", days=90)
    experiment(root, "newest", days=1)
    real = gc_experiments._final_owner

    def late(records: Any, seen: Any) -> int:
        (old / "model.onnx").write_bytes(b"served")
        return real(records, seen)

    monkeypatch.setattr(gc_experiments, "_final_owner", late)
    assert cli("gc", root, "--experiments", "--apply").code == OK
    assert list(files(old)) == ["model.onnx"]


def test_one_inside_another_is_a_child_like_any_other(cli: CommandLine, root: Path, server: FakeJobsServer) -> None:
    first = experiment(root, "first", days=90)
    experiment(root, "second", days=1)
    experiment(root, "second/child", days=1, warm_start=parent(first))
    assert "second/child began from it" in items(cli("gc", root, "--experiments", "--json"), "keep")["first"]


def test_a_folder_too_deep_to_be_looked_at_protects_all_of_them(
    cli: CommandLine, root: Path, server: FakeJobsServer
) -> None:
    first = experiment(root, "first", days=90)
    experiment(root, "newest", days=1)
    experiment(root, "a/b/c/d/e", days=1, warm_start=parent(first))
    shallow, deep = (cli("gc", root, "--experiments", "--depth", depth, "--json") for depth in ("4", "9"))
    assert items(shallow, "collect") == {}
    assert "deeper than --depth" in items(shallow, "keep")["first"]
    assert "e began from it" in items(deep, "keep")["first"]


def test_the_next_run_begins_from_the_newest_run_not_from_the_last_owned(
    cli: CommandLine, root: Path, server: FakeJobsServer
) -> None:
    """A backfill of old dates owns last; `previous_run` goes by the runs' own dates."""
    tonight, backfilled = experiment(root, "tonight", days=90), experiment(root, "backfilled", days=40)
    note(root, tonight, run_after=NOW)
    note(root, backfilled, run_after=NOW - timedelta(days=300))
    looked = cli("gc", root, "--experiments", "--json")
    assert items(looked, "collect") == {}
    assert "previous_run" in items(looked, "keep")["tonight"]

    runs = RunIndex(LocalObjectStore(index_uri(str(root), TASK))).store
    runs.write("20300101T000000000000-0123456789ab.json", b"torn")
    assert "the runs of a task can't be read" in items(cli("gc", root, "--experiments", "--json"), "keep")["backfilled"]


def test_a_task_that_was_cleared_since_the_look_keeps_its_experiment(root: Path) -> None:
    """Its try has not owned anything yet, so the bucket doesn't know."""
    old = experiment(root, "old", days=90)
    experiment(root, "newest", days=1)
    cleared: set[str] = set()

    def read(key: TaskInstanceKey) -> TaskInAirflow | None:
        return TaskInAirflow("queued", 1, 3, "running", 1, "i1") if key.run_id in cleared else None

    search = gc_experiments.ExperimentSearch(86_400.0, lambda _: JobUnknown(None), looked(root), read)
    (found,) = (i for i in search.find() if i.deed is not None)
    before = files(old)
    cleared.add("old")
    assert "its task is queued" in (found.carried_out().failed or "")
    assert files(old) == before


def test_an_experiment_from_which_a_training_began_since_the_look_is_kept(root: Path) -> None:
    """By its address, as a task with an explicit `warm_start` names it; the look around holds for a minute."""
    old, second = experiment(root, "old", days=90), experiment(root, "second", days=80)
    experiment(root, "newest", days=1)
    seconds = [0.0]
    search = gc_experiments.ExperimentSearch(
        86_400.0, lambda _: JobUnknown(None), looked(root), lambda _: None, clock=lambda: seconds[0]
    )
    first, then = (i for i in search.find() if i.deed is not None)
    assert [Path(i.name).name for i in (first, then)] == ["old", "second"]
    child = experiment(root, "child", days=0, accepted=None, warm_start=parent(old))
    before = files(old)
    seconds[0] = 60.0
    failed = first.carried_out().failed or ""
    assert "Nothing was deleted" in failed
    assert f"{child} began from it" in failed
    assert files(old) == before
    assert "deleted" in (then.carried_out().done or "")
    assert files(second) == {}


def test_a_look_that_takes_longer_than_it_holds_is_not_made_for_each_deed(root: Path) -> None:
    """Thousands of experiments are read in minutes: each of their deeds would read them all again."""
    for days in (90, 80, 70, 60):
        experiment(root, f"of{days}", days=days)
    experiment(root, "newest", days=1)
    seconds, num_looks = [0.0], [0]

    def look() -> Discovered:
        seconds[0] += 100
        num_looks[0] += 1
        return looked(root)()

    search = gc_experiments.ExperimentSearch(
        86_400.0, lambda _: JobUnknown(None), look, lambda _: None, clock=lambda: seconds[0]
    )
    for item in [i for i in search.find() if i.deed is not None]:
        assert "deleted" in (item.carried_out().done or "")
        seconds[0] += 60
    assert num_looks[0] == 2, "the first took 100 s and held for the next 100 s"


def test_a_try_that_comes_while_it_is_deleted_finds_its_claims(
    cli: CommandLine, root: Path, server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It then fails for want of a checkpoint; without them it would begin from the start and say nothing."""
    old = experiment(root, "old", days=90)
    experiment(root, "newest", days=1)
    original = LocalObjectStore.delete

    def late(self: LocalObjectStore, key: str) -> None:
        original(self, key)
        if key.endswith("model.pt"):
            (old / layout.owner(3)).write_bytes(owner(3).body())

    monkeypatch.setattr(LocalObjectStore, "delete", late)
    said = cli("gc", root, "--experiments", "--apply", "--json")
    assert said.code == PROBLEM
    assert "somebody owns the experiment again" in said.json["items"][1]["failed"]
    left = files(old)
    assert {layout.claim(1, 1), layout.manifest(1, 1), layout.owner(1), layout.owner(3)} <= set(left)
    assert not [name for name in left if name.endswith("model.pt")]


def test_an_identity_that_may_delete_nothing_owns_nothing(
    cli: CommandLine, root: Path, server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each run of gc would stop the experiment for good, make it young again and leave it."""
    experiment(root, "old", days=90)
    experiment(root, "newest", days=1)
    before = files(root)

    def refused(self: LocalObjectStore, key: str) -> None:
        raise StorePermissionDenied("The store refused to delete", change="allow s3:DeleteObject")

    monkeypatch.setattr(LocalObjectStore, "delete", refused)
    said = cli("gc", root, "--experiments", "--apply", "--json")
    assert said.code == PROBLEM
    assert "refused to delete" in said.json["items"][1]["failed"]
    assert files(root) == before


def test_a_deletion_that_broke_off_is_ended_the_next_time(
    cli: CommandLine, root: Path, server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = experiment(root, "old", days=90)
    experiment(root, "newest", days=1)
    original = LocalObjectStore.delete

    def away(self: LocalObjectStore, key: str) -> None:
        if key == layout.claim(1, 1):
            raise StoreUnreachable("The store is away")
        original(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(LocalObjectStore, "delete", away)
        assert cli("gc", root, "--experiments", "--apply").code == PROBLEM
    assert layout.claim(1, 1) in files(old)
    again = cli("gc", root, "--experiments", "--apply", "--json")
    assert again.code == OK, again.out
    assert "gc began to delete it before" in items(again, "collect")["old"]
    assert files(old) == {}


class Killed(BaseException):
    """The process is gone: nobody handles that."""


def test_a_process_that_dies_before_any_deletion_leaves_what_the_next_one_ends(
    cli: CommandLine, root: Path, server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little was done: the newest experiment stays, and no try finds checkpoints gone and nothing to say so."""
    original, number = LocalObjectStore.delete, 0
    is_alive = False
    while not is_alive:
        number, deletions = number + 1, 0
        place = root / str(number)
        old, newest = experiment(place, "old", days=90), experiment(place, "newest", days=10)
        before = files(newest)

        def dies(self: LocalObjectStore, key: str, number: int = number) -> None:
            nonlocal deletions
            deletions += 1
            if deletions >= number:
                raise Killed
            original(self, key)

        with monkeypatch.context() as patch:
            patch.setattr(LocalObjectStore, "delete", dies)
            try:
                cli("gc", place, "--experiments", "--apply", "--older-than", "5d")
                is_alive = True
            except Killed:
                assert any(name.startswith("owners/") for name in files(old))
                if any(name.endswith("model.pt") for name in files(old)):
                    assert {layout.claim(1, 1), layout.manifest(1, 1)} <= set(files(old))
        said = cli("gc", place, "--experiments", "--apply", "--older-than", "5d", "--json")
        assert said.code == OK, said.out
        assert files(old) == {}, number
        assert files(newest) == before, number
    assert number > len(before), "each object's deletion was one of the moments"
