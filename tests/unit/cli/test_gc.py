"""Garbage: what is nobody's any more goes, and only with --apply; whatever somebody may need stays, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.cli.exit_codes import OK, PROBLEM, USAGE
from airflow_provider.core import layout
from airflow_provider.core.records import AliveRecord, CollectedRecord, Phase, StopRecord
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.local import LocalObjectStore
from airflow_provider.testing.jobs_api import FakeJobsServer
from tests.support.command_line import CommandLine, files, make_older, on_disk
from tests.support.experiment import NOW
from tests.support.training_try import Bench
from tests.unit.cli.garbage import items, send

# --- jobs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(tmp_path: Path) -> Bench:
    bench = Bench()
    bench.own(1)
    bench.claim(1)
    return bench


def test_a_superseded_job_is_an_orphan_and_is_stopped_by_record_first(
    cli: CommandLine, running: Bench, folder: Path, server: FakeJobsServer
) -> None:
    running.own(2)
    running.claim(2, k=2)
    path = on_disk(running, folder)
    old, new = send(server, path, 1), send(server, path, 2)
    before = files(path)
    looked = cli("gc", folder, "--jobs", "--json")
    assert looked.code == OK, looked.out
    assert items(looked, "collect") == {old: "g1/a2 was claimed after g1/a1: nobody follows it any more"}
    assert list(items(looked, "keep")) == [new]
    assert files(path) == before
    assert {job.status for job in server.jobs.values()} == {"RUNNING"}, "a dry run stops nothing"

    done = cli("gc", folder, "--jobs", "--apply", "--json")
    assert done.code == OK, done.out
    assert (server.jobs[old].status, server.jobs[new].status) == ("STOPPED", "RUNNING")
    stop = StopRecord.parse((path / layout.stop(1, 1, 2)).read_bytes(), key="stop")
    assert stop.reason.startswith("gc: g1/a2 was claimed after g1/a1")
    assert not (path / layout.attempt(1, 2) / "stop-000002.json").exists()


def test_a_job_that_outlived_a_final_owner_is_an_orphan(
    cli: CommandLine, running: Bench, folder: Path, server: FakeJobsServer
) -> None:
    running.own(2, final=True, created_by="listener")
    path = on_disk(running, folder)
    job = send(server, path, 1)
    assert cli("gc", path, "--jobs", "--apply").code == OK
    assert server.jobs[job].status == "STOPPED"
    assert (path / layout.stop(1, 1, 2)).exists()


def test_a_clear_after_a_final_owner_makes_it_nobodys_orphan(
    cli: CommandLine, running: Bench, folder: Path, server: FakeJobsServer
) -> None:
    running.own(2, final=True, created_by="listener")
    running.own(3)
    job = send(server, on_disk(running, folder), 1)
    assert list(items(cli("gc", folder, "--jobs", "--json"), "keep")) == [job]


@pytest.mark.parametrize(
    ("state", "run_state", "identity", "is_orphan"),
    [
        ("failed", "failed", "i1", True),
        ("success", "success", "i1", True),
        ("failed", "running", "i1", False),
        ("deferred", "running", "i1", False),
        ("up_for_retry", "running", "i1", False),
        ("failed", "failed", "i2", False),
        ("failed", "failed", None, False),
    ],
)
def test_airflow_decides_about_the_newest_attempts_job_only_for_its_own_run(
    cli: CommandLine,
    running: Bench,
    folder: Path,
    server: FakeJobsServer,
    in_airflow: Callable[..., None],
    state: str,
    run_state: str,
    identity: str | None,
    is_orphan: bool,
) -> None:
    """Another Airflow on the same cluster may have a run of that name: the owner's mark tells."""
    in_airflow(state, run_state=run_state, identity=identity)
    path = on_disk(running, folder)
    job = send(server, path, 1)
    said = cli("gc", folder, "--jobs", "--apply", "--json")
    assert said.code == OK, said.out
    assert server.jobs[job].status == ("STOPPED" if is_orphan else "RUNNING")
    records = ExperimentRecords(LocalObjectStore(str(path)))
    newest = records.newest_owner()
    assert newest is not None
    assert newest[1].final is is_orphan, "a final owner comes before the stop"
    assert bool(items(said, "collect")) is is_orphan


