"""The installed `airflow ray-train ...` on a real Airflow, Ray and bucket: what a person on call and their scripts get."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from airflow_provider.core import layout
from airflow_provider.core.record_parts import ParentCheckpoint, WarmStartRecord
from airflow_provider.core.records import ClaimRecord, OwnerRecord
from tests.e2e.test_operator import wait_for_commits, wait_for_end
from tests.stack.process import program, wait_until
from tests.stack.services import Stack
from tests.support.command_line import Said
from tests.support.training_run import TrainingRun, driver_processes, kill, records_at

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]
Start = Callable[..., TrainingRun]


def ray_train(stack: Stack, *words: str, start: tuple[str, ...] | None = None) -> Said:
    """Run the command as it is installed, in an environment like that of Airflow's own processes."""
    done = subprocess.run(
        [*(start or (program("airflow"),)), "ray-train", *words],
        # With OpenTelemetry on, Airflow logs to stdout before it calls any command (docs/cli.md, For scripts).
        env=stack.airflow.env() | {"AIRFLOW__METRICS__OTEL_ON": "False"},
        cwd=stack.state_dir,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    said = Said(done.returncode, done.stdout, done.stderr)
    shown = said.out + said.err
    assert "Traceback" not in shown, shown
    assert not [secret for secret in (stack.ray.token, stack.s3.secret_key) if secret in shown]
    return said


def all_at_once(stack: Stack, *commands: tuple[str, ...]) -> list[Said]:
    """Several commands side by side: each spends its time on importing Airflow."""
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda words: ray_train(stack, *words), commands))


def names(run: TrainingRun) -> tuple[str, ...]:
    """The task instance on a command line."""
    return ("--dag-id", run.dag_id, "--task-id", run.task_id, "--run-id", run.run_id)


def test_the_commands_on_a_finished_training(unharmed: TrainingRun, stack: Stack) -> None:
    uri = unharmed.xcom()["experiment"]
    last = unharmed.lineage().checkpoints[-1].name
    lineage, by_names, experiments, plan, nowhere, unknown = all_at_once(
        stack,
        ("lineage", uri),
        ("lineage", *names(unharmed), "--json"),
        ("experiments", "s3://models/e2e", "--dag-id", "train_deferred", "--limit", "100", "--json"),
        ("restore-plan", uri, "--json"),
        ("lineage", "s3://models/e2e/nowhere"),
        ("lineage", uri, "--aws-conn-id", "no_such"),
    )
    assert lineage.code == 0, lineage.err
    assert "success: g1/a1 ended with success" in lineage.text
    assert "1 try, 1 attempt, 6 checkpoints (6 committed)" in lineage.text
    assert f"{last.rpartition('/')[2]} committed" in lineage.text
    assert "\x1b" not in lineage.out
    assert lineage.out.splitlines()[0] == uri
    assert max(map(len, lineage.out.splitlines()[1:])) <= 80
    assert [c["metrics"]["epoch"] for c in by_names.json["checkpoints"]] == [0, 1, 2, 3, 4, 5]
    states = {one["experiment"]: one["state"] for one in experiments.json["experiments"]}
    assert states[uri] == "success"
    planned = plan.json
    assert planned["task"]["airflow_state"] == "success"
    assert (planned["next_try"]["after"], planned["decision"], planned["attempt"]) == ("clear", "Start", "g2/a1")
    assert (nowhere.code, unknown.code) == (3, 3)
    assert "There is no experiment at s3://models/e2e/nowhere" in nowhere.err
    assert "Airflow has no connection 'no_such'" in unknown.err

    aside = ray_train(stack, "checkpoints", "quarantine", f"{uri}/{last}", "--reason", "a bad batch", "--json")
    assert aside.code == 0, aside.err
    assert "checkpoint" in aside.json["next_restore"]
    assert last not in aside.json["next_restore"]
    assert unharmed.lineage().checkpoints[-1].state == "quarantined"
    back = ray_train(stack, "checkpoints", "release", last, *names(unharmed), "--reason", "it was good")
    assert back.code == 0, back.err
    assert unharmed.lineage().checkpoints[-1].state == "committed"


