"""Stops: only the newest owner's, recorded before they are sent; and the final one, from outside any try."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import ClusterUnreachable, RecordUnreadable, Superseded
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.hooks.final_stop import stop_for_good
from airflow_provider.hooks.stop import record_stop, stop_attempt
from tests.support.experiment import ref
from tests.support.operator_run import World, running_world
from tests.support.records import outcome
from tests.support.training_try import Bench, job_id

COUNTERS = {"try_number": 2, "max_tries": 3, "clear_number": 1}


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.own(1)
    bench.claim(1)
    return bench


def stop(bench: Bench, k: int = 1) -> bool:
    result = stop_attempt(bench.records, bench.client, ref=ref(1, 1), submission_id=job_id(1, 1), k=k, reason="cleared")
    return result.is_sent


def test_a_stop_is_recorded_and_then_sent(bench: Bench) -> None:
    """Ray ignores a stop of a PENDING job: its driver obeys the record."""
    assert stop(bench)
    assert bench.steps("create_if_absent", "stop") == [
        f"create_if_absent {layout.stop(1, 1, 1)}",
        f"stop {job_id(1, 1)}",
    ]


@pytest.mark.parametrize("k", [1, 3])
def test_who_is_not_the_newest_owner_stops_nothing(bench: Bench, k: int) -> None:
    bench.own(2)
    assert not stop(bench, k)
    assert bench.steps("create_if_absent", "stop") == []


def test_unreadable_owners_mean_no_stop(bench: Bench) -> None:
    bench.store.put_raw(layout.owner(2), b"torn")
    with pytest.raises(RecordUnreadable):
        stop(bench, 2)
    assert bench.steps("create_if_absent", "stop") == []


def test_a_record_of_the_own_number_counts_as_written(bench: Bench) -> None:
    assert record_stop(bench.records, ref=ref(1, 1), k=1, reason="x" * 900).is_sent
    assert record_stop(bench.records, ref=ref(1, 1), k=1, reason="again").is_sent
    assert bench.records.stops(ref(1, 1))[1].reason == "x" * 500


def test_a_lost_post_leaves_the_record(bench: Bench) -> None:
    bench.client.silence = ClusterUnreachable("away")
    with pytest.raises(ClusterUnreachable):
        stop(bench)
    assert layout.stop(1, 1, 1) in bench.written()


# --- for good ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_world(monkeypatch) as world:
        yield world


def stop_finally(world: World, job: dict[str, str]) -> str:
    return stop_for_good(job, task=key_of_owner(world), counters=COUNTERS, how="marked failed")


def key_of_owner(world: World) -> TaskInstanceKey:
    """The task instance that owns; without an owner, the world's own."""
    found = world.records.newest_owner()
    who = found[1] if found else world.task.ti
    return TaskInstanceKey(who.dag_id, who.run_id, who.task_id, who.map_index)


def pushed(world: World) -> dict[str, str]:
    job: dict[str, str] = world.task.ti.xcoms["ray_train_job"]
    return job


def test_a_stop_for_good_owns_with_final_first_so_that_a_post_on_its_way_ends_itself(world: World) -> None:
    """Story 7: the listener may run before the claim."""
    world.defer()
    world.server.set_status(world.job_id(), "RUNNING")
    world.bench.log.clear()
    stop_finally(world, pushed(world))
    assert world.bench.steps("create_if_absent") == [
        f"create_if_absent {layout.owner(2)}",
        f"create_if_absent {layout.stop(1, 1, 2)}",
    ]
    assert world.server.jobs[world.job_id()].status == "STOPPED"
    newest = world.records.newest_owner()
    assert newest is not None
    owner = newest[1]
    assert (owner.final, owner.created_by, owner.acted_on, owner.submission_id) == (True, "listener", None, None)
    assert (owner.try_number, owner.max_tries, owner.clear_number) == (2, 3, 1)
    assert owner.dag_run_identity == "i1"
    assert owner.final_because == "the task was marked failed", "the driver may look before there is a stop record"


