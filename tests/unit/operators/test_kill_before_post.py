"""A person's mark while there is no job yet: the main thread goes on until it is killed, and must not post."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred

from airflow_provider.core import layout
from airflow_provider.core.errors import Superseded
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.hooks.final_stop import stop_for_good
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.testing.jobs_api_parts import FakeJob
from tests.support.experiment import ref
from tests.support.fake_airflow import refused
from tests.support.operator_run import STORAGE, World, running_world
from tests.support.records import outcome

KEPT = ("conn_id", "aws_conn_id", "experiment", "dag_run_identity", "stop_on_kill")
MARKED = ["failed", "success", "restarting"]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("airflow_provider.operators.killing.READ_S", 0.2)
    with running_world(monkeypatch) as world:
        yield world
        world.task.ti.released.set()


def at_claim(world: World, act: Callable[[], None], *, attempt: int = 1) -> None:
    """A signal that arrives while the claim is written."""

    def interfere(verb: str, key: str) -> None:
        if (verb, key) == ("create_if_absent", layout.claim(1, attempt)):
            act()

    world.bench.interfere = interfere


def at_own(world: World, act: Callable[[], None]) -> None:
    def interfere(verb: str, key: str) -> None:
        if (verb, key) == ("create_if_absent", layout.owner(1)):
            act()

    world.bench.interfere = interfere


def test_the_listener_can_find_the_experiment_before_anything_is_owned(world: World) -> None:
    seen: list[dict[str, Any]] = []
    at_own(world, lambda: seen.append(dict(world.task.ti.xcoms)))
    world.defer(world.operator(aws_conn_id=None))
    pushed = seen[0]
    assert set(pushed) == {"ray_train_job", "experiment_url"}
    uri = pushed["experiment_url"]
    assert uri.startswith(f"{STORAGE}/d/train/")
    assert pushed["ray_train_job"] == {
        "conn_id": "ray_test",
        "aws_conn_id": None,
        "experiment": uri,
        "dag_run_identity": "i1",
        "stop_on_kill": True,
    }
    assert world.task.ti.xcoms["ray_train_job"]["experiment"] == uri


def test_the_listener_can_still_find_it_when_airflow_starts_the_next_try(world: World) -> None:
    """Airflow deletes the XComs then; a mark may come before the next push."""
    kept: list[Any] = []
    at_own(world, lambda: kept.append(dict(world.task.store.values["ray_train_job"])))
    world.defer()
    pushed = world.task.ti.xcoms["ray_train_job"]
    assert kept[:1] == [{name: pushed[name] for name in KEPT}]
    world.next_try()
    assert "ray_train_job" not in world.task.ti.xcoms
    assert stop_for_good(
        world.task.store.values["ray_train_job"],
        task=TaskInstanceKey(world.task.ti.dag_id, world.task.ti.run_id, world.task.ti.task_id),
        counters={"try_number": 2, "max_tries": 3, "clear_number": 0},
        how="marked failed",
    )
    assert layout.stop(1, 1, 2) in world.bench.written()


def test_a_replaced_process_is_ended_by_its_marker_and_not_by_its_record(world: World) -> None:
    world.task.store.refusal = refused(404)
    with pytest.raises(Superseded, match="has replaced this process"):
        world.operator().execute(world.task.context)
    assert world.bench.written() == [layout.owner(1)]


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize("state", MARKED)
@pytest.mark.parametrize("when", [at_own, at_claim])
def test_a_marked_or_cleared_task_posts_nothing(
    world: World, when: Callable[..., None], state: str, deferrable: bool
) -> None:
    operator = world.operator(deferrable=deferrable)

    def marked() -> None:
        world.task.ti.state = state
        operator.on_kill()

    when(world, marked)
    with pytest.raises(Superseded) as caught:
        operator.execute(world.task.context)
    assert caught.value.known == f"the task is {state}"
    assert (world.server.num_posts, world.server.jobs) == (0, {})
    assert world.records.claim(ref(1, 1)) is not None, "a claim without a job: the next try posts it or goes past it"
    assert "ray_train_failure" not in world.task.ti.xcoms


@pytest.mark.parametrize("state", ["running", "failed"])
def test_an_execution_timeout_posts_nothing_and_is_named(world: World, state: str) -> None:
    operator = world.operator()

    def timed_out() -> None:
        world.task.ti.state = state
        assert operator._session is not None
        operator._session.is_timed_out = True
        operator.on_kill()

    at_claim(world, timed_out)
    with pytest.raises(Superseded) as caught:
        operator.execute(world.task.context)
    assert caught.value.known == "execution_timeout"
    assert world.server.num_posts == 0


@pytest.mark.parametrize("hangs", [False, True])
def test_an_eviction_or_an_unknown_state_forbids_nothing(world: World, hangs: bool) -> None:
    """The next try attaches to the job, or posts it."""
    operator = world.operator()
    world.task.ti.hangs = hangs
    killed: list[None] = []

    def evicted() -> None:
        killed.append(operator.on_kill())
        world.task.ti.released.set()  # what hung for the handler answers the thread that it had interrupted

    at_claim(world, evicted)
    with pytest.raises(TaskDeferred):
        operator.execute(world.task.context)
    assert killed == [None]
    assert world.server.num_posts == 1
    assert world.server.num("POST", ".*/stop") == 0


def resumed_operator(world: World, act: Callable[[RayTrainOperator], None]) -> tuple[RayTrainOperator, Any]:
    """A resume whose job was superseded: the same process goes on to attempt 2."""
    trigger = world.defer()
    world.end(world.server.jobs[trigger.submission_id], "FAILED", record=outcome("superseded"))
    operator = world.operator()
    at_claim(world, lambda: act(operator), attempt=2)
    return operator, world.event(trigger)


@pytest.mark.parametrize("state", MARKED)
def test_between_two_jobs_of_one_try_the_second_is_not_posted(world: World, state: str) -> None:
    """It follows the first one still, which is over: stopping that alone would let the second train for nobody."""

    def marked(operator: RayTrainOperator) -> None:
        world.task.ti.state = state
        operator.on_kill()

    operator, event = resumed_operator(world, marked)
    with pytest.raises(Superseded):
        operator.execute_complete(world.task.context, event)
    assert world.server.num_posts == 1


def test_an_eviction_between_two_jobs_forbids_nothing(world: World) -> None:
    operator, event = resumed_operator(world, lambda operator: operator.on_kill())
    with pytest.raises(TaskDeferred):
        operator.execute_complete(world.task.context, event)
    assert world.server.num_posts == 2


def test_a_time_out_between_claim_and_post_leaves_a_stop_record_for_a_job_that_may_arrive(world: World) -> None:
    """Nobody else would stop it: no retry is left, and a listener is not called for a time-out."""
    operator = world.operator()
    is_claimed: list[bool] = []

    def times_out(verb: str, key: str) -> None:
        is_claimed.append(verb == "create_if_absent" and key == layout.claim(1, 1))
        if any(is_claimed) and (verb, key) == ("read", layout.owner(2)):
            world.bench.interfere = lambda *_: None
            raise AirflowTaskTimeout

    world.bench.interfere = times_out
    with pytest.raises(AirflowTaskTimeout):
        operator.execute(world.task.context)
    operator.on_kill()
    assert layout.stop(1, 1, 1) in world.bench.written()


def test_a_mark_while_the_post_is_on_its_way_stops_the_job(world: World) -> None:
    operator = world.operator()
    killers: list[threading.Thread] = []

    def marked(_: FakeJob) -> None:
        world.task.ti.state = "failed"
        killers.append(threading.Thread(target=operator.on_kill))
        killers[0].start()

    world.server.driver = marked
    with pytest.raises(TaskDeferred):
        operator.execute(world.task.context)
    killers[0].join(10)
    assert layout.stop(1, 1, 1) in world.bench.written()
    assert world.server.num("POST", ".*/stop") == 1


def retry_of_a_running_job(world: World, act: Callable[[RayTrainOperator], None]) -> RayTrainOperator:
    """Try 2 of a job that runs on; `act` comes when it has owned and reads the claim."""
    trigger = world.defer()
    world.server.set_status(trigger.submission_id, "RUNNING")
    world.next_try()
    operator = world.operator()

    def interfere(verb: str, key: str) -> None:
        if (verb, key) == ("read", layout.claim(1, 1)) and world.records.owner(2) is not None:
            world.bench.interfere = lambda *_: None
            act(operator)

    world.bench.interfere = interfere
    return operator


def test_a_time_out_before_a_retry_has_attached_stops_the_job_it_would_have_attached_to(world: World) -> None:
    """G4: no retry is left, and nobody else would stop it before its deadline."""

    def times_out(_: RayTrainOperator) -> None:
        raise AirflowTaskTimeout

    operator = retry_of_a_running_job(world, times_out)
    with pytest.raises(AirflowTaskTimeout):
        operator.execute(world.task.context)
    operator.on_kill()
    assert layout.stop(1, 1, 2) in world.bench.written()
    assert world.server.jobs[world.job_id()].status == "STOPPED"


def test_a_mark_before_a_retry_has_attached_stops_the_job_and_waits_for_nothing(world: World) -> None:
    def marked(operator: RayTrainOperator) -> None:
        world.task.ti.state = "failed"
        operator.on_kill()

    operator = retry_of_a_running_job(world, marked)
    with pytest.raises(Superseded):
        operator.execute(world.task.context)
    assert world.server.jobs[world.job_id()].status == "STOPPED"


def test_an_eviction_before_a_retry_has_attached_leaves_the_job_alone(world: World) -> None:
    operator = retry_of_a_running_job(world, lambda operator: operator.on_kill())
    with pytest.raises(TaskDeferred):
        operator.execute(world.task.context)
    assert world.server.jobs[world.job_id()].status == "RUNNING"
