"""One rule says whether a failed training may be tried again: GPU hours depend on it in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core.classify import ErrorChain, classify_errors, classify_job
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.failure_rules import SeenError
from airflow_provider.core.job import EXIT_CANCELLED, EXIT_SUPERSEDED
from airflow_provider.runtime.speech import say_failed

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
K = FailureKind
GLOO = SeenError(
    "RuntimeError",
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:52",
)


def jobs(case: str, file: str) -> list[dict[str, Any]]:
    """The answers to GET job of a recorded exchange."""
    tape = json.loads((CASES / case / file).read_text())
    replies = [reply.get("json", {}) for route in tape["routes"] for reply in route["replies"]]
    return [reply for reply in replies if "status" in reply]


def classify_last(case: str, file: str = "tape.json") -> Any:
    """The failure of the last answer of a recorded exchange."""
    job = jobs(case, file)[-1]
    return classify_job(job["status"], job["error_type"], job["driver_exit_code"], job["message"])


@pytest.mark.parametrize(
    ("case", "file", "kind"),
    [
        ("C28", "tape.json", K.CAPACITY),
        ("C30", "tape.json", K.CONFIG),
        ("C30", "tape-old-ray.json", K.CONFIG),
        ("C32", "tape-137.json", K.OUT_OF_MEMORY),
        ("C32", "tape-minus9.json", K.OUT_OF_MEMORY),
        ("C38", "tape.json", K.USER),
        ("C39", "tape-B.json", K.PERMISSION),
        ("C40", "tape.json", K.USER),
        ("C41", "tape.json", K.OUT_OF_MEMORY),
        ("C42", "tape.json", K.INFRASTRUCTURE),
        ("C44", "tape.json", K.PREEMPTION),
        ("C46", "tape.json", K.PERMISSION),
        ("C47", "tape.json", K.CREDENTIALS_EXPIRED),
        ("C48", "tape.json", K.THROTTLING),
    ],
)
def test_a_recorded_job_gets_the_kind_its_final_exception_asks_for(case: str, file: str, kind: FailureKind) -> None:
    """Each is a public report of a job that was retried in vain, or not retried in vain."""
    failure = classify_last(case, file)
    assert failure.kind is kind
    assert "\n" not in failure.reason
    expected = json.loads((CASES / case / "expect.json").read_text())
    if "retry" in expected:
        assert failure.is_retryable is expected["retry"]


@pytest.mark.parametrize("case", ["C38", "C40", "C41", "C42", "C44", "C46", "C47", "C48"])
def test_a_log_tail_alone_says_the_same_as_the_job_message(case: str) -> None:
    """A log tail is the fallback where the message was cut."""
    tail = (CASES / case / "tail.txt").read_text()
    assert classify_job("FAILED", None, 1, tail).kind is classify_last(case).kind


def test_throttling_without_a_body_is_still_throttling() -> None:
    """S3 answers HEAD with a bare 503, which pyarrow calls UNKNOWN."""
    failure = classify_job("FAILED", None, 1, (CASES / "C48" / "tail-b.txt").read_text())
    assert failure.kind is K.THROTTLING


def test_the_same_exception_on_four_ranks_is_said_once() -> None:
    """Four copies of one traceback hide the line that matters."""
    failure = classify_last("C38")
    assert failure.reason.count("KeyError: 'labels'") == 1
    assert "4 ranks" in failure.reason
    assert failure.exception_type == "KeyError"


def test_a_refused_upload_names_bucket_and_key() -> None:
    """A permission error can only be repaired by somebody who knows where."""
    reason = classify_last("C46").reason
    assert "ml-ckpt" in reason
    assert "train/resnet__a1/checkpoint_x" in reason


@pytest.mark.parametrize("code", ["127", "126", "2", "143", "-15", "130"])
def test_exit_codes_of_shells_and_signals(code: str) -> None:
    """A missing command is not worth a retry; a driver terminated from outside is."""
    name, is_retried = json.loads((CASES / "C51" / "codes.json").read_text())[code]
    job = json.loads((CASES / "C51" / f"job_{code}.json").read_text())
    failure = classify_job(job["status"], job["error_type"], job["driver_exit_code"], job["message"])
    kinds = {"CONFIG": K.CONFIG, "USER": K.USER, "INFRA": K.INFRASTRUCTURE, "STOPPED": K.STOPPED}
    assert (failure.kind, failure.is_retryable) == (kinds[name], is_retried)
    assert code in failure.reason


def test_our_own_exit_codes_outrank_what_the_log_says() -> None:
    """A superseded driver often dies with an S3 error on its lips."""
    message = "Traceback (most recent call last):\nOSError: AWS Error ACCESS_DENIED during PutObject operation: no\n"
    assert classify_job("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", EXIT_SUPERSEDED, message).kind is K.SUPERSEDED
    assert classify_job("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", EXIT_CANCELLED, message).kind is K.STOPPED


@pytest.mark.parametrize(("case", "file"), [("C23", "tape.json"), ("C23", "tape-400.json"), ("C39", "tape-A.json")])
def test_a_job_that_runs_or_succeeded_is_no_failure_whatever_its_log_says(case: str, file: str) -> None:
    """C39: 40 lines of "CUDA out of memory, skipping batch" and a successful end. C23: a refused second submit."""
    for job in jobs(case, file):
        if job["status"] in ("RUNNING", "SUCCEEDED"):
            with pytest.raises(ValueError, match="has not failed"):
                classify_job(job["status"], job["error_type"], job["driver_exit_code"], job["message"])


@pytest.mark.parametrize(
    ("error_type", "message", "kind"),
    [
        ("JOB_SUPERVISOR_ACTOR_DIED", "Job supervisor actor died.", K.INFRASTRUCTURE),
        ("JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", "No node has 8 GPUs", K.CAPACITY),
        ("JOB_SUPERVISOR_ACTOR_START_TIMEOUT", "timed out", K.CAPACITY),
        ("JOB_ENTRYPOINT_COMMAND_START_ERROR", "No such file", K.CONFIG),
        ("RUNTIME_ENV_SETUP_FAILURE", "pip: Temporary failure in name resolution", K.NETWORK),
    ],
)
def test_ray_error_types_decide_before_the_text(error_type: str, message: str, kind: FailureKind) -> None:
    """Ray knows who failed; its text is for people."""
    assert classify_job("FAILED", error_type, None, message).kind is kind


def test_a_job_that_left_nothing_is_tried_again() -> None:
    """Our driver records what the code raises; a silent exit 1 means that it could not."""
    assert classify_job("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", 1, "epoch 3\n").kind is K.INFRASTRUCTURE


def test_a_v1_trainer_names_the_cause_before_its_own_failure() -> None:
    """Ray Train V1 ends with a long hint how to restore; the exception stands above "direct cause"."""
    message = (
        "  File \"train.py\", line 21, in loop\nKeyError: 'labels'\n\n"
        "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        '  File "driver.py", line 38, in <module>\n    r = t.fit()\n'
        "ray.train.TrainingFailedError: The Ray Train run failed. Please inspect the previous error messages for a cause.\n"
        'To continue this run, you can use: `trainer = TorchTrainer.restore("/x")`.\n'
    )
    failure = classify_job("FAILED", None, 1, message)
    assert (failure.kind, failure.exception_type) == (K.USER, "KeyError")


def test_worker_lines_and_terminal_codes_are_not_the_drivers_last_word() -> None:
    """Ray interleaves the workers' output with the driver's and colours it."""
    message = (
        "Traceback (most recent call last):\n"
        "\x1b[31mray.exceptions.OutOfMemoryError\x1b[0m: Task was killed due to the node running low on memory.\n"
        "\x1b[36m(RayTrainWorker pid=77)\x1b[0m ValueError: a worker's own line\n"
    )
    assert classify_job("FAILED", None, 1, message).kind is K.OUT_OF_MEMORY


def chain(*errors: SeenError, rank: int | None = None) -> ErrorChain:
    """One rank's error."""
    return ErrorChain(errors, rank)