def test_doctor_looks_from_both_sides(stack: Stack) -> None:
    good, bad = all_at_once(
        stack,
        ("doctor", "--storage-path", "s3://models/e2e", "--submit-check", "--json"),
        ("doctor", "--conn-id", "ray_bad_token", "--storage-path", "s3://no-such-bucket/x"),
    )
    assert good.code == 0, good.out
    found = good.json["findings"]
    assert {one["health"] for one in found} == {"ok"}, "plain http on loopback is nothing to warn of"
    inside = {one["check"]: one["what"] for one in found}
    assert "all of Ray's internals" in inside["ray-seams"]
    assert inside["cluster-bucket"].startswith("the cluster's identity: delete")
    client = stack.s3.client()
    left = client.list_objects_v2(Bucket="models", Prefix="e2e/.ray-train-doctor").get("Contents", [])
    assert left == []
    assert bad.code == 1
    assert "no-such-bucket does not exist" in bad.text
    assert "refused our identity (status 403)" in bad.text
    assert "to do: correct the connection's token" in bad.text


def test_gc_stops_an_orphan_and_nothing_else(unharmed: TrainingRun, stack: Stack) -> None:
    """A job whose attempt was followed by another one, and that lives on all the same."""
    orphan = f"af-orphan-{unharmed.run_id[-12:].replace('+', '-').replace(':', '-').replace('.', '-')}"
    uri = copied(stack, unharmed.xcom()["experiment"], "orphaned", orphan=orphan)
    submit_sleeper(stack, orphan, experiment=uri)
    wait_until(lambda: status_of(stack, orphan) == "RUNNING", timeout_s=60, what="the orphan to run")
    looked = ray_train(stack, "gc", "s3://models/cli", "--json")
    assert looked.code == 0, looked.err
    collected = [item for item in looked.json["items"] if item["verdict"] == "collect"]
    assert [(item["scope"], item["name"]) for item in collected] == [("job", orphan)]
    assert status_of(stack, orphan) == "RUNNING", "a dry run"
    done = ray_train(stack, "gc", "s3://models/cli", "--jobs", "--apply")
    assert done.code == 0, done.out + done.err
    assert "g1/a2 was claimed after g1/a1" in done.text
    wait_until(lambda: status_of(stack, orphan) == "STOPPED", timeout_s=60, what="the orphan's end")
    assert records_at(stack.s3, uri).stops(ClaimRecord.parse(claim_body(stack, uri, 1), key="claim").ref)


def copied(stack: Stack, uri: str, name: str, *, orphan: str, root: str = "s3://models/cli") -> str:
    """The experiment at another path, with a second attempt and the first one's job renamed."""
    source, target = records_at(stack.s3, uri), records_at(stack.s3, f"{root}/{name}")
    for info in source.store.list(""):
        found = source.store.read(info.key)
        if found is not None and info.key != layout.outcome(1, 1):
            target.store.write(info.key, found.body)
    first = ClaimRecord.parse(claim_body(stack, uri, 1), key="claim")
    for number, job in ((1, orphan), (2, f"{orphan}-2")):
        claim = first.model_copy(update={"attempt": number, "submission_id": job})
        target.store.write(layout.claim(1, number), claim.body())
    return target.store.uri


def claim_body(stack: Stack, uri: str, attempt: int) -> bytes:
    found = records_at(stack.s3, uri).store.read(layout.claim(1, attempt))
    assert found is not None
    return found.body


