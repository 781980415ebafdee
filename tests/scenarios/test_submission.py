"""Submission, reattachment and duplicates: over HTTP, from the POST to what Airflow does with the end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider.client.jobs_client import SyncJobsClient
from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, RayJobFailed
from airflow_provider.core.failure import FailureKind
from airflow_provider.testing.jobs_api_parts import Fault
from tests.support.case_files import expected
from tests.support.decisions import is_retried
from tests.support.operator_run import World
from tests.support.tape import Tape
from tests.support.whole_try import failed_try, try_by


@pytest.mark.scenario("C23")
@pytest.mark.parametrize("status", [500, 400])
def test_a_lost_reply_and_a_refused_repetition_are_one_job(world: World, status: int) -> None:
    """Ray accepted the first POST unheard, denied knowing it, then refused the second as a duplicate: attach."""
    lost = world.server.add(Fault("drop", "POST", r".*/api/jobs/", times=1))
    told = {"status": 404, "body": f"Job {world.job_id()} does not exist", "content_type": "text/plain"}
    unknown = world.server.add(Fault("answer", "GET", f".*/api/jobs/{world.job_id()}", times=1, **told))
    refusal = Tape.load("C23", "tape-400.json" if status == 400 else "tape.json").routes["POST", ".*/api/jobs/?"][-1]
    assert refusal["status"] == status
    text = refusal["text"].replace("af_demo_train_7f3a9c_t1", world.job_id())
    refused = world.server.add(
        Fault("answer", "POST", r".*/api/jobs/", times=1, status=status, body=text, content_type="text/plain")
    )
    trigger = world.defer()
    assert (lost.num_hit, unknown.num_hit, refused.num_hit) == (1, 1, 1)
    sent = {json.loads(r.body)["submission_id"] for r in world.server.requests if r.path.endswith("/api/jobs/")}
    assert sent == {trigger.submission_id}
    assert len(sent) == expected("C23")["distinct_submission_ids"] == len(world.server.jobs)
    world.succeed(trigger)
    assert world.complete(world.follow(trigger))["state"] == expected("C23")["final"]


@pytest.mark.scenario("C25")
def test_a_worker_that_died_right_after_the_post_is_followed_by_an_attaching_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was saved and Airflow wiped the XComs: the id is derived, the job found, and no second one posted."""
    submit = SyncJobsClient.submit

    def killed(client: SyncJobsClient, request: Any) -> Any:
        submit(client, request)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SyncJobsClient, "submit", killed)
        with pytest.raises(KeyboardInterrupt):
            world.operator().execute(world.task.context)
    (job_id,) = world.server.jobs
    assert "submission_id" not in str(world.task.ti.xcoms)
    world.server.set_status(job_id, "RUNNING")
    world.next_try()
    trigger = world.defer()
    assert (trigger.submission_id, world.server.num_posts) == (job_id, 1)
    assert world.task.ti.xcoms["ray_train_job"]["submission_id"] == job_id


@pytest.mark.scenario("C26")
def test_a_head_that_forgot_the_job_means_lost_and_the_retry_restores(world: World) -> None:
    """RUNNING, silence, then 404 in a new session: lost after a short confirmation, and the next id is another."""
    trigger = try_by(world, Tape.load("C26"))
    world.bench.commit("checkpoint_0")
    world.server.session_name = "session_fake_2"
    event = world.follow(trigger, lost_after_s=0.05, lost_polls=3)
    assert event["end"] == "lost"
    assert "session_fake_2" in event["reason"]
    with pytest.raises(RayJobFailed) as caught:
        world.complete(event)
    assert caught.value.failure.kind is FailureKind.LOST
    assert is_retried(caught.value) is expected("C26")["retry"]
    world.server.replace_head()
    world.next_try()
    again = world.defer()
    assert again.submission_id != trigger.submission_id
    claim = world.records.newest_claim()
    assert claim is not None
    assert claim.checkpoint_seen == "attempts/000001/checkpoint_0"


@pytest.mark.scenario("C28")
def test_a_job_that_the_cluster_can_not_place_is_stopped_and_fails_for_capacity(world: World) -> None:
    """It asked for 8 GPUs that nobody has; Ray ignores the stop of a PENDING job, so the record must lie there too."""
    tape = Tape.load("C28")
    event = world.follow(try_by(world, tape), pending_timeout_s=0.05)
    assert (world.server.num("POST", ".*/stop") == 1) is expected("C28")["stop_called"]
    assert layout.stop(1, 1, 1) in world.bench.written()
    with pytest.raises(RayJobFailed) as caught:
        world.complete(event)
    assert caught.value.failure.kind.value.upper() == expected("C28")["class"]
    assert tape.last_job["message"] in str(caught.value)
    assert is_retried(caught.value)