def test_a_user_exception_wins_over_its_neighbours_broken_connections() -> None:
    """One rank fails, the others see a reset peer: a retry would repeat the bug."""
    reset = SeenError("ConnectionResetError", "[Errno 104] Connection reset by peer", ("ConnectionError", "OSError"))
    nccl = SeenError("torch.distributed.DistBackendError", "NCCL error in: remote process exited", ("RuntimeError",))
    failure = classify_errors(
        [chain(GLOO, rank=0), chain(reset, rank=1), chain(SeenError("KeyError", "'x'"), rank=2), chain(nccl, rank=3)]
    )
    assert failure.kind is K.USER
    assert "rank 2" in failure.reason


def test_a_preempted_rank_wins_over_a_user_exception() -> None:
    """The node went away; whatever the others raised meanwhile, a real bug fires again on the next attempt."""
    dead = SeenError("ray.exceptions.ActorDiedError", "The actor died", preempted=True)
    failure = classify_errors([chain(SeenError("KeyError", "'x'"), rank=0), chain(dead, rank=1)])
    assert failure.kind is K.PREEMPTION


def test_a_dead_rank_wins_over_a_runtime_error_but_not_over_a_plain_bug() -> None:
    """RuntimeError is what broken collectives raise in a hundred wordings; a KeyError comes from nobody's death."""
    dead = chain(SeenError("ray.exceptions.ActorDiedError", "worker died: SIGKILL"), rank=1)
    assert classify_errors([chain(SeenError("RuntimeError", "stream ended"), rank=0), dead]).kind is K.INFRASTRUCTURE
    assert classify_errors([chain(SeenError("KeyError", "'x'"), rank=0), dead]).kind is K.USER