def submit_sleeper(stack: Stack, job_id: str, *, experiment: str) -> None:
    """A job that looks like one of ours and does nothing."""
    from airflow_provider.client.address import ClusterAddress
    from airflow_provider.client.credentials import ClusterCredentials
    from airflow_provider.client.jobs_client import SyncJobsClient
    from airflow_provider.client.values import JobRequest

    metadata = {
        "airflow_dag_id": "train_deferred",
        "airflow_run_id": "r",
        "airflow_task_id": "train",
        "experiment": experiment,
        "attempt": "g1/a1",
    }
    credentials = ClusterCredentials(token=stack.ray.token)
    with SyncJobsClient(ClusterAddress.parse(stack.ray.address), credentials=credentials) as client:
        client.submit(JobRequest(submission_id=job_id, entrypoint="sleep 600", metadata=metadata))


def status_of(stack: Stack, job_id: str) -> str:
    return str(json.loads(stack.ray.get(f"/api/jobs/{job_id}"))["status"])


@pytest.mark.slow
def test_a_training_that_fails_and_restores_under_the_eyes_of_the_commands(start: Start, stack: Stack) -> None:
    run = start("train_deferred", epochs=8, epoch_seconds=1)
    wait_for_commits(run, 2)
    plan = ray_train(stack, "restore-plan", *names(run), "--json").json
    assert (plan["task"]["airflow_state"], plan["decision"], plan["attempt"]) == ("deferred", "Attach", "g1/a1")
    assert kill(driver_processes(stack.ray)), "the fault did not fire"
    assert wait_for_end(run)["state"] == "success"
    shown, data = all_at_once(stack, ("lineage", *names(run), "--all"), ("lineage", *names(run), "--json"))
    assert "2 tries, 2 attempts" in shown.text
    assert "why: g1/a1 ended FAILED" in shown.text
    first, second = data.json["attempts"]
    assert (first["state"], second["state"]) == ("failed", "success")
    assert f"from {second['restored_from']}" in shown.text
    again = ray_train(stack, "restore-plan", *names(run), "--json", "--after", "retry").json
    assert (again["decision"], again["would_fail"]) == ("Finished", False)


def gc_at_once(stack: Stack, *words: str) -> Said:
    """The same command, but for the age that it asks of everything: no test can wait for an hour by the store's clock."""
    code = (
        "import sys; from airflow_provider.cli import gc; gc.LEAST_AGE_S = 0.0; "
        "from airflow.__main__ import main; sys.argv[0] = 'airflow'; main()"
    )
    return ray_train(stack, "gc", *words, "--older-than", "0m", "--json", start=(sys.executable, "-c", code))


