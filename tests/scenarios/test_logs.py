"""Logs: what a job prints reaches the task log once, harmless and bounded, and never decides how the training ended."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_provider.core.errors import RayJobFailed
from airflow_provider.testing.jobs_api_parts import FakeJob, TailSession
from airflow_provider.triggers.ray_train import RayTrainTrigger
from tests.support.case_files import CASES, expected
from tests.support.operator_run import World
from tests.support.records import outcome
from tests.support.tape import Tape


def deferred(world: World, log: str, *, tape: Tape | None = None, **parameters: Any) -> RayTrainTrigger:
    """A try whose job has this log; without a tape it has ended when the trigger first looks."""

    def driver(job: FakeJob) -> None:
        job.log = log
        if tape is not None:
            tape.follow(world.server, job)
        else:
            world.end(job, "SUCCEEDED", record=outcome())

    world.server.driver = driver
    return world.defer(world.operator(stream_logs=True, **parameters))


def task_log(world: World, trigger: RayTrainTrigger) -> tuple[dict[str, Any], list[str]]:
    """The trigger's event, and all that it wrote to the task log."""
    with capture_logs() as logs:
        event = world.follow(trigger)
    return event, [entry["event"] for entry in logs]


@pytest.mark.scenario("C73")
def test_a_progress_bar_with_colours_and_a_group_marker_is_a_few_plain_lines(world: World) -> None:
    """5,000 redraws in one line would be a log of megabytes, and `::group::` would fold all that follows."""
    bar = "".join(f"\r\x1b[32m{n / 50:5.1f}%\x1b[0m || {n}/5000" for n in range(1, 5001))
    _, lines = task_log(world, deferred(world, f"{bar}\n::group::x\nloss=1\n"))
    right = expected("C73")
    assert len([line for line in lines if "/5000" in line]) <= right["max_lines_from_bar"]
    assert any("5000/5000" in line for line in lines)
    assert "loss=1" in lines
    assert right["no_esc"] is not any("\x1b" in line or "\r" in line for line in lines)
    assert right["literal_group_not_opened"] is not any("::group::" in line for line in lines)


@pytest.mark.scenario("C76")
def test_a_log_stream_that_ends_normally_is_not_the_end_of_the_job(world: World) -> None:
    """Ray closes with 1000 while the job runs: the stream is opened again, and the job's status decides."""
    trigger = deferred(world, "a\nb\nc\nd\n", tape=Tape.load("C76"), poll_interval_s=0.4)
    job = world.server.jobs[trigger.submission_id]
    sessions = json.loads((CASES / "C76" / "tail.json").read_text("utf-8"))["sessions"]
    job.tails = [TailSession(session["chunks"], code=session["close"]) for session in sessions]
    event, lines = task_log(world, trigger)
    assert job.num_tails >= 2
    assert [line for line in lines if line in ("a", "b", "c", "d")] == ["a", "b", "c", "d"]
    assert event["reason"] == f"the job is {expected('C76')['final']}"
    with pytest.raises(RayJobFailed, match="ValueError: x"):
        world.complete(event)


@pytest.mark.scenario("C79")
def test_a_log_that_went_with_its_node_is_a_remark_on_a_success(world: World) -> None:
    """The job's verdict does not depend on its log."""
    tape = Tape.load("C79")
    trigger = deferred(world, "", tape=tape)
    world.server.set_status(trigger.submission_id, "SUCCEEDED")
    (fault,) = tape.arm(world.server, "GET", ".*/logs")
    fault.method = "*"  # whoever asks for the length alone is proxied to that node too
    event, lines = task_log(world, trigger)
    assert fault.num_hit > 0
    assert any("the last log lines could not be read" in line for line in lines)
    world.bench.commit("checkpoint_0")
    assert world.complete(event)["state"] == expected("C79")["final"]


@pytest.mark.scenario("C81")
def test_a_job_that_ended_before_the_first_look_still_shows_its_lines_once(world: World) -> None:
    """It took 0.4 seconds: "no messages" would be a lie."""
    _, lines = task_log(world, deferred(world, "epoch 0\nlast words\n"))
    assert [line for line in lines if line in ("epoch 0", "last words")] == ["epoch 0", "last words"]