def test_collateral_alone_is_infrastructure() -> None:
    """Only broken connections: the rank that caused them left no word."""
    assert classify_errors([chain(GLOO, rank=0), chain(GLOO, rank=1)]).kind is K.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("name", "message", "kind"),
    [
        ("AssertionError", "", K.USER),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", K.USER),
        ("ray.exceptions.OutOfMemoryError", "Task was killed due to the node running low on memory", K.OUT_OF_MEMORY),
        ("ModuleNotFoundError", "No module named 'churn'", K.CONFIG),
        ("OSError", "AWS Error NETWORK_CONNECTION during UploadPart operation: curlCode: 7", K.NETWORK),
        ("OSError", "When reading 'x': AWS Error UNKNOWN (HTTP status 403) during HeadObject operation", K.PERMISSION),
        (
            "botocore.exceptions.ClientError",
            "An error occurred (SlowDown) when calling the PutObject operation",
            K.THROTTLING,
        ),
        (
            "botocore.exceptions.ClientError",
            "An error occurred (ExpiredToken) when calling the PutObject operation",
            K.CREDENTIALS_EXPIRED,
        ),
        ("OSError", "Bucket 'nope' not found. To create buckets, enable the option.", K.CONFIG),
        ("OSError", "[Errno 28] No space left on device", K.INFRASTRUCTURE),
        (
            "ray.exceptions.WorkerCrashedError",
            "The worker died unexpectedly while executing this task",
            K.INFRASTRUCTURE,
        ),
        ("ray.exceptions.NobodyHasSeenThisError", "x", K.INFRASTRUCTURE),
        ("ray.train.WorkerHealthCheckTimeoutError", "A worker health check has been hanging for 600 s", K.HANG),
        ("RuntimeError", "[3] Timed out waiting 1800000ms for recv operation to complete", K.HANG),
        ("ray.train.v2._internal.exceptions.WorkerGroupStartupTimeoutError", "timed out after 60 s", K.CAPACITY),
        ("ray.train.v2._internal.exceptions.CheckpointManagerInitializationError", "Expecting value", K.CHECKPOINT),
        ("RuntimeError", "CUDA error: uncorrectable ECC error encountered", K.INFRASTRUCTURE),
        ("RuntimeError", "CUDA error: device-side assert triggered", K.USER),
        ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed.", K.OUT_OF_MEMORY),
        ("TimeoutError", "[Errno 110] Connection timed out", K.NETWORK),
        ("TimeoutError", "The read operation timed out", K.NETWORK),
        ("TimeoutError", "no batch within 60 s", K.USER),
        ("OSError", "[Errno 113] No route to host", K.NETWORK),
        ("OSError", "[Errno 116] Stale file handle: '/fsx/train.bin'", K.INFRASTRUCTURE),
        ("OSError", "[Errno 5] Input/output error", K.INFRASTRUCTURE),
        ("OSError", "[Errno 22] Invalid argument", K.USER),
        ("ssl.SSLEOFError", "EOF occurred in violation of protocol (_ssl.c:1006)", K.NETWORK),
        ("http.client.IncompleteRead", "IncompleteRead(1 bytes read, 10 more expected)", K.NETWORK),
        ("churn.MyOwnError", "bad batch", K.USER),
        ("ValueError", "label 503 is not in range, SlowDown", K.USER),
        ("DeprecationWarning", "The `restore` and `can_restore` APIs are deprecated", K.CONFIG),
    ],
)
def test_a_single_exception(name: str, message: str, kind: FailureKind) -> None:
    """The table, one row per way of failing."""
    assert classify_errors([chain(SeenError(name, message))]).kind is kind


def test_a_time_out_beside_an_error_of_the_code_may_be_collateral() -> None:
    lost = SeenError("TimeoutError", "[Errno 110] Connection timed out")
    failure = classify_errors([chain(lost, rank=0), chain(SeenError("churn.MyOwnError", "bad batch"), rank=1)])
    assert failure.kind is K.USER