@pytest.mark.scenario("C30")
@pytest.mark.parametrize("file", ["tape.json", "tape-old-ray.json"])
def test_a_runtime_environment_that_can_not_be_built_is_final(world: World, file: str) -> None:
    """A version that does not exist won't exist on the next try either; nothing is said of checkpoints."""
    error = failed_try(world, Tape.load("C30", file))
    assert error.failure.kind.value.upper() == expected("C30")["class"]
    assert is_retried(error) is expected("C30")["retry"]
    assert error.failure.reason.endswith("torch==9.9.9 (reconstructed pip output)")
    assert len(error.failure.reason) < 300
    assert "restore" not in str(error)


@pytest.mark.scenario("C31")
def test_a_package_that_is_too_large_fails_at_once_without_a_job(world: World) -> None:
    """The dashboard answers with a raw 500; retries would send the same gigabyte again."""
    (fault,) = Tape.load("C31").arm(world.server, "PUT", ".*/api/packages/.*")
    with pytest.raises(InvalidConfig) as caught:
        world.operator().execute(world.task.context)
    assert fault.num_hit == 1
    assert world.server.num_posts == expected("C31")["job_posts"]
    assert is_retried(caught.value) is expected("C31")["retry"]
    for word in (" bytes", "limit", ".rayignore", "excludes"):
        assert word in str(caught.value)


@pytest.mark.scenario("C32")
@pytest.mark.parametrize("file", ["tape-137.json", "tape-minus9.json"])
def test_a_killed_driver_is_retried_and_told_to_be_killed(world: World, file: str) -> None:
    """SIGKILL leaves no reason: the kernel for memory, or a person; it is no user error."""
    error = failed_try(world, Tape.load("C32", file))
    assert error.failure.kind is FailureKind.OUT_OF_MEMORY
    assert is_retried(error)
    for words in ("SIGKILL", "possibly for memory", "possibly by someone"):
        assert words in error.failure.reason
    assert "code" in error.failure.reason
    assert "user" not in error.failure.reason


@pytest.mark.scenario("C33")
@pytest.mark.parametrize("is_strict", [False, True])
def test_a_job_that_succeeded_without_a_checkpoint_is_seen_through(world: World, is_strict: bool) -> None:
    """The script ended in `|| true`: Ray says SUCCEEDED, the driver left no outcome, and nothing was trained."""
    event = world.follow(try_by(world, Tape.load("C33")))
    operator = world.operator(require_new_checkpoint=is_strict)
    if is_strict:
        with pytest.raises(RayJobFailed, match="committed no new checkpoint") as caught:
            world.complete(event, operator=operator)
        assert not is_retried(caught.value)
    else:
        result = world.complete(event, operator=operator)
        assert (result["state"], result["new_checkpoints"]) == ("success", 0)


@pytest.mark.scenario("C33")
def test_a_job_that_succeeded_after_three_of_ten_epochs_says_how_far_it_came(world: World) -> None:
    """The error was swallowed after epoch 3: the published metrics are what the author's own check needs."""
    trigger = try_by(world, Tape.load("C33"))
    names = world.bench.commit("checkpoint_0", "checkpoint_1", "checkpoint_2")
    result = world.complete(world.follow(trigger))
    assert (result["state"], result["new_checkpoints"]) == ("success", 3)
    assert result["latest_checkpoint"]["name"] == f"g000001/{names[-1]}"
    assert result["latest_checkpoint"]["metrics"] == {"epoch": 2}
    assert world.task.ti.xcoms["checkpoint_lineage"]["attempts"][0]["state"] == "success"


@pytest.mark.scenario("C34")
def test_a_stop_from_the_command_line_ends_the_wait_and_is_not_retried(world: World) -> None:
    """STOPPED is an end; who stopped the job by hand does not want it back by itself."""
    error = failed_try(world, Tape.load("C34"))
    assert error.failure.kind.value.upper() == expected("C34")["class"]
    assert is_retried(error) is expected("C34")["retry"]
    assert "stopped outside Airflow" in str(error)


@pytest.mark.scenario("C37")
def test_a_superseded_try_does_not_stop_the_job_that_a_newer_one_attached_to(world: World) -> None:
    """The scheduler took try 1 for dead; its SIGTERM comes when try 2 already owns the job."""
    first = world.operator()
    trigger = world.defer(first)
    world.server.set_status(trigger.submission_id, "RUNNING")
    old_task = world.task.ti
    world.next_try()
    assert world.defer().submission_id == trigger.submission_id
    old_task.state = "failed"
    first.on_kill()
    assert world.server.num("POST", ".*/stop") == 0
    assert world.server.jobs[trigger.submission_id].status == "RUNNING"
    assert not [key for key in world.bench.written() if "/stop-" in key]