def test_it_stops_the_newest_attempt_and_not_the_one_that_was_announced(world: World) -> None:
    world.defer()
    job = pushed(world)
    world.bench.claim(2, k=1, submission_id="the-newer-job")
    world.server.add_job("the-newer-job")
    stop_finally(world, job)
    assert world.server.jobs["the-newer-job"].status == "STOPPED"
    assert layout.stop(1, 2, 2) in world.bench.written()


def test_without_an_owner_there_is_nothing_to_stop(world: World) -> None:
    job = {"experiment": "/shared/x", "conn_id": "ray_test", "aws_conn_id": "a"}
    assert "no owner" in stop_finally(world, job)
    assert world.bench.written() == []


def test_before_the_claim_the_final_owner_is_all(world: World) -> None:
    world.bench.own(1)
    job = {"experiment": "/shared/x", "conn_id": "ray_test", "aws_conn_id": "a"}
    assert "no attempt was claimed" in stop_finally(world, job)
    assert world.bench.written() == [layout.owner(1), layout.owner(2)]


def test_an_attempt_that_is_over_is_not_stopped(world: World) -> None:
    world.defer()
    world.end(None, "", record=outcome())
    assert "is over already" in stop_finally(world, pushed(world))
    assert world.server.num("POST", ".*/stop") == 0


@pytest.mark.parametrize(
    ("newest", "is_stopped"),
    [
        ({"try_number": 2, "clear_number": 1}, True),
        ({"try_number": 1, "clear_number": 0}, True),
        ({"try_number": 3, "clear_number": 1}, False),
        ({"try_number": 2, "clear_number": 2}, False),
        ({"try_number": 1, "clear_number": 2}, False),
    ],
)
@pytest.mark.parametrize("is_race", [False, True])
def test_a_try_that_a_later_clear_or_retry_started_is_not_meant(
    world: World, newest: dict[str, int], is_stopped: bool, is_race: bool
) -> None:
    """The listener has a thread of its own: the cleared task may own before it does, or in the same moment."""
    world.task.ti.try_number = 2
    world.task.dag_run.clear_number = 1
    world.defer()
    world.server.set_status(world.job_id(), "RUNNING")

    def owns(verb: str, key: str) -> None:
        if (verb, key) == ("create_if_absent", layout.owner(2)):
            world.newer_owner(2, **newest)

    if is_race:
        world.bench.interfere = owns
    else:
        world.newer_owner(2, **newest)
    said = stop_finally(world, pushed(world))
    found = world.records.newest_owner()
    assert found is not None
    assert (found[0], found[1].final) == ((3, True) if is_stopped else (2, False))
    assert (world.server.jobs[world.job_id()].status == "STOPPED") is is_stopped
    assert (layout.stop(1, 1, 3) in world.bench.written()) is is_stopped
    if not is_stopped:
        assert said.startswith("not stopping: owner 2 is try ")
        assert world.server.num("POST", ".*/stop") == 0


def test_races_that_are_always_lost_come_to_an_end(world: World) -> None:
    world.defer()
    lost: list[str] = []

    def other_is_first(verb: str, key: str) -> None:
        if verb == "create_if_absent" and key.startswith("owners/"):
            lost.append(key)
            world.newer_owner(len(lost) + 1, try_number=1)

    world.bench.interfere = other_is_first
    assert "not stopping: 100 owner numbers" in stop_finally(world, pushed(world))
    assert len(lost) == 100
    assert world.server.num("POST", ".*/stop") == 0


def test_the_first_try_of_a_re_created_run_is_stopped_although_its_number_is_low(world: World) -> None:
    """The deleted run's last owner was try 3: numbers compare within one DAG run only. The mark comes before the new run owns."""
    world.bench.own(1, try_number=3, run_id=world.task.ti.run_id, dag_run_identity="of-the-deleted-run")
    counters = {"try_number": 1, "max_tries": 3, "clear_number": 0}
    said: list[str] = []

    def marked(verb: str, key: str) -> None:
        if (verb, key) == ("create_if_absent", layout.owner(2)) and not said:
            said.append("")
            said.append(stop_for_good(pushed(world), task=key_of_owner(world), counters=counters, how="marked failed"))

    world.bench.interfere = marked
    with pytest.raises(Superseded):
        world.operator().execute(world.task.context)
    newest = world.records.newest_owner()
    assert newest is not None
    assert (newest[0], newest[1].final, newest[1].dag_run_identity) == (2, True, "i1")
    assert world.server.num_posts == 0