def test_a_lost_connection_behind_a_bug_is_the_cause() -> None:
    """`except OSError: return cache[key]` turns an outage into a KeyError; giving up would be wrong."""
    outage = SeenError("OSError", "AWS Error NETWORK_CONNECTION during GetObject operation", is_context=True)
    assert classify_errors([chain(SeenError("KeyError", "'batch'"), outage)]).kind is K.NETWORK


def test_an_optional_import_that_was_handled_is_not_the_cause() -> None:
    """`try: import flash_attn / except ImportError: ...` stands in half of all training code."""
    handled = SeenError("ImportError", "No module named 'flash_attn'", is_context=True)
    failure = classify_errors([chain(SeenError("ValueError", "bad shape"), handled)])
    assert failure.kind is K.USER
    assert failure.reason.startswith("ValueError: bad shape")


def test_the_root_cause_is_told_with_what_was_raised() -> None:
    """Both lines help; each stands there once."""
    failure = classify_errors([chain(SeenError("ValueError", "row 17"), SeenError("KeyError", "'label'"))])
    assert failure.reason.count("row 17") == 1
    assert failure.reason.count("'label'") == 1
    assert failure.exception_type == "KeyError"


def test_credentials_in_a_message_reach_neither_reason_nor_detail() -> None:
    """Reasons go to logs, XComs and lineage (G11)."""
    text = "OSError: https://u:hunter2hunter2@h/x?X-Amz-Signature=abcdef123456&a=1 AKIAABCDEFGHIJKLMNOP secret_key='s3cr3ts3cr3t'"
    failure = classify_errors([chain(SeenError("OSError", text))], detail=text)
    for secret in ("hunter2", "abcdef123456", "AKIAABCDEFGHIJKLMNOP", "s3cr3ts3cr3t"):
        assert secret not in failure.reason + failure.detail


def test_a_huge_message_stays_short() -> None:
    """A reason is one sentence; the detail keeps its end."""
    failure = classify_errors([chain(SeenError("ValueError", "x" * 100_000))], detail="y" * 50_000 + "END")
    assert len(failure.reason) < 700
    assert failure.detail.endswith("END")
    assert len(failure.detail) <= 8000


@pytest.mark.parametrize("kind", list(K))
def test_our_drivers_last_line_tells_the_kind_where_no_outcome_could_be_written(kind: FailureKind) -> None:
    """A bucket that refuses us refuses the outcome too."""
    message = (
        f"Job entrypoint command failed\n[ray-train] attempt g1/a1\n[ray-train] failed: no PutObject. [{kind.value}]\n"
    )
    failure = classify_job("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", 1, message)
    assert (failure.kind, failure.reason) == (kind, "no PutObject.")
    assert failure.detail.endswith(f"[{kind.value}]\n")


@pytest.mark.parametrize(
    ("message", "code", "kind"),
    [
        ("[ray-train] failed: first [user]\n[ray-train] failed: last [config]", 1, K.CONFIG),
        ("[ray-train] failed: a [b] c [user] [permission]", 1, K.PERMISSION),
        ("[ray-train] failed: told [permission]\n", 137, K.OUT_OF_MEMORY),
        ("[ray-train] failed: told [permission]\n", EXIT_SUPERSEDED, K.SUPERSEDED),
        ("[ray-train] failed: told [no_such_kind]\n", 1, K.INFRASTRUCTURE),
        ("[ray-train] failed: told without a kind\n", 1, K.INFRASTRUCTURE),
        ("(worker pid=7) [ray-train] failed: a worker's copy [user]\n", 1, K.INFRASTRUCTURE),
        ("said [ray-train] failed: quoted [user] by somebody\n", 1, K.INFRASTRUCTURE),
        ("Traceback (most recent call last):\nKeyError: 'x'\n[ray-train] failed: told [network]\n", 1, K.NETWORK),
    ],
)
def test_only_a_whole_line_of_the_driver_itself_counts_and_only_where_it_chose_to_fail(
    message: str, code: int, kind: FailureKind
) -> None:
    assert classify_job("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", code, message).kind is kind


def test_the_drivers_last_line_is_redacted() -> None:
    message = "[ray-train] failed: http://u:hunter2hunter2@h/x was refused [permission]"
    failure = classify_job("FAILED", None, 1, message)
    assert "hunter2" not in failure.reason + failure.detail
    assert failure.kind is K.PERMISSION


def test_the_line_is_read_as_the_driver_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    """One side writes it, the other reads it; a reason of several lines is one line there."""
    say_failed(Failure(kind=K.PERMISSION, reason="refused\nin two lines\t(403)"))
    failure = classify_job("FAILED", None, 1, capsys.readouterr().out)
    assert (failure.kind, failure.reason) == (K.PERMISSION, "refused in two lines (403)")
