"""Blocking mode, and what ends it: the waiter has a thread, so that signals and time-outs reach the main thread."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider.client.jobs_client import SyncJobsClient
from airflow_provider.core import layout
from airflow_provider.core.decision import ClusterSilent, JobSeen
from airflow_provider.core.errors import RayJobFailed, RayTrainError
from airflow_provider.core.failure import FailureKind
from airflow_provider.operators import killing
from airflow_provider.operators import session as session_module
from airflow_provider.operators.killing import UNKNOWN, find_state, read_together
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.operators.session import MAX_JOBS_PER_TRY
from airflow_provider.testing.jobs_api_parts import FakeJob, Fault
from airflow_provider.triggers.waiter import JobWaiter
from tests.support.experiment import ref
from tests.support.operator_run import World, running_world
from tests.support.records import outcome


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_world(monkeypatch) as world:
        yield world


def blocking(world: World, **changes: object) -> RayTrainOperator:
    return world.operator(deferrable=False, **changes)


def attempt_of(job: FakeJob) -> int:
    return int(job.request["metadata"]["attempt"].partition("/a")[2])


def test_it_waits_in_a_thread_of_its_own_and_returns_the_result(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def driver(job: FakeJob) -> None:
        names = world.bench.commit("checkpoint_0")
        world.end(job, "SUCCEEDED", record=outcome(latest_checkpoint=names[-1]))

    threads: list[threading.Thread] = []
    wait = JobWaiter.wait

    async def seen(self: JobWaiter) -> object:
        threads.append(threading.current_thread())
        return await wait(self)

    monkeypatch.setattr(JobWaiter, "wait", seen)
    world.server.driver = driver
    assert blocking(world).execute(world.task.context)["state"] == "success"
    assert threads[0] is not threading.main_thread()


def test_the_jobs_log_reaches_the_task_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def driver(job: FakeJob) -> None:
        world.bench.commit("checkpoint_0")
        job.log = "epoch 0\nepoch 1\n"
        world.end(job, "SUCCEEDED", record=outcome())

    world.server.driver = driver
    operator, said = blocking(world, stream_logs=True), []
    monkeypatch.setattr(operator.log, "info", lambda text, *args: said.append(text % args if args else text))
    operator.execute(world.task.context)
    assert [line for line in said if line.startswith("epoch")] == ["epoch 0", "epoch 1"]


def test_a_superseded_job_is_followed_by_the_next_attempt_in_the_same_try(world: World) -> None:
    def driver(job: FakeJob) -> None:
        attempt = attempt_of(job)
        world.bench.commit("checkpoint_0", attempt=attempt)
        state, status = ("superseded", "FAILED") if attempt == 1 else ("success", "SUCCEEDED")
        world.end(job, status, attempt=attempt, record=outcome(state))

    world.server.driver = driver
    result = blocking(world).execute(world.task.context)
    assert (result["attempts"], world.server.num_posts) == (2, 2)


def test_a_try_whose_every_job_is_taken_away_gives_up(world: World) -> None:
    def driver(job: FakeJob) -> None:
        world.end(job, "FAILED", attempt=attempt_of(job), record=outcome("superseded"))

    world.server.driver = driver
    with pytest.raises(RayTrainError, match=f"{MAX_JOBS_PER_TRY} jobs"):
        blocking(world).execute(world.task.context)
    assert world.server.num_posts == MAX_JOBS_PER_TRY


@pytest.mark.parametrize("is_stop_lost", [False, True])
def test_a_deadline_stops_the_job_and_keeps_its_kind(
    world: World, monkeypatch: pytest.MonkeyPatch, is_stop_lost: bool
) -> None:
    monkeypatch.setattr("airflow_provider.operators.session.TrainingSession._limits", lambda _: _quick_limits())
    if is_stop_lost:
        world.server.add(Fault("answer", path=".*/stop"))
    with pytest.raises(RayJobFailed) as caught:
        blocking(world, timeout_s=0.001).execute(world.task.context)
    assert caught.value.failure.kind is FailureKind.TIMEOUT
    assert layout.stop(1, 1, 1) in world.bench.written()
    assert world.server.num("POST", ".*/stop") == 1


@pytest.mark.scenario("C97")
def test_a_token_rotated_during_the_wait_is_read_anew_and_the_result_fetched_by_a_new_client(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials from before a wait of days may be gone; each of these clients had one of its own."""
    made: list[SyncJobsClient] = []
    make = session_module._client

    def seen(target: object) -> SyncJobsClient:
        made.append(make(target))  # type: ignore[arg-type]
        return made[-1]

    sight, polls = JobWaiter._sight, []

    async def polled(waiter: JobWaiter) -> object:
        polls.append(await sight(waiter))
        if len(polls) == 2:
            world.server.token = "n3w"
            connection = {"conn_type": "ray", "host": world.server.url, "password": "n3w"}
            monkeypatch.setenv("AIRFLOW_CONN_RAY_TEST", json.dumps(connection))
        if len(polls) == 5:
            names = world.bench.commit("checkpoint_0")
            job = world.server.jobs[world.job_id()]
            world.end(job, "SUCCEEDED", record=outcome(latest_checkpoint=names[-1]))
        return polls[-1]

    monkeypatch.setattr(session_module, "_client", seen)
    monkeypatch.setattr(JobWaiter, "_sight", polled)
    world.server.driver = lambda job: setattr(job, "status", "RUNNING")
    assert blocking(world).execute(world.task.context)["state"] == "success"
    assert [type(found) for found in polls[:4]] == [JobSeen, JobSeen, ClusterSilent, JobSeen]
    assert world.server.requests[-1].headers["Authorization"] == "Bearer n3w"
    before, after = made
    assert before is not after
    for client in (before, after):
        with pytest.raises(Exception, match="closed"):
            client.version()


