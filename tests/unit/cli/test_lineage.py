"""The lineage as a tree and as JSON: from the bucket alone, whole or bounded, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.cli.exit_codes import NOT_FOUND, OK, PROBLEM, USAGE
from airflow_provider.core import layout
from airflow_provider.core.records import RestoredRecord
from tests.support.command_line import CommandLine, files, on_disk
from tests.support.experiment import NOW
from tests.support.records import alive
from tests.support.training_try import KEY, Bench


@pytest.fixture
def restored(bench: Bench) -> Bench:
    """The second attempt restored the third checkpoint and committed two more."""
    bench.own(2)
    bench.claim(2, k=2, intent="g1/a1 ended FAILED: restoring as g1/a2")
    record = RestoredRecord(checkpoint="attempts/000001/checkpoint_c", reason="newest that verifies", created_at=NOW)
    bench.store.put_raw(layout.restored(1, 2), record.body())
    bench.commit("checkpoint_d", "checkpoint_e", attempt=2)
    bench.end("success", attempt=2)
    return bench


def test_the_tree_shows_tries_attempts_failures_and_checkpoints(
    cli: CommandLine, restored: Bench, folder: Path
) -> None:
    said = cli("lineage", on_disk(restored, folder))
    assert said.code == OK, said.err
    lines = said.out
    assert "task d.train of manual__2026-11-29" in lines
    assert "2 tries, 2 attempts, 5 checkpoints (3 pruned, 2 committed)" in lines
    assert "owner 2: try 2" in lines
    assert "acted on g1/a2" in lines
    assert "infrastructure: node 3 died at step 1200" in lines
    assert "why: g1/a1 ended FAILED: restoring as g1/a2" in lines
    assert "from g000001/attempts/000001/checkpoint_c" in lines
    assert "checkpoint_e  committed  8 B  epoch=1" in lines
    assert "parent" not in lines, "each is the child of the line above it"


def test_json_is_the_whole_lineage_with_its_stage(cli: CommandLine, restored: Bench, folder: Path) -> None:
    data = cli("lineage", on_disk(restored, folder), "--json").json
    assert data["stage"] == "running", "its task has not accepted the success"
    assert [a["state"] for a in data["attempts"]] == ["failed", "success"]
    names = [c["name"].rpartition("/")[2] for c in data["checkpoints"]]
    assert names == [f"checkpoint_{letter}" for letter in "abcde"]
    assert data["checkpoints"][3]["parent"] == data["checkpoints"][2]["name"]


def test_a_parent_that_is_not_the_line_above_is_named(cli: CommandLine, bench: Bench, folder: Path) -> None:
    bench.own(2)
    bench.claim(2, k=2)
    record = RestoredRecord(checkpoint="attempts/000001/checkpoint_c", reason="newest", created_at=NOW)
    bench.store.put_raw(layout.restored(1, 2), record.body())
    bench.commit("checkpoint_d", attempt=2)
    path = on_disk(bench, folder)
    segment = path / layout.segment(1, 2, "000001")
    segment.write_text(segment.read_text().replace('"parent": null', '"parent": "attempts/000001/checkpoint_a"'))
    said = cli("lineage", path)
    assert "parent g000001/attempts/000001/checkpoint_a" in " ".join(said.out.replace("│", " ").split())


def test_many_checkpoints_are_bounded_and_all_shows_them(cli: CommandLine, folder: Path) -> None:
    bench = Bench()
    bench.own(1)
    bench.claim(1)
    bench.commit(*(f"checkpoint_{i:03d}" for i in range(40)))
    path = on_disk(bench, folder)
    short, whole = cli("lineage", path).out, cli("lineage", path, "--all").out
    assert "30 earlier checkpoints (--all)" in short
    assert "checkpoint_029" not in short
    assert "checkpoint_030" in short
    assert [f"checkpoint_{i:03d}" in whole for i in range(40)] == [True] * 40


def test_looking_writes_nothing(cli: CommandLine, restored: Bench, folder: Path) -> None:
    path = on_disk(restored, folder)
    before = files(folder)
    cli("lineage", path)
    assert files(folder) == before
    assert not (folder / ".objectstore").exists()


def test_where_nothing_is_that_is_said(cli: CommandLine, tmp_path: Path) -> None:
    said = cli("lineage", tmp_path)
    assert said.code == NOT_FOUND
    assert "There is no experiment at" in said.err
    assert cli("lineage", tmp_path / "nowhere").code == NOT_FOUND


def test_a_running_attempts_sign_of_life_is_shown(cli: CommandLine, bench: Bench, folder: Path) -> None:
    from airflow_provider.core.records import AliveRecord, Phase

    bench.own(2)
    bench.claim(2, k=2)
    alive = AliveRecord(run_uid="u", phase=Phase.TRAINING, phase_since=NOW, num_commits=2, written_at=NOW)
    bench.store.put_raw(layout.alive(1, 2), alive.body())
    path = on_disk(bench, folder)
    said = cli("lineage", path)
    assert "its driver's last sign of life is 0 s old: training since 2026-11-29" in said.out
    assert "g1/a2  no outcome yet" in said.out
    assert cli("lineage", path, "--json").json["alive"]["phase"] == "training"


def test_a_torn_record_is_a_problem_and_not_nothing(cli: CommandLine, bench: Bench, folder: Path) -> None:
    path = on_disk(bench, folder)
    (path / layout.owner(1)).write_bytes(b"torn")
    said = cli("lineage", path)
    assert said.code == PROBLEM
    assert "owners/000001.json can't be read" in said.err


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--dag-id", "d"),
        ("/models/x", "--dag-id", "d", "--task-id", "t", "--run-id", "r"),
        ("/models/x/g000001/attempts/000001",),
        ("ray://head:10001",),
    ],
)
def test_what_names_no_experiment_is_a_usage_error(cli: CommandLine, words: tuple[str, ...]) -> None:
    assert cli("lineage", *words).code == USAGE


def test_the_path_is_derived_from_the_task_instance(cli: CommandLine, bench: Bench, tmp_path: Path) -> None:
    from airflow_provider.core.identity import experiment_uri

    root = tmp_path / "models"
    on_disk(bench, Path(experiment_uri(str(root), KEY)))
    names = ("--dag-id", KEY.dag_id, "--task-id", KEY.task_id, "--run-id", KEY.run_id)
    assert cli("lineage", "--storage-path", root, *names).code == OK


def test_without_a_storage_path_airflow_says_where_it_is(
    cli: CommandLine, bench: Bench, folder: Path, in_airflow: Callable[..., None]
) -> None:
    kept: dict[str, Any] = {"experiment": str(on_disk(bench, folder)), "conn_id": "ray_default", "aws_conn_id": None}
    in_airflow("failed", kept=kept)
    names = ("--dag-id", KEY.dag_id, "--task-id", KEY.task_id, "--run-id", KEY.run_id)
    said = cli("lineage", *names)
    assert said.code == OK, said.err
    assert "task d.train of manual__2026-11-29" in said.out
    other = cli("lineage", *names, "--map-index", "3")
    assert other.code == NOT_FOUND
    assert "Airflow knows no experiment of d.train[3]" in other.err


def test_a_number_that_is_none_in_the_sign_of_life_is_no_error(cli: CommandLine, bench: Bench, folder: Path) -> None:
    """Ours is written as a text; another writer's JSON may hold what JSON has not."""
    bench.own(2)
    bench.claim(2, k=2)
    told = alive().body().replace(b'"last_metrics": {}', b'"last_metrics": {"loss": NaN}')
    assert b"NaN" in told
    bench.store.put_raw(layout.alive(1, 2), told)
    said = cli("lineage", on_disk(bench, folder), "--json")
    assert said.code == OK, said.out
    assert said.json["alive"]["last_metrics"] == {"loss": "NaN"}