@pytest.mark.slow
def test_gc_removes_what_is_nobodys_from_a_real_bucket_and_nothing_else(unharmed: TrainingRun, stack: Stack) -> None:
    """An orphan job, an upload that was cut off and an old experiment go; the next run's parent and a child's parent stay."""
    unharmed.airflow.wait_for_dag_run(unharmed.dag_id, unharmed.run_id)  # what may go on is kept
    source, root = unharmed.xcom()["experiment"], "s3://models/gc"
    sandbox = Sandbox(stack, source, root)
    newest = sandbox.copy("newest", days_ago=-0.001)  # the orphaned one is of the same moment
    parent = sandbox.copy("parent", days_ago=3)
    child = sandbox.copy("child", days_ago=2, warm_start=f"{parent}/{unharmed.lineage().checkpoints[-1].name}")
    old = sandbox.copy("old", days_ago=4)
    orphan = f"af-gc-orphan-{time.time_ns()}"
    orphaned = copied(stack, source, "orphaned", orphan=orphan, root=root)
    cut_off = f"{newest}/g000001/attempts/000001/checkpoint_cut_off"
    sandbox.put(f"{cut_off}/state.pt", b"half of a state")
    submit_sleeper(stack, orphan, experiment=orphaned)
    wait_until(lambda: status_of(stack, orphan) == "RUNNING", timeout_s=120, what="the orphan to run")
    before = sandbox.objects()

    looked = gc_at_once(stack, root)
    assert looked.code == 0, looked.out + looked.err
    wanted = {("job", orphan), ("leftover", cut_off), ("experiment", old)}
    # The child is over, as old as its parent, and nobody began from it.
    assert chosen(looked, "collect") == wanted | {("experiment", child)}
    kept = {item["name"]: item["why"] for item in looked.json["items"] if item["verdict"] == "keep"}
    assert f"{child} began from it" in kept[parent]
    assert "the next run may begin from it" in kept[newest]
    assert kept[orphaned] == "the job of g1/a1 is RUNNING", "its claims hold the orphan back"
    assert sandbox.objects() == before, "a dry run"
    assert status_of(stack, orphan) == "RUNNING"

    done = gc_at_once(stack, root, "--jobs", "--leftovers", "--experiments", "--apply")
    assert done.code == 0, done.out + done.err
    wait_until(lambda: status_of(stack, orphan) == "STOPPED", timeout_s=120, what="the orphan's end")
    after = sandbox.objects()
    gone = before.keys() - after.keys()
    assert {key for key in before if key.startswith("gc/old/")} <= gone
    assert {key.split("/")[1] for key in gone} == {"old", "child", "newest"}
    assert [key for key in gone if key.startswith("gc/newest/")] == [sandbox.key(f"{cut_off}/state.pt")]
    assert {key.split("/")[1] for key in after.keys() - before.keys()} == {"orphaned"}, "the record of the stop"
    assert all(after[key] == etag for key, etag in before.items() if key not in gone)

    again = gc_at_once(stack, root)
    assert chosen(again, "collect") == {("experiment", parent), ("experiment", orphaned)}, (
        "the child and the job are gone"
    )


def chosen(said: Said, verdict: str) -> set[tuple[str, str]]:
    """Scopes and names of what `gc` would collect, or keep."""
    return {(item["scope"], item["name"]) for item in said.json["items"] if item["verdict"] == verdict}


class Sandbox:
    """Copies of a training that ended well, below a path of their own."""

    def __init__(self, stack: Stack, source: str, root: str) -> None:
        self.stack, self.source, self.root = stack, records_at(stack.s3, source), root
        self.bucket, _, self.prefix = root.removeprefix("s3://").partition("/")

    def copy(self, name: str, *, days_ago: float, warm_start: str | None = None) -> str:
        """The experiment as that of an earlier DAG run, perhaps begun from another one's checkpoint."""
        target = records_at(self.stack.s3, f"{self.root}/{name}")
        for info in self.source.store.list(""):
            found = self.source.store.read(info.key)
            assert found is not None
            target.store.write(info.key, found.body)
        owner = OwnerRecord.parse(self.body(layout.owner(1)), key="owner")
        at = owner.created_at - timedelta(days=days_ago)
        target.store.write(layout.owner(1), owner.model_copy(update={"created_at": at}).body())
        if warm_start is not None:
            claim = ClaimRecord.parse(self.body(layout.claim(1, 1)), key="claim")
            record = WarmStartRecord(parent=ParentCheckpoint(uri=warm_start), reason="a test says so")
            target.store.write(layout.claim(1, 1), claim.model_copy(update={"warm_start": record}).body())
        return target.store.uri

    def body(self, key: str) -> bytes:
        found = self.source.store.read(key)
        assert found is not None
        return found.body

    def put(self, uri: str, body: bytes) -> None:
        self.stack.s3.client().put_object(Bucket=self.bucket, Key=self.key(uri), Body=body)

    def key(self, uri: str) -> str:
        return uri.removeprefix(f"s3://{self.bucket}/")

    def objects(self) -> dict[str, str]:
        """Keys and etags of all that lies below the path."""
        pages = (
            self.stack.s3.client()
            .get_paginator("list_objects_v2")
            .paginate(Bucket=self.bucket, Prefix=f"{self.prefix}/")
        )
        return {one["Key"]: one["ETag"] for page in pages for one in page.get("Contents", [])}
