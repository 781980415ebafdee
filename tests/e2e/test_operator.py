"""The operator on a real Airflow, Ray and S3: what a DAG author and the person on call get to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.stack.airflow_client import AirflowClient
from tests.stack.process import wait_until
from tests.stack.services import Stack
from tests.support.training_run import TrainingRun, driver_processes, is_bit_equal, kill

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]
Start = Callable[..., TrainingRun]
LIMIT_S = 240.0


def wait_for_commits(run: TrainingRun, count: int) -> None:
    """Wait until the bucket holds `count` committed checkpoints of the experiment."""
    wait_until(
        lambda: run.records() is not None and len(run.lineage().checkpoints) >= count,
        timeout_s=LIMIT_S,
        what=f"{count} commits of {run.run_id}",
        every_s=0.5,
    )


def wait_for_end(run: TrainingRun) -> dict[str, Any]:
    """Wait until the task has ended for good."""
    return run.airflow.wait_for_task(*run.key, map_index=run.map_index, timeout_s=LIMIT_S)


def jobs_of(run: TrainingRun) -> list[str]:
    """Submission ids that the experiment claimed."""
    return [a.submission_id for a in run.lineage().attempts]


def test_a_deferred_training_publishes_result_lineage_links_and_log(unharmed: TrainingRun) -> None:
    result, lineage = unharmed.xcom(), unharmed.xcom("checkpoint_lineage")
    assert result["state"] == "success"
    assert result["new_checkpoints"] == 6
    assert result["fenced"] is True
    assert result["latest_checkpoint"]["metrics"]["epoch"] == 5
    assert [c["metrics"]["epoch"] for c in lineage["checkpoints"]] == list(range(6))
    assert lineage["checkpoints"][0]["parent"] is None
    assert lineage["checkpoints"][5]["parent"] == lineage["checkpoints"][4]["name"]
    links = unharmed.airflow.links(*unharmed.key)
    assert result["submission_id"] in str(links["Ray job"])
    assert str(links["Experiment"]).startswith(f"{unharmed.stack.s3.shown_url}/models/e2e/")
    assert str(links["Lineage"]).endswith("/plugin/ray-train-lineage")
    log = unharmed.log()
    assert "checkpoint 6 committed: epoch=5" in log
    assert "budgets (failure, who recovers, how often)" in log
    assert log.count("checkpoint 6 committed: epoch=5") == 1


def test_no_secret_reaches_xcom_log_or_job(unharmed: TrainingRun, stack: Stack) -> None:
    """G11: tokens and keys stay in the connections."""
    secrets = [stack.ray.token, stack.s3.secret_key]
    assert "airflow_dag_id" in unharmed.job_as_ray_shows_it
    shown = [
        unharmed.log(),
        unharmed.job_as_ray_shows_it,
        str(unharmed.xcom()),
        str(unharmed.xcom("checkpoint_lineage")),
    ]
    shown.append(str(unharmed.task().get("rendered_fields", "")))
    assert not [s for s in secrets for text in shown if s in text]


@pytest.mark.slow
def test_the_job_link_is_there_while_the_task_is_deferred(start: Start) -> None:
    run = start("train_deferred", epochs=3, epoch_seconds=1)
    run.airflow.wait_for_task(*run.key, states={"deferred"}, timeout_s=LIMIT_S)
    job = run.xcom("ray_train_job")
    assert job["submission_id"] in str(run.airflow.links(*run.key)["Ray job"])
    assert wait_for_end(run)["state"] == "success"


@pytest.mark.slow
@pytest.mark.scenario("C32")
def test_a_killed_driver_is_restored_by_the_retry_bit_for_bit(start: Start, unharmed: TrainingRun) -> None:
    run = start("train_deferred", epochs=6, epoch_seconds=1)
    wait_for_commits(run, 2)
    assert kill(driver_processes(run.stack.ray)), "the fault did not fire"
    assert wait_for_end(run)["state"] == "success"
    lineage = run.lineage()
    assert [t.try_number for t in lineage.tries] == [1, 2]
    assert [a.state for a in lineage.attempts] == ["failed", "success"]
    assert lineage.attempts[1].restored_from is not None
    assert [c.metrics["epoch"] for c in lineage.checkpoints if c.state != "uncommitted"] == list(range(6))
    assert run.xcom()["restore_proven"] == "yes"
    assert is_bit_equal(run.weights(), unharmed.weights())


@pytest.mark.slow
@pytest.mark.scenario("C26")
def test_a_replaced_cluster_is_noticed_and_the_retry_restores(start: Start, unharmed: TrainingRun) -> None:
    run = start("train_deferred", epochs=6, epoch_seconds=1)
    wait_for_commits(run, 2)
    session = run.stack.ray.session_name()
    run.stack.ray.kill_head()
    run.stack.ray.start()
    assert run.stack.ray.session_name() != session, "the fault did not fire"
    assert wait_for_end(run)["state"] == "success"
    lineage = run.lineage()
    assert lineage.attempts[0].failure_kind == "lost"
    assert lineage.attempts[1].restored_from is not None
    assert is_bit_equal(run.weights(), unharmed.weights())


@pytest.mark.slow
@pytest.mark.scenario("C25")
def test_a_killed_airflow_worker_attaches_to_the_running_job(start: Start, unharmed: TrainingRun) -> None:
    """No training time is lost: try 2 joins the job of try 1."""
    run = start("train_blocking", epochs=6, epoch_seconds=2)
    wait_for_commits(run, 1)
    title = f"airflow worker -- {run.task()['id']}"  # what a task's own process calls itself
    assert kill([p for p in run.stack.airflow.scheduler.processes() if title in " ".join(p.cmdline())]), "no fault"
    assert wait_for_end(run)["state"] == "success"
    lineage = run.lineage()
    assert run.task()["try_number"] == 2
    assert [t.acted_on for t in lineage.tries] == ["g1/a1", "g1/a1"]
    assert len(jobs_of(run)) == 1
    assert "attaching to job" in run.log(2)
    assert run.log(2).count("checkpoint 6 committed: epoch=5") == 1, "the blocking mode streams the job's log too"
    assert is_bit_equal(run.weights(), unharmed.weights())


@pytest.mark.slow
@pytest.mark.scenario("C72")
def test_a_user_error_ends_the_retries_and_shows_the_inner_exception(start: Start) -> None:
    run = start("train_deferred", epochs=4, break_in_epoch=1)
    task = wait_for_end(run)
    assert (task["state"], task["try_number"]) == ("failed", 1)
    failure = run.xcom("ray_train_failure")
    assert failure["kind"] == "user"
    assert failure["reason"].count("labels") == 1
    assert "counting.py:" in failure["reason"], "the author's own line"
    assert not failure["retryable"]
    assert [c.metrics["epoch"] for c in run.lineage().checkpoints] == [0]


def test_every_way_to_say_what_to_train(start: Start) -> None:
    """All at the same time: each job spends most of its time on waiting for Ray."""
    train_three_epochs(start, "train_factory", "train_script", "train_function", "train_v1")


@pytest.mark.slow
def test_an_elastic_training_gets_its_rows_from_a_factory(start: Start) -> None:
    train_three_epochs(start, "train_elastic")


def train_three_epochs(start: Start, *dag_ids: str) -> None:
    """Run these trainings side by side to their end."""
    runs = {dag_id: start(dag_id, epochs=3) for dag_id in dag_ids}
    for dag_id, run in runs.items():
        assert wait_for_end(run)["state"] == "success", run.log()[-4000:]
        result = run.xcom()
        assert result["new_checkpoints"] == 3, dag_id
        assert result["latest_checkpoint"]["metrics"]["epoch"] == 2, dag_id
        assert result["fenced"] is (dag_id != "train_v1"), dag_id


@pytest.mark.slow
@pytest.mark.scenario("C55")
def test_mapped_tasks_have_experiments_of_their_own(start: Start) -> None:
    runs = [start("train_mapped")]
    runs += [TrainingRun(runs[0].stack, runs[0].airflow, "train_mapped", runs[0].run_id, "train", i) for i in (0, 1)]
    results = []
    for run in runs[1:]:
        assert wait_for_end(run)["state"] == "success"
        results.append(run.xcom())
    assert [r["new_checkpoints"] for r in results] == [1, 2]
    assert results[0]["experiment"] != results[1]["experiment"]


@pytest.mark.scenario("C60")
def test_marking_a_deferred_task_failed_stops_its_job(start: Start) -> None:
    """G4: no orphan keeps the GPUs."""
    run = start("train_deferred", epochs=60, epoch_seconds=1)
    wait_for_commits(run, 1)
    run.airflow.set_task_state(*run.key, "failed")
    wait_until(lambda: not driver_processes(run.stack.ray), timeout_s=60, what="the driver to end")
    assert run.lineage().attempts[0].state in ("cancelled", "unknown")
    # The listener works beside the trigger, in another process: which of the two ends the driver first is open.
    wait_until(lambda: run.lineage().tries[-1].final, timeout_s=60, what="the final owner")


@pytest.mark.slow
def test_a_mark_right_after_the_start_leaves_no_orphan(start: Start) -> None:
    """Before the first owner record no listener finds anything to stop: the try itself must not submit any more."""
    run = start("train_deferred", epochs=60, epoch_seconds=1)
    run.airflow.wait_for_task(*run.key, states={"running"}, timeout_s=LIMIT_S)
    run.airflow.set_task_state(*run.key, "failed")
    wait_until(lambda: run.task()["state"] == "failed", timeout_s=30, what="the mark")
    # A job that slipped through would be submitted by now and show its driver; the next one is behind it in the queue.
    probe = start("train_deferred", epochs=1)
    assert wait_for_end(probe)["state"] == "success"
    assert not driver_processes(run.stack.ray)


BAD_REQUESTS = {
    # task id: (failure kind, words a person must find in the log, whether a job was submitted)
    "no_module": ("config", "no_such_module", True),
    "no_function": ("config", "no_such_function", True),
    "no_bucket": ("config", "no-such-bucket", False),
    "bad_token": ("auth", "403", False),
    "not_ray": ("config", "Ray", False),
    "no_permission": ("permission", "s3:", False),
    "rendered_wrong": ("config", "num_workers", False),
    "no_code": ("config", "no_such_folder", False),
    "no_connection": ("config", "no_such_connection", False),
}


def test_bad_requests_fail_at_once_typed_and_without_a_job(stack: Stack, airflow: AirflowClient) -> None:
    """Found before GPUs are taken where it can be; never retried; nothing left behind."""
    run_id = airflow.run_dag("bad_requests")
    for task_id, (kind, words, is_submitted) in BAD_REQUESTS.items():
        task = airflow.wait_for_task("bad_requests", run_id, task_id, timeout_s=LIMIT_S)
        log = airflow.log_text("bad_requests", run_id, task_id)
        assert (task["state"], task["try_number"]) == ("failed", 1), (task_id, log[-3000:])
        assert words in log, (task_id, log[-3000:])
        failure = airflow.xcom("bad_requests", run_id, task_id, key="ray_train_failure")
        assert (failure["kind"], failure["retryable"]) == (kind, False), (task_id, failure)
        url = airflow.xcom("bad_requests", run_id, task_id, key="ray_job_url")
        assert (url is not None) == is_submitted, task_id
    assert not driver_processes(stack.ray)


@pytest.mark.slow
@pytest.mark.scenario("C61")
def test_a_killed_triggerer_costs_nothing_and_a_mark_without_one_leaves_no_orphan(start: Start) -> None:
    """The job goes on; another triggerer waits for it. While none runs, the listener stops what a person ended."""
    run = start("train_deferred", epochs=8, epoch_seconds=1)
    wait_for_commits(run, 1)
    triggerer = run.stack.airflow.triggerer
    triggerer.kill()
    marked = start("train_deferred", epochs=60, epoch_seconds=1)
    wait_for_commits(marked, 1)
    marked.airflow.set_task_state(*marked.key, "failed")
    wait_until(lambda: marked.lineage().tries[-1].final, timeout_s=30, what="the final owner")
    wait_until(
        lambda: marked.lineage().attempts[0].state == "cancelled", timeout_s=60, what="the driver to obey, no triggerer"
    )
    triggerer.start()
    assert wait_for_end(run)["state"] == "success"
    assert run.task()["try_number"] == 1
    assert len(jobs_of(run)) == 1
    assert run.xcom()["new_checkpoints"] == 8


def test_the_connection_form_and_its_test(stack: Stack, airflow: AirflowClient) -> None:
    meta = {m["connection_type"]: m for m in airflow_ui(airflow, "/ui/connections/hook_meta")}
    assert set(meta["ray"]["extra_fields"]) == {"verify", "ca_file", "header_name", "headers"}
    body = {"connection_id": "tried", "conn_type": "ray", "host": stack.ray.address, "password": stack.ray.token}
    good = airflow.request("POST", "/connections/test", json=body)
    assert good["status"] is True
    assert stack.ray.session_name() in good["message"]
    bad = airflow.request("POST", "/connections/test", json=body | {"password": "made-up-token"})
    assert bad["status"] is False
    assert "403" in bad["message"]
    assert "made-up-token" not in str(bad)
    assert stack.ray.token not in str(good)


def airflow_ui(airflow: AirflowClient, path: str) -> Any:
    """A route of the UI's own API."""
    headers = {"Authorization": f"Bearer {airflow.token()}"}
    answer = httpx.get(f"{airflow.base_url}{path}", headers=headers, trust_env=False)
    answer.raise_for_status()
    return answer.json()