def test_a_mark_of_a_deleted_run_does_not_stop_the_one_that_came_after(world: World) -> None:
    """Both have the same run id; the listener of the first is late."""
    world.defer()
    late = pushed(world)
    run_id = world.task.ti.run_id
    world.bench.own(2, try_number=1, run_id=run_id, dag_run_identity="of-the-new-run")
    world.bench.claim(2, k=2, submission_id="the-new-run-s-job")
    world.server.add_job("the-new-run-s-job")
    assert "not stopping" in stop_finally(world, late)
    assert world.server.jobs["the-new-run-s-job"].status != "STOPPED"
    newest = world.records.newest_owner()
    assert newest is not None
    assert newest[0] == 2


def test_a_process_of_the_deleted_run_that_owns_last_saves_no_job_from_the_mark(world: World) -> None:
    """It froze before it owned, and exits at its marker; the marked try's `on_kill` no longer finds itself the owner."""
    run_id = world.task.ti.run_id
    world.bench.own(1, try_number=1, run_id=run_id, dag_run_identity="of-the-deleted-run")
    world.defer()
    world.server.set_status(world.job_id(), "RUNNING")
    world.bench.own(3, try_number=2, run_id=run_id, dag_run_identity="of-the-deleted-run")
    stop_finally(world, pushed(world))
    assert world.server.jobs[world.job_id()].status == "STOPPED"


def test_an_older_try_that_owns_last_does_not_hide_the_newer_one_from_a_late_listener(world: World) -> None:
    """Try 1 is marked, then cleared; try 2 trains when the listener comes, and a thawed process of try 1 owned last."""
    world.defer()
    late = pushed(world)
    world.server.set_status(world.job_id(), "RUNNING")
    world.newer_owner(2, try_number=3, clear_number=2)
    world.newer_owner(3, try_number=1)
    assert stop_finally(world, late).startswith("not stopping: owner 2 is try 3")
    assert world.server.jobs[world.job_id()].status == "RUNNING"


def test_a_task_that_was_refused_the_experiment_of_another_does_not_stop_that_one(world: World) -> None:
    """Two mapped tasks with one fixed experiment_name: the second is refused, somebody marks it, the first trains on."""
    world.defer(world.operator(experiment_name="shared"))
    world.server.set_status(next(iter(world.server.jobs)), "RUNNING")
    ti = world.task.ti
    other = TaskInstanceKey(ti.dag_id, ti.run_id, ti.task_id, 7)
    said = stop_for_good(pushed(world), task=other, counters=COUNTERS, how="marked failed")
    assert "belongs to" in said
    assert [job.status for job in world.server.jobs.values()] == ["RUNNING"]


def test_a_mark_leaves_the_job_where_the_author_said_so(world: World) -> None:
    world.defer(world.operator(stop_on_kill=False))
    world.server.set_status(world.job_id(), "RUNNING")
    assert stop_finally(world, pushed(world)) == "leaving the job: stop_on_kill is off"
    assert world.server.jobs[world.job_id()].status == "RUNNING"
    assert layout.owner(2) not in world.bench.written(), "no owner of the listener's"


def test_a_mark_does_not_repeat_what_the_try_before_gave_up_with(world: World) -> None:
    """The final owner is a person's: what ended an earlier try is in that try's own record."""
    world.defer()
    own = world.records.owner(1)
    assert own is not None
    gave_up = Failure(kind=FailureKind.CONFIG, reason="the trigger failed")
    world.records.update_owner(own.record.model_copy(update={"gave_up": gave_up}))
    stop_finally(world, pushed(world))
    newest = world.records.newest_owner()
    assert newest is not None
    assert (newest[0], newest[1].final, newest[1].gave_up) == (2, True, None)