def test_a_job_that_its_operator_lets_go_on_is_nobodys_orphan(
    cli: CommandLine, running: Bench, folder: Path, server: FakeJobsServer, in_airflow: Callable[..., None]
) -> None:
    path = on_disk(running, folder)
    kept = {"experiment": str(path), "conn_id": "ray_default", "aws_conn_id": None, "stop_on_kill": False}
    in_airflow("failed", run_state="failed", kept=kept)
    job = send(server, path, 1)
    said = cli("gc", folder, "--jobs", "--apply", "--json")
    assert "stop_on_kill=False" in items(said, "keep")[job]
    assert server.jobs[job].status == "RUNNING"
    assert not (path / layout.owner(2)).exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"attempt": "g1/a9"}, "no claim"),
        ({"attempt": "one"}, "names no attempt"),
        ({"attempt": "g0/a1"}, "names no attempt"),
        ({"experiment": "/nowhere/at/all"}, ""),
    ],
)
def test_a_job_that_cannot_be_judged_stays(
    cli: CommandLine, running: Bench, folder: Path, server: FakeJobsServer, changes: dict[str, str], why: str
) -> None:
    job = send(server, on_disk(running, folder), 1, **changes)
    said = cli("gc", folder.parent, "--jobs", "--apply", "--json")
    assert server.jobs[job].status == "RUNNING"
    kept = items(said, "keep")
    assert list(kept) == ([job] if why else []), "another path's job is not even shown"
    assert why in "".join(kept.values())


def test_jobs_of_others_and_ended_ones_are_not_looked_at(
    cli: CommandLine, running: Bench, folder: Path, server: FakeJobsServer
) -> None:
    send(server, on_disk(running, folder), 1, status="FAILED")
    server.add_job("somebody-elses", metadata={"owner": "x"})
    assert cli("gc", folder, "--jobs", "--json").json["items"] == []


