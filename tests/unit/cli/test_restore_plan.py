"""The plan is what a try would do: the same decision from the same facts, in every situation, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.cli.exit_codes import OK, PROBLEM
from airflow_provider.cli.next_try import NextTry
from airflow_provider.cli.restore_plan import make_plan
from airflow_provider.core.decision import TryFacts
from airflow_provider.core.errors import ClusterUnreachable, RayTrainError
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.record_parts import CheckpointFile, ParentCheckpoint, WarmStartRecord
from airflow_provider.testing.jobs_api import FakeJobsServer
from tests.support.command_line import CommandLine, files, on_disk
from tests.support.fake_jobs_client import job
from tests.support.training_try import KEY, Bench, job_id

WRITES = ("write", "create_if_absent", "replace_if_match", "copy", "delete", "POST", "stop", "marker")


def failed(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    bench.commit("checkpoint_a", "checkpoint_b")
    bench.end("failed")


def damaged(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    bench.commit("checkpoint_a", "checkpoint_b", missing=("checkpoint_b",))
    bench.end("failed")


def running(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "RUNNING")


def stopping(bench: Bench) -> None:
    from airflow_provider.core import layout
    from tests.support.experiment import stop

    running(bench)
    bench.store.put_raw(layout.stop(1, 1, 1), stop(1).body())


def never_arrived(bench: Bench) -> None:
    same = bench.new_try(1)
    bench.own(1)
    bench.claim(1, spec_digest=same.request.spec_digest, code_digest=same._code_digest())


def finished(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    bench.commit("checkpoint_a")
    bench.end("success")


def stopped_outside(bench: Bench) -> None:
    running(bench)
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "STOPPED")


def silent(bench: Bench) -> None:
    running(bench)
    bench.client.silence = ClusterUnreachable("no connection")


def owned_only(bench: Bench) -> None:
    bench.own(1)


SITUATIONS = [failed, damaged, running, stopping, never_arrived, finished, stopped_outside, silent, owned_only]


def next_try(try_number: int = 2, *, max_tries: int = 3) -> NextTry:
    facts = TryFacts(
        dag_run_identity="i1", try_number=try_number, max_tries=max_tries, clear_number=0, own_ks=frozenset()
    )
    return NextTry(facts, "retry", None, ())


@pytest.mark.parametrize("max_tries", [3, 6])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_plan_is_what_the_try_then_decides(situation: Callable[[Bench], None], max_tries: int) -> None:
    """A retry and a clear (another max_tries) in each situation, against TrainingTry itself on the same world."""
    bench = Bench()
    situation(bench)
    bench.log.clear()
    plan = make_plan(bench.records, bench.client, key=KEY, next_try=next_try(max_tries=max_tries), on_clear="auto")
    assert bench.steps(*WRITES) == [], "a plan writes nothing"

    training_try = bench.new_try(2, max_tries=max_tries)
    training_try.facts = next_try(max_tries=max_tries).facts
    assert plan.decision == training_try.decide(training_try.read_newest())


def test_the_try_then_restores_what_the_plan_named() -> None:
    bench = Bench()
    damaged(bench)
    plan = make_plan(bench.records, bench.client, key=KEY, next_try=next_try(), on_clear="auto")
    assert plan.point is not None
    assert plan.point.candidate is not None
    assert [one.checkpoint for one in plan.point.skipped] == ["attempts/000001/checkpoint_b"]
    training_try = bench.new_try(2)
    training_try.own()
    training_try.step()
    claim = bench.records.newest_claim()
    assert claim is not None
    assert claim.ref == plan.attempt
    assert claim.checkpoint_seen == plan.point.candidate.name
    assert claim.intent == plan.reason


def test_a_try_that_would_fail_is_a_problem(cli: CommandLine, folder: Path, server: FakeJobsServer) -> None:
    bench = Bench()
    bench.own(1)
    bench.claim(1)
    bench.commit("checkpoint_a", missing=("checkpoint_a",))
    bench.end("failed")
    said = cli("restore-plan", on_disk(bench, folder), "--json")
    assert said.code == PROBLEM
    assert said.json["would_fail"] is True
    assert "None of 1 committed checkpoints can be restored" in said.json["failure"]
    assert said.json["decision"] == "Restore"


def test_a_person_reads_it_in_eighty_columns(
    cli: CommandLine, bench: Bench, folder: Path, server: FakeJobsServer
) -> None:
    path = on_disk(bench, folder)
    before = files(folder)
    said = cli("restore-plan", path)
    assert said.code == OK, said.err
    text = " ".join(said.out.split())
    assert "would Restore g1/a2" in text
    assert "from attempts/000001/checkpoint_c (epoch=2)" in text
    assert "all 1 files there with their sizes" in text
    assert "nothing was written" in text
    assert max(map(len, said.out.splitlines()[1:])) <= 80, "but for the path, which stays in one piece"
    assert files(folder) == before


def test_airflow_tells_a_retry_from_a_clear(
    cli: CommandLine, bench: Bench, folder: Path, server: FakeJobsServer, in_airflow: Callable[..., None]
) -> None:
    path = on_disk(bench, folder)
    in_airflow("failed", try_number=4, run_state="failed")
    data = cli("restore-plan", path, "--json").json
    assert data["next_try"] == {
        "after": "clear",
        "is_clear_assumed": True,
        "try_number": 5,
        "max_tries": 7,
        "clear_number": 1,
    }
    assert data["reason"].startswith("the task was cleared (max_tries went from 3 to 7)")
    assert data["decision"] == "Restore"
    fresh = cli("restore-plan", path, "--json", "--on-clear", "fresh").json
    assert (fresh["decision"], fresh["attempt"]) == ("Start", "g2/a1")


def test_a_clear_that_is_only_assumed_is_told_so(
    cli: CommandLine, bench: Bench, folder: Path, server: FakeJobsServer, in_airflow: Callable[..., None]
) -> None:
    """Nobody has cleared the task yet: the sentence is what the try would say then."""
    in_airflow("failed", try_number=4, run_state="failed")
    path = on_disk(bench, folder)
    text = cli("restore-plan", path).text
    assert "next try 5, if the task is cleared; Airflow: failed" in text
    assert "because it would say: the task was cleared (max_tries went from 3 to 7)" in text
    assert "assumed a clear: Airflow says that the task is failed" in text
    data = cli("restore-plan", path, "--json").json
    assert data["next_try"]["is_clear_assumed"] is True


def test_a_clear_that_airflow_has_counted_is_no_retry(
    cli: CommandLine, bench: Bench, folder: Path, server: FakeJobsServer, in_airflow: Callable[..., None]
) -> None:
    """Cleared and not yet scheduled: the counters tell, and nothing is assumed about it but `on_clear`."""
    in_airflow(None, try_number=1, max_tries=4, clear_number=1)
    path = on_disk(bench, folder)
    data = cli("restore-plan", path, "--json").json
    assert data["next_try"] == {
        "after": "clear",
        "is_clear_assumed": False,
        "try_number": 2,
        "max_tries": 4,
        "clear_number": 1,
    }
    assert "on_clear is 'auto' (--on-clear)" in data["assumed"]
    text = cli("restore-plan", path).text
    assert "next try 2, after a clear; Airflow: not scheduled" in text
    assert "because the task was cleared (max_tries went from 3 to 4)" in text


@pytest.mark.parametrize(("situation", "decision"), [(silent, "Refuse"), (finished, "Collect")])
def test_a_counted_clear_is_none_the_less_one_where_the_try_answers_something_else_first(
    situation: Callable[[Bench], None], decision: str
) -> None:
    """It can't stop what it can't reach, and a success that nobody has accepted is collected before."""
    bench = Bench()
    situation(bench)
    plan = make_plan(bench.records, bench.client, key=KEY, next_try=next_try(max_tries=5), on_clear="auto")
    assert (type(plan.decision).__name__, plan.after, plan.is_clear_assumed) == (decision, "clear", False)


@pytest.mark.parametrize(("state", "counted"), [("up_for_retry", 1), ("queued", 2), ("running", 1), (None, 1)])
def test_airflows_count_of_the_next_try(
    cli: CommandLine,
    bench: Bench,
    folder: Path,
    server: FakeJobsServer,
    in_airflow: Callable[..., None],
    state: str | None,
    counted: int,
) -> None:
    """A queued try has its number already."""
    in_airflow(state, try_number=counted)
    data = cli("restore-plan", on_disk(bench, folder), "--json").json
    assert data["next_try"] == {
        "after": "retry",
        "is_clear_assumed": False,
        "try_number": 2,
        "max_tries": 3,
        "clear_number": 0,
    }


@pytest.mark.parametrize("state", ["scheduled", "queued"])
def test_a_deferred_try_that_goes_on_is_no_clear(
    cli: CommandLine, folder: Path, server: FakeJobsServer, in_airflow: Callable[..., None], state: str
) -> None:
    """Between its trigger's event and its worker the task stands as one whose next try is counted, with the owner's number."""
    running_bench = Bench()
    running(running_bench)
    in_airflow(state, try_number=1, next_method="resume")
    data = cli("restore-plan", on_disk(running_bench, folder), "--json").json
    assert (data["next_try"]["after"], data["next_try"]["try_number"]) == ("retry", 2)
    assert "cleared" not in data["reason"]


def test_a_run_that_was_created_again_is_a_clear(
    cli: CommandLine, bench: Bench, folder: Path, server: FakeJobsServer, in_airflow: Callable[..., None]
) -> None:
    in_airflow(None, try_number=0, identity=None)
    data = cli("restore-plan", on_disk(bench, folder), "--json").json
    assert data["reason"].startswith("the task was cleared (the DAG run was created again)")


def test_without_airflows_database_the_guess_is_said(
    cli: CommandLine,
    bench: Bench,
    folder: Path,
    server: FakeJobsServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_session() -> Any:
        raise OSError("could not connect to postgresql://airflow:hunter2@db/airflow")

    monkeypatch.setattr("airflow.utils.session.create_session", no_session)
    said = cli("restore-plan", on_disk(bench, folder), "--json")
    assert said.code == OK
    assert "Airflow's database can't be read from here (OSError)" in said.json["assumed"][0]
    assert "hunter2" not in said.out + said.err
    cleared = cli("restore-plan", folder, "--json", "--after", "clear").json
    assert cleared["next_try"]["after"] == "clear"
    assert cleared["reason"].startswith("the task was cleared")


@pytest.mark.parametrize(
    ("owner", "after", "why"),
    [
        (
            {"final": True, "created_by": "listener"},
            "clear",
            "owner, 2, is a stop for good, so the next try is a clear",
        ),
        ({"gave_up": Failure(kind=FailureKind.USER, reason="x")}, "clear", "is a try that gave up, so"),
        ({}, "retry", "is a try that may be retried, so the next try is a retry"),
    ],
)
def test_without_airflows_database_a_stop_for_good_is_followed_by_a_clear(
    cli: CommandLine, bench: Bench, folder: Path, server: FakeJobsServer, owner: dict[str, Any], after: str, why: str
) -> None:
    """The bucket alone tells that no retry comes any more."""
    bench.own(2, **owner)
    said = cli("restore-plan", on_disk(bench, folder), "--json")
    assert said.json["next_try"]["after"] == after
    assert why in said.json["assumed"][0]
    assert said.json["reason"].startswith("the task was cleared") is (after == "clear")
    asked = cli("restore-plan", folder, "--json", "--after", "retry").json
    assert asked["next_try"]["after"] == "retry", "--after counts whatever the bucket says"


def test_what_the_dashboard_refused_is_said(
    cli: CommandLine, bench: Bench, folder: Path, server: FakeJobsServer
) -> None:
    from airflow_provider.testing.jobs_api_parts import Fault

    server.add(Fault("answer", status=403, body="no", content_type="text/plain"))
    said = cli("restore-plan", on_disk(bench, folder), "--json")
    assert said.code == PROBLEM
    assert said.json["decision"] == "Refuse"
    assert "refused our identity (status 403)" in said.json["cluster_refused"]


def test_another_tasks_experiment_is_refused_as_a_try_would_be(
    cli: CommandLine, bench: Bench, tmp_path: Path, server: FakeJobsServer
) -> None:
    from airflow_provider.core.identity import TaskInstanceKey, experiment_uri

    key = TaskInstanceKey("other", KEY.run_id, "train")
    on_disk(bench, Path(experiment_uri(str(tmp_path), key)))
    names = ("--dag-id", key.dag_id, "--task-id", key.task_id, "--run-id", key.run_id)
    said = cli("restore-plan", "--storage-path", tmp_path, *names)
    assert said.code == PROBLEM
    assert "belongs to another task instance" in said.err


def test_errors_are_the_trys_own() -> None:
    """A torn manifest refuses the try, so it stands in the plan."""
    from airflow_provider.core import layout

    bench = Bench()
    failed(bench)
    bench.store.put_raw(layout.manifest(1, 1), b"torn")
    plan = make_plan(bench.records, bench.client, key=KEY, next_try=next_try(), on_clear="auto")
    assert plan.is_trouble
    training_try = bench.new_try(2)
    training_try.own()
    with pytest.raises(RayTrainError) as caught:
        training_try.step()
    assert str(plan.failure) == str(caught.value)


def test_without_a_claim_the_cluster_is_asked_all_the_same() -> None:
    """No job to look at: the try would find out that nobody answers when it claims."""
    bench = Bench()
    owned_only(bench)
    bench.client.silence = ClusterUnreachable("no connection")
    plan = make_plan(bench.records, bench.client, key=KEY, next_try=next_try(), on_clear="auto")
    assert plan.is_trouble
    training_try = bench.new_try(2)
    training_try.own()
    with pytest.raises(RayTrainError) as caught:
        training_try.step()
    assert str(plan.failure) == str(caught.value)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_warm_starts_parent_is_looked_at_as_the_try_does(
    cli: CommandLine, folder: Path, server: FakeJobsServer, is_there: bool
) -> None:
    """Nothing was committed, so the retry begins from the parent again, or fails for want of it."""
    bench = Bench()
    parent = folder.parent / "other" / "g000001/attempts/000001/checkpoint_p"
    if is_there:
        parent.mkdir(parents=True)
        (parent / "model.pt").write_bytes(b"weights")
    found = ParentCheckpoint(uri=str(parent), files=(CheckpointFile(key="model.pt", size=7),), num_files=1)
    bench.own(1)
    bench.claim(1, warm_start=WarmStartRecord(parent=found, reason="named"))
    bench.end("failed")
    said = cli("restore-plan", on_disk(bench, folder), "--json")
    assert said.json["restore"]["reason"] == "warm start's parent: no committed checkpoint in 1 earlier attempts"
    assert "from the start: " not in cli("restore-plan", folder).text, "it begins from the parent, and says so once"
    assert said.json["restore"]["warm_start_from"] == str(parent)
    assert said.json["would_fail"] is not is_there
    assert said.code == (OK if is_there else PROBLEM)
    if not is_there:
        assert "no file is left of it" in said.json["failure"]
        assert "warm_start has missing='fail'" in said.json["assumed"]
