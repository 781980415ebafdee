"""Live exceptions, wrapped as Ray wraps them. The look-alikes stand for releases from 2.51 on; real classes for this one."""

from __future__ import annotations

import pytest

from airflow_provider.core.errors import Superseded
from airflow_provider.core.failure import FailureKind
from airflow_provider.runtime.exceptions import classify_exception

GLOO = "[pair.cc:534] Connection closed by peer [127.0.0.1]:1234"


class WorkerGroupError(Exception):
    """Looks like Ray's: known by name and by what it carries."""

    def __init__(self, failures: dict[int, BaseException]) -> None:
        super().__init__("Training failed due to worker errors:\n[Rank 0 Error Snippet]: ...")
        self.worker_failures = failures


class ControllerError(Exception):
    def __init__(self, failure: BaseException) -> None:
        super().__init__("Training failed due to controller error")
        self.controller_failure = failure


class WorkerHealthCheckFailedError(Exception):
    def __init__(self, failure: BaseException) -> None:
        super().__init__("A worker health check failed")
        self.health_check_failure = failure


class ActorDiedError(Exception):
    preempted = False
    actor_init_failed = False


def test_one_bug_among_broken_connections_is_found_in_a_worker_group() -> None:
    """What most multi-worker failures look like."""
    error = WorkerGroupError(
        {0: RuntimeError(GLOO), 1: KeyError("labels"), 2: ConnectionResetError(104, "Connection reset by peer")}
    )
    failure = classify_exception(error)
    assert (failure.kind, failure.exception_type) == (FailureKind.USER, "KeyError")
    assert failure.reason.count("'labels'") == 1
    assert "rank 1" in failure.reason


def test_a_preempted_actor_behind_a_health_check_wins() -> None:
    """Ray sets the flag two wrappers deep."""
    dead = ActorDiedError("the actor died")
    dead.preempted = True
    error = WorkerGroupError({0: KeyError("x"), 1: WorkerHealthCheckFailedError(dead)})
    assert classify_exception(error).kind is FailureKind.PREEMPTION


def test_a_dead_process_is_infrastructure() -> None:
    """A SIGKILL of a worker, seen through its health check."""
    error = WorkerGroupError(
        {0: WorkerHealthCheckFailedError(ActorDiedError("Worker exit type: SYSTEM_ERROR")), 1: RuntimeError(GLOO)}
    )
    assert classify_exception(error).kind is FailureKind.INFRASTRUCTURE


def test_a_refused_manifest_write_is_the_stores_doing() -> None:
    """Ray gives controller errors no retry: the kind decides whether the driver fits again."""
    error = ControllerError(OSError("AWS Error NETWORK_CONNECTION during UploadPart operation: curlCode: 7"))
    assert classify_exception(error).kind is FailureKind.NETWORK


def test_the_error_of_a_constructor_is_read_from_its_text() -> None:
    """A manifest that Ray refuses arrives as an actor that died in its constructor, with a traceback as text only."""
    dead = ActorDiedError(
        "The actor died because of an error raised in its creation task, \x1b[36mray::TrainController.__init__()\x1b[39m (pid=1)\n"
        '  File "checkpoint_manager.py", line 465, in load_state\n'
        "ray.train.v2._internal.exceptions.CheckpointManagerInitializationError: The run snapshot contains a reference to a checkpoint"
    )
    dead.actor_init_failed = True
    assert classify_exception(dead).kind is FailureKind.CHECKPOINT


def test_our_own_errors_keep_their_kind_behind_rays_wrappers() -> None:
    """The fence raises in a worker; Ray reports it as that worker's failure."""
    error = WorkerGroupError({0: Superseded("Attempt g1/a1 may not write any more"), 1: RuntimeError(GLOO)})
    assert classify_exception(error).kind is FailureKind.SUPERSEDED
    assert classify_exception(Superseded("x")).kind is FailureKind.SUPERSEDED


def test_a_user_error_chained_from_an_outage_is_the_outage() -> None:
    """`raise ValueError from error` keeps what went wrong."""
    try:
        try:
            raise OSError("AWS Error SLOW_DOWN during GetObject operation: Please reduce your request rate.")
        except OSError as error:
            raise ValueError("no data for step 12") from error
    except ValueError as error:
        failure = classify_exception(error)
    assert failure.kind is FailureKind.THROTTLING
    assert "no data for step 12" in failure.reason


def test_a_handled_import_error_is_not_blamed() -> None:
    """The context of an exception is what was being handled, not what is wrong."""
    try:
        try:
            raise ImportError("No module named 'flash_attn'")
        except ImportError:
            raise ValueError("bad shape")  # noqa: B904  # the point of this test
    except ValueError as error:
        failure = classify_exception(error)
    assert (failure.kind, failure.exception_type) == (FailureKind.USER, "ValueError")


def test_cycles_groups_and_broken_messages_end() -> None:
    """Nothing a user raises may keep the outcome from being written."""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    class Computed(Exception):
        def __getattr__(self, name: str) -> object:
            raise KeyError(name)

    assert classify_exception(Computed("one")).kind is FailureKind.USER
    named = WorkerGroupError({"rank0": ValueError("one"), 1: None})  # type: ignore[dict-item]
    assert classify_exception(named).kind is FailureKind.USER
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert classify_exception(one).kind is FailureKind.USER
    assert classify_exception(Unprintable()).kind is FailureKind.USER
    loop = ControllerError(one)
    loop.controller_failure = loop
    assert classify_exception(loop).kind is FailureKind.USER


def test_rays_real_classes() -> None:
    """This release's own wrappers, after the pickling that they go through on their way to the driver."""
    exceptions, cloudpickle = pytest.importorskip("ray.exceptions"), pytest.importorskip("ray.cloudpickle")
    train = pytest.importorskip("ray.train.v2.api.exceptions")
    cause = KeyError("labels")
    wrapped = exceptions.RayTaskError("train", "Traceback ...", cause, "title", 1, "127.0.0.1")
    for error in (
        wrapped,
        wrapped.as_instanceof_cause(),
        train.WorkerGroupError("x", {0: wrapped, 1: RuntimeError(GLOO)}),
    ):
        failure = classify_exception(cloudpickle.loads(cloudpickle.dumps(error)))
        assert (failure.kind, failure.exception_type) == (FailureKind.USER, "KeyError")
    assert classify_exception(exceptions.OutOfMemoryError("Task was killed")).kind is FailureKind.OUT_OF_MEMORY
    preempted = exceptions.RayActorError(preempted=True)
    assert classify_exception(train.WorkerGroupError("x", {0: preempted, 1: cause})).kind is FailureKind.PREEMPTION
    assert classify_exception(exceptions.RuntimeEnvSetupError("pip")).kind is FailureKind.CONFIG
    assert classify_exception(exceptions.ActorDiedError()).kind is FailureKind.INFRASTRUCTURE


def test_cuda_out_of_memory_is_no_host_memory_kill() -> None:
    """Ray's and torch's classes share a name; one repeats on every try, the other does not."""
    torch = pytest.importorskip("torch")
    failure = classify_exception(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert failure.kind is FailureKind.USER
    assert "batch" in failure.reason