def test_an_owner_that_came_meanwhile_keeps_its_job(
    cli: CommandLine, running: Bench, folder: Path, server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider.cli import gc_jobs
    from tests.support.experiment import owner

    running.own(2, final=True, created_by="listener")
    path = on_disk(running, folder)
    job = send(server, path, 1)
    real = gc_jobs.stop_attempt

    def late(*args: Any, **facts: Any) -> Any:
        (path / layout.owner(3)).write_bytes(owner(3).body())
        return real(*args, **facts)

    monkeypatch.setattr(gc_jobs, "stop_attempt", late)
    said = cli("gc", folder, "--jobs", "--apply", "--json")
    assert said.code == PROBLEM
    assert "owner 3 owns the experiment" in said.json["items"][0]["failed"]
    assert server.jobs[job].status == "RUNNING"


# --- leftovers -----------------------------------------------------------------------------------------------------------


def put(path: Path, attempt: int, name: str) -> Path:
    """An upload that nobody committed."""
    folder = path / layout.attempt(1, attempt) / name
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes(b"half a model")
    return folder


@pytest.fixture
def superseded(bench: Bench, folder: Path) -> Path:
    """Attempt 1 failed, attempt 2 runs; both left uploads behind."""
    bench.own(2)
    bench.claim(2, k=2)
    bench.commit("checkpoint_d", attempt=2)
    path = on_disk(bench, folder)
    put(path, 1, "checkpoint_half")
    put(path, 2, "checkpoint_half_too")
    put(path, 1, "restored-from-attempts~000001~checkpoint_a")
    put(path, 1, "v1")
    make_older(path, days=40)
    return path


def test_only_what_no_record_knows_of_attempts_that_are_over_goes(
    cli: CommandLine, superseded: Path, folder: Path, server: FakeJobsServer
) -> None:
    before = files(superseded)
    looked = cli("gc", folder.parent, "--leftovers", "--json")
    assert looked.code == OK, looked.out
    assert list(items(looked, "collect")) == ["checkpoint_half"]
    assert items(looked, "keep") == {
        "checkpoint_half_too": "g1/a2 is the newest attempt, and its success is not accepted"
    }
    assert files(superseded) == before
    assert cli("gc", folder.parent, "--leftovers", "--apply").code == OK
    assert set(before) - set(files(superseded)) == {"g000001/attempts/000001/checkpoint_half/model.pt"}


def test_an_accepted_experiments_leftovers_go_too(
    cli: CommandLine, superseded: Path, folder: Path, server: FakeJobsServer
) -> None:
    from tests.support.records import outcome

    (superseded / layout.outcome(1, 2)).write_bytes(outcome("success").body())
    (superseded / layout.collected(1, 2)).write_bytes(CollectedRecord(k=2, accepted=True, written_at=NOW).body())
    looked = cli("gc", folder.parent, "--leftovers", "--json")
    assert sorted(items(looked, "collect")) == ["checkpoint_half", "checkpoint_half_too"]


def test_young_uploads_stay(cli: CommandLine, superseded: Path, folder: Path, server: FakeJobsServer) -> None:
    make_older(superseded, days=3)
    assert items(cli("gc", folder, "--leftovers", "--json"), "collect") == {}
    assert list(items(cli("gc", folder, "--leftovers", "--older-than", "2d", "--json"), "collect")) == [
        "checkpoint_half"
    ]


@pytest.mark.parametrize(
    ("status", "alive_days", "is_over"),
    [
        ("RUNNING", 0, False),
        ("PENDING", 40, False),
        ("FAILED", 0, True),
        (None, 0, False),
        (None, 40, True),
        ("silent", 40, False),
    ],
)
def test_without_an_outcome_the_cluster_decides_whether_an_attempt_is_over(
    cli: CommandLine,
    superseded: Path,
    folder: Path,
    server: FakeJobsServer,
    status: str | None,
    alive_days: float,
    is_over: bool,
) -> None:
    """A zombie may still be uploading there."""
    from airflow_provider.testing.jobs_api_parts import Fault

    (superseded / layout.outcome(1, 1)).unlink()
    sign = superseded / layout.alive(1, 1)
    alive = AliveRecord(run_uid="u", phase=Phase.TRAINING, phase_since=NOW, written_at=NOW)
    sign.write_bytes(alive.body())
    import os
    import time

    then = time.time() - alive_days * 86_400
    os.utime(sign, (then, then))
    if status == "silent":
        server.add(Fault("answer", status=502))
    elif status is not None:
        send(server, superseded, 1, status=status)
    found = items(cli("gc", folder, "--leftovers", "--json"), "collect")
    assert list(found) == (["checkpoint_half"] if is_over else [])


def test_what_was_committed_meanwhile_stays(
    cli: CommandLine, superseded: Path, folder: Path, server: FakeJobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider.cli import gc_leftovers
    from airflow_provider.core.manifest import Manifest, ManifestEntry

    real, calls = gc_leftovers.read_experiment, []

    def late(records: Any) -> Any:
        calls.append(records)
        if len(calls) == 2:  # the look before the deed
            entry = ManifestEntry("attempts/000001/checkpoint_half", {})
            body = Manifest(entries=(entry,), latest=entry).body(ray_version="2.60.0")
            (superseded / layout.manifest(1, 2)).write_bytes(body)
        return real(records)

    monkeypatch.setattr(gc_leftovers, "read_experiment", late)
    said = cli("gc", folder, "--leftovers", "--apply", "--json")
    assert said.code == PROBLEM
    assert "was committed meanwhile" in said.json["items"][0]["failed"]
    assert (superseded / "g000001/attempts/000001/checkpoint_half/model.pt").exists()


# --- the command ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [("--apply",), ("--older-than", "soon"), ("--older-than", "5m"), ("--experiments", "--older-than", "0d")]
)
def test_careless_command_lines_are_refused(
    cli: CommandLine, tmp_path: Path, server: FakeJobsServer, words: tuple[str, ...]
) -> None:
    assert cli("gc", tmp_path, *words).code == USAGE


def test_a_dry_run_looks_for_everything_and_says_that_it_is_one(
    cli: CommandLine, superseded: Path, folder: Path, server: FakeJobsServer
) -> None:
    said = cli("gc", folder.parent)
    assert said.code == OK, said.err
    assert "orphan jobs: 0 found, 0 kept" in said.out
    assert "uncommitted leftovers: 1 found, 1 kept" in said.out
    assert "old experiments: 0 found, 1 kept" in said.out
    assert "dry run: nothing was changed (--apply)" in said.out


def test_without_a_cluster_the_bucket_is_still_looked_at_and_the_rest_is_said(
    cli: CommandLine, superseded: Path, folder: Path
) -> None:
    said = cli("gc", folder.parent, "--conn-id", "no_such")
    assert said.code == PROBLEM
    assert "uncommitted leftovers: 1 found" in said.out
    assert "could not look everywhere: Airflow has no connection 'no_such'" in said.out
