"""Retry classification through the whole chain: what the cluster says, the failure, and what Airflow does with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider.core.errors import RayJobFailed
from airflow_provider.core.failure import FailureKind
from airflow_provider.policies.retry import THROTTLED_DELAY
from tests.support.case_files import CASES, expected
from tests.support.decisions import decided, is_retried
from tests.support.operator_run import World
from tests.support.tape import Tape
from tests.support.whole_try import failed_try, succeeded_try

K = FailureKind
KINDS = {
    "USER": K.USER,
    "CONFIG": K.CONFIG,
    "INFRA": K.INFRASTRUCTURE,
    "INFRA-OOM": K.OUT_OF_MEMORY,
    "PREEMPTED": K.PREEMPTION,
    "PERMISSION": K.PERMISSION,
    "CREDENTIALS-EXPIRED": K.CREDENTIALS_EXPIRED,
    "THROTTLED": K.THROTTLING,
    "STOPPED": K.STOPPED,
}
"""The case list's names for kinds."""


def assert_as_expected(case: str, error: RayJobFailed) -> None:
    """Kind and retry are those of the case."""
    right = expected(case)
    assert error.failure.kind is KINDS[right["class"]]
    assert is_retried(error) is right["retry"]
    assert "\n" not in error.failure.reason


def restored_from(world: World) -> str | None:
    """What the retry's claim saw, after Airflow has started it."""
    world.next_try()
    assert world.defer().attempt == 2
    claim = world.records.newest_claim()
    assert claim is not None
    return claim.checkpoint_seen


@pytest.mark.scenario("C38")
def test_a_bug_on_four_ranks_is_final_and_shown_once(world: World) -> None:
    """Four wrapped copies of one KeyError hide the line that matters; retries would repeat it."""
    error = failed_try(world, Tape.load("C38"))
    assert_as_expected("C38", error)
    assert str(error).count(expected("C38")["message_has_once"]) == 1


@pytest.mark.scenario("C39")
def test_warnings_in_the_middle_of_a_log_decide_nothing_about_a_success(world: World) -> None:
    """Forty skipped batches are the author's business: the job SUCCEEDED."""
    assert "CUDA out of memory" in (CASES / "C39" / "tape-A.json").read_text("utf-8")
    assert succeeded_try(world, Tape.load("C39", "tape-A.json"))["state"] == "success"


@pytest.mark.scenario("C39")
def test_warnings_in_the_middle_of_a_log_decide_nothing_about_a_failure(world: World) -> None:
    """The same warnings, but what ended the job was a 403 of S3."""
    error = failed_try(world, Tape.load("C39", "tape-B.json"))
    assert (error.failure.kind, is_retried(error)) == (K.PERMISSION, False)
    assert "out of memory" not in error.failure.reason


@pytest.mark.scenario("C40")
def test_a_model_that_does_not_fit_the_gpu_is_final(world: World) -> None:
    """It will not fit on the next try either; Ray's kill for host memory is something else."""
    error = failed_try(world, Tape.load("C40"))
    assert_as_expected("C40", error)
    assert "batch" in error.failure.reason


@pytest.mark.scenario("C41")
def test_a_kill_by_rays_memory_monitor_is_retried_with_advice(world: World) -> None:
    """The node was full, maybe for a neighbour's sake; the message says which knob there is."""
    error = failed_try(world, Tape.load("C41"))
    assert_as_expected("C41", error)
    assert "RAY_memory_usage_threshold" in error.failure.reason


@pytest.mark.scenario("C41")
@pytest.mark.parametrize("name", ["ray.exceptions.WorkerCrashedError", "WorkerCrashedError"])
def test_a_worker_that_only_crashed_is_retried_too(world: World, name: str) -> None:
    """Often the same kill, seen from outside: at least infrastructure."""
    said = f"Traceback (most recent call last):\n{name}: The worker died unexpectedly: connection error code 2. EOF\n"
    error = failed_try(world, Tape.load("C41").saying(said))
    assert error.failure.kind in (K.INFRASTRUCTURE, K.OUT_OF_MEMORY)
    assert is_retried(error)


@pytest.mark.scenario("C42")
def test_a_watchdog_that_took_the_workers_down_is_retried(world: World) -> None:
    """A hung collective is no property of the code as such: eight ranks ended with SYSTEM_ERROR."""
    world.bench.commit("checkpoint_0")
    assert_as_expected("C42", failed_try(world, Tape.load("C42")))
    assert restored_from(world) == "attempts/000001/checkpoint_0"


PREEMPTED = [
    "ray.exceptions.ActorDiedError: The actor died because its node has died.\n\tthe actor's node was preempted: spot\n",
    "ray.train.v2.api.exceptions.PreemptionError: node 00aa is being drained\n",
]


@pytest.mark.scenario("C44")
@pytest.mark.parametrize("said", ["", *PREEMPTED])
def test_a_node_that_was_taken_away_is_retried_as_a_preemption(world: World, said: str) -> None:
    """Spot nodes come and go; Ray says it in several ways."""
    tape = Tape.load("C44")
    error = failed_try(world, tape.saying(f"Traceback (most recent call last):\n{said}") if said else tape)
    assert_as_expected("C44", error)


@pytest.mark.scenario("C46")
def test_a_refused_upload_is_final_and_names_bucket_and_key(world: World) -> None:
    """Only somebody who knows where can repair a permission."""
    error = failed_try(world, Tape.load("C46"))
    assert_as_expected("C46", error)
    assert "ml-ckpt" in error.failure.reason
    assert "train/resnet__a1/checkpoint_x" in error.failure.reason


@pytest.mark.scenario("C47")
def test_expired_credentials_are_retried_from_the_last_checkpoint_with_a_warning(world: World) -> None:
    """A new job gets new ones, for another 6 hours: so it will come again, and the message says so."""
    names = world.bench.commit(*(f"checkpoint_{n:06d}" for n in range(1, 41)))
    error = failed_try(world, Tape.load("C47"))
    assert_as_expected("C47", error)
    assert "recurs" in error.failure.reason
    assert restored_from(world) == names[39]


@pytest.mark.scenario("C48")
@pytest.mark.parametrize("tail", ["", "tail-b.txt"])
def test_throttling_is_retried_later_and_the_half_written_checkpoint_is_not_restored(world: World, tail: str) -> None:
    """503 SlowDown, with and without a body: the directory that was being completed is on disk only."""
    (committed,) = world.bench.commit("checkpoint_0")
    world.bench.store.put_raw("g000001/attempts/000001/checkpoint_x/model.pt", b"half")
    tape = Tape.load("C48")
    error = failed_try(world, tape.saying((CASES / "C48" / tail).read_text("utf-8")) if tail else tape)
    assert_as_expected("C48", error)
    assert decided(error).retry_delay == THROTTLED_DELAY
    assert "incomplete" in error.failure.reason
    assert restored_from(world) == committed


CODES: dict[str, Any] = json.loads((CASES / "C51" / "codes.json").read_text("utf-8"))


@pytest.mark.scenario("C51")
@pytest.mark.parametrize("code", CODES)
def test_exit_codes_of_shells_and_signals(world: World, code: str) -> None:
    """A missing command or a wrong option is worth no retry; a driver that was told to go is."""
    name, retry = CODES[code]
    job = json.loads((CASES / "C51" / f"job_{code}.json").read_text("utf-8"))
    error = failed_try(world, Tape.of_job(job))
    assert (error.failure.kind, is_retried(error)) == (KINDS[name], retry)
    assert code in error.failure.reason