def _quick_limits() -> object:
    from airflow_provider.core.waiting import WaitLimits

    return WaitLimits(poll_interval_s=0.01, deadline_grace_s=0)


# --- time-out ----------------------------------------------------------------------------------------------------------


class Alarm:
    """Airflow's `execution_timeout`: a signal that raises in the main thread, then `on_kill`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fire(_number: int, _frame: FrameType | None) -> None:
            raise AirflowTaskTimeout

        self._old = signal.signal(signal.SIGUSR1, fire)
        wait = JobWaiter._sight
        fired = threading.Event()

        async def polled(waiter: JobWaiter) -> object:
            sight = await wait(waiter)
            if not fired.is_set():
                fired.set()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            return sight

        monkeypatch.setattr(JobWaiter, "_sight", polled)

    def restore(self) -> None:
        signal.signal(signal.SIGUSR1, self._old)


@pytest.fixture
def alarm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Alarm]:
    alarm = Alarm(monkeypatch)
    yield alarm
    alarm.restore()


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize(("stream_logs", "timeout_s"), [(False, None), (True, None), (False, 7200.0)])
def test_an_execution_timeout_ends_the_wait_at_once_and_on_kill_stops_the_job(
    world: World, monkeypatch: pytest.MonkeyPatch, stream_logs: bool, timeout_s: float | None
) -> None:
    """The task is still `running` then, as in an eviction: only the mark that `execute` leaves tells them apart.

    The stop record says that no try follows, where that is so: else a sensor would wait for one.
    """
    # A live log that held it back would do so until the test's own time-out.
    monkeypatch.setattr("airflow_provider.triggers.waiter.LOG_END_WAIT_S", 3600.0)
    timeouts = {"execution_timeout": timedelta(hours=1), "timeout_s": timeout_s}
    operator = blocking(world, stream_logs=stream_logs, **timeouts)
    world.server.driver = lambda job: setattr(job, "status", "RUNNING")
    with pytest.raises(AirflowTaskTimeout):
        operator.execute(world.task.context)
    assert world.server.jobs[world.job_id()].status == "RUNNING"
    operator.on_kill()
    assert world.server.jobs[world.job_id()].status == "STOPPED"
    assert world.records.stops(ref(1, 1))[1].ends is (FailureKind.TIMEOUT if timeout_s is None else None)


# --- on_kill -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> RayTrainOperator:
    """An operator whose job runs; `on_kill` may come now."""
    monkeypatch.setattr("airflow_provider.operators.killing.READ_S", 0.2)
    operator = blocking(world)
    world.server.driver = lambda job: setattr(job, "status", "RUNNING")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider.operators.session.TrainingSession._block", interrupted)
        with pytest.raises(KeyboardInterrupt):
            operator.execute(world.task.context)
    return operator


def is_stopped(world: World) -> bool:
    has_record = layout.stop(1, 1, 1) in world.bench.written()
    assert has_record == (world.server.num("POST", ".*/stop") == 1), "a stop record and no POST, or the other way round"
    return has_record


def test_an_eviction_leaves_the_job(world: World, waiting: RayTrainOperator) -> None:
    waiting.on_kill()
    assert not is_stopped(world)


@pytest.mark.parametrize("state", ["failed", "success", "restarting"])
def test_a_marked_or_cleared_task_stops_it(world: World, waiting: RayTrainOperator, state: str) -> None:
    world.task.ti.state = state
    waiting.on_kill()
    assert is_stopped(world)


def test_stop_on_kill_can_be_switched_off(world: World, waiting: RayTrainOperator) -> None:
    world.task.ti.state = "failed"
    waiting.stop_on_kill = False
    waiting.on_kill()
    assert not is_stopped(world)


@pytest.mark.scenario("C37")
def test_a_newer_owner_means_no_stop(world: World, waiting: RayTrainOperator) -> None:
    world.task.ti.state = "restarting"
    world.newer_owner(2)
    waiting.on_kill()
    assert not is_stopped(world)


def test_an_unreadable_owner_means_no_stop(world: World, waiting: RayTrainOperator) -> None:
    world.task.ti.state = "failed"
    world.bench.store.put_raw(layout.owner(2), b"torn")
    waiting.on_kill()
    assert not is_stopped(world)


def test_an_answer_that_never_comes_from_airflow_leaves_the_job_and_does_not_hold_up_the_handler(
    world: World, waiting: RayTrainOperator
) -> None:
    """The signal may have interrupted the main thread inside a call to its supervisor, which then blocks all others."""
    world.task.ti.hangs = True
    world.task.ti.state = "failed"
    waiting.on_kill()  # one that waited for the answer would never return
    assert not is_stopped(world)
    world.task.ti.released.set()


def test_a_cluster_that_does_not_answer_does_not_hold_up_the_handler(
    world: World, waiting: RayTrainOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider.operators.killing.STOP_S", 0.2)
    world.task.ti.state = "failed"
    world.server.add(Fault("hang", path=".*/stop"))
    waiting.on_kill()
    assert layout.stop(1, 1, 1) in world.bench.written(), "the driver obeys the record"


def test_on_kill_twice_is_on_kill_once(world: World, waiting: RayTrainOperator) -> None:
    world.task.ti.state = "failed"
    waiting.on_kill()
    waiting.on_kill()
    assert [k for k in world.bench.written() if "stop-" in k] == [layout.stop(1, 1, 1)]


def test_on_kill_before_there_is_a_job_does_nothing(world: World) -> None:
    world.operator().on_kill()
    assert world.server.requests == []
    assert world.records.claim(ref(1, 1)) is None


def test_all_reads_together_have_the_time_of_one() -> None:
    """Airflow gives `on_kill` 5 s before it kills."""
    assert killing.READ_S + killing.STOP_S < 5
    meeting, release = threading.Barrier(2), threading.Event()

    def meet() -> bool:
        return meeting.wait(30) >= 0  # one after the other they would never meet

    assert read_together([meet, meet, lambda: 7, fail], within_s=30) == [True, True, 7, UNKNOWN]
    assert read_together([release.wait, lambda: 7], within_s=0.2) == [UNKNOWN, 7]
    release.set()


def fail() -> None:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({"r": {"t": "failed"}}, "failed"),
        ({"r": {"t_3": "success"}}, "success"),
        ({"r": {"t": None}}, None),
        ({}, None),
    ],
)
def test_a_tasks_state_is_found_mapped_or_not(states: dict[str, dict[str, str]], expected: str | None) -> None:
    assert find_state(states, run_id="r", task_id="t") == expected
