"""From a job's end to the task's result: what is accepted, published, refused, or decided again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import ClusterUnreachable, RayJobFailed, Superseded
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.records import CollectedRecord, OutcomeState
from airflow_provider.operators.training_try import TrainingTry
from airflow_provider.testing.jobs_api_parts import Fault
from tests.support.experiment import ref, stop
from tests.support.fake_airflow import MARKER_KEY, refused
from tests.support.operator_run import World, running_world
from tests.support.records import outcome


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_world(monkeypatch) as world:
        yield world


def collected(world: World, attempt: int = 1) -> CollectedRecord:
    found = world.records.collected(ref(1, attempt))
    assert found is not None
    return found.record


def failed_resume(world: World, *args: object, **kwargs: object) -> Failure:
    with pytest.raises(RayJobFailed) as caught:
        world.resume(*args, **kwargs)  # type: ignore[arg-type]
    return caught.value.failure


def test_links_and_the_listeners_record_are_pushed_before_the_task_defers(world: World) -> None:
    trigger = world.defer()
    assert world.task.ti.pushed == ["ray_train_job", "experiment_url", "ray_job_url", "ray_train_job"]
    record = world.task.ti.xcoms["ray_train_job"]
    assert record["submission_id"] == trigger.submission_id == world.job_id()
    assert "t0ken" not in str(world.task.ti.xcoms)


def test_a_success_is_accepted_and_published(world: World) -> None:
    trigger = world.defer()
    world.succeed(trigger, num_checkpoints=2)
    result = world.resume(trigger)
    assert (result["state"], result["new_checkpoints"]) == ("success", 2)
    assert result["latest_checkpoint"]["name"] == "g000001/attempts/000001/checkpoint_1"
    assert collected(world).accepted is True
    assert world.task.ti.xcoms["checkpoint_lineage"]["num_checkpoints"] == 2
    assert "ray_train_failure" not in world.task.ti.xcoms


def test_a_success_is_accepted_once_and_published_as_often_as_asked(world: World) -> None:
    """A stale scheduler event makes Airflow run a finished try again."""
    trigger = world.defer()
    world.succeed(trigger)
    first = world.resume(trigger)
    accepted = world.records.collected(ref(1, 1))
    world.next_try()
    second = world.operator().execute(world.task.context)
    assert world.server.num_posts == 1
    assert {**second, "tries": first["tries"]} == first
    assert world.records.collected(ref(1, 1)).etag == accepted.etag  # type: ignore[union-attr]


def test_a_success_without_a_checkpoint_is_refused_where_one_was_required(world: World) -> None:
    trigger = world.defer()
    world.succeed(trigger, num_checkpoints=0)
    operator = world.operator(require_new_checkpoint=True)
    failure = failed_resume(world, trigger, operator=operator)
    assert failure.kind is FailureKind.USER
    assert (collected(world).accepted, collected(world).refused_because) == (False, failure.reason)


def test_a_success_without_a_checkpoint_is_warned_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a loop that counts on from its parent's epoch and finds all of them done."""
    trigger = world.defer()
    world.succeed(trigger, num_checkpoints=0)
    operator = world.operator()
    said: list[str] = []
    monkeypatch.setattr(operator.log, "warning", said.append)
    assert world.resume(trigger, operator=operator)["new_checkpoints"] == 0
    assert [text for text in said if "succeeded without a new checkpoint" in text], said


def test_what_was_refused_stays_refused_for_the_next_try_and_for_the_same_event_again(world: World) -> None:
    trigger = world.defer()
    world.succeed(trigger, num_checkpoints=0)
    failed_resume(world, trigger, operator=world.operator(require_new_checkpoint=True))
    again = failed_resume(world, trigger, operator=world.operator())
    assert "committed no new checkpoint" in again.reason
    world.next_try()
    with pytest.raises(RayJobFailed, match="was refused"):
        world.operator().execute(world.task.context)
    assert world.server.num_posts == 1
    assert collected(world).accepted is False


def test_a_training_that_began_again_is_refused(world: World) -> None:
    trigger = world.defer()
    world.bench.commit("checkpoint_0")
    record = outcome(restore_proven="no")
    world.end(world.server.jobs[trigger.submission_id], "SUCCEEDED", record=record)
    assert "began again" in failed_resume(world, trigger).reason


def test_a_replaced_process_accepts_but_publishes_nothing(world: World) -> None:
    """The try that replaced it finds the acceptance and publishes."""
    trigger = world.defer()
    world.succeed(trigger)
    world.task.store.refusal = refused(404)
    pushed = list(world.task.ti.pushed)
    with pytest.raises(Superseded):
        world.resume(trigger)
    assert world.task.ti.pushed == pushed


def test_a_state_store_that_fails_is_not_taken_for_a_replacement(world: World) -> None:
    world.task.store.refusal = refused(500)
    with pytest.raises(Exception, match="API_SERVER_ERROR"):
        world.operator().execute(world.task.context)
    assert world.server.num_posts == 0


def test_the_marker_holds_the_owner_number_and_keeps_the_dag_runs_identity(world: World) -> None:
    world.defer()
    assert world.task.store.values[MARKER_KEY] == {"k": 1, "identity": "i1"}
    newest = world.records.newest_owner()
    assert newest is not None
    assert newest[1].dag_run_identity == "i1"


def test_a_failure_is_pushed_with_the_lineage_before_it_is_raised(world: World) -> None:
    trigger = world.defer()
    world.bench.commit("checkpoint_0")
    world.end(world.server.jobs[trigger.submission_id], "FAILED", record=outcome("failed"))
    failure = failed_resume(world, trigger)
    told = world.task.ti.xcoms["ray_train_failure"]
    assert set(told.pop("goodput")) == {"fraction", "wall_s", "productive_s", "lost_s"}
    assert told == {"kind": "infrastructure", "reason": failure.reason, "retryable": True}
    assert world.task.ti.xcoms["checkpoint_lineage"]["attempts"][0]["state"] == "failed"
    assert world.records.collected(ref(1, 1)) is None, "the driver's own outcome needs no second record"


def test_a_refusal_to_start_is_pushed_too(world: World) -> None:
    trigger = world.defer()
    world.end(world.server.jobs[trigger.submission_id], "STOPPED")
    world.next_try()
    with pytest.raises(RayJobFailed):
        world.operator().execute(world.task.context)
    assert world.task.ti.xcoms["ray_train_failure"]["kind"] == "stopped"


def test_a_failure_that_cannot_be_shown_keeps_its_kind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = world.defer()
    world.end(world.server.jobs[trigger.submission_id], "STOPPED")

    def push(key: str, value: object) -> None:
        if key == "ray_train_failure":
            raise refused(500)

    monkeypatch.setattr(world.task.ti, "xcom_push", push)
    assert failed_resume(world, trigger).kind is FailureKind.STOPPED


def test_a_stop_outside_airflow_is_a_persons_wish_and_not_retried(world: World) -> None:
    trigger = world.defer()
    world.end(world.server.jobs[trigger.submission_id], "STOPPED")
    failure = failed_resume(world, trigger)
    assert (failure.kind, failure.is_retryable) == (FailureKind.STOPPED, False)


@pytest.mark.parametrize("how", ["superseded", "older stop"])
def test_a_job_taken_away_by_an_older_process_is_decided_again_within_the_try(world: World, how: str) -> None:
    """Story 5: a late cancel of an older try must not fail a healthy one."""
    world.bench.own(1, run_id=world.task.ti.run_id, try_number=1)
    world.task.ti.try_number = 2
    trigger = world.defer()
    assert trigger.k == 2
    job = world.server.jobs[trigger.submission_id]
    if how == "superseded":
        world.end(job, "FAILED", record=outcome("superseded"))
    else:
        world.bench.store.put_raw("g000001/attempts/000001/stop-000001.json", stop(1).body())
        world.end(job, "STOPPED")
    again = world.defer_again(trigger)
    assert (again.generation, again.attempt) == (1, 2)
    assert world.server.num_posts == 2


@pytest.mark.scenario("C34")
def test_our_own_stop_is_no_reason_to_go_on(world: World) -> None:
    trigger = world.defer()
    world.bench.store.put_raw("g000001/attempts/000001/stop-000001.json", stop(1).body())
    world.end(world.server.jobs[trigger.submission_id], "STOPPED")
    assert failed_resume(world, trigger).kind is FailureKind.STOPPED
    assert world.server.num_posts == 1


def test_a_newer_try_ends_this_one_before_anything_is_accepted(world: World) -> None:
    trigger = world.defer()
    world.succeed(trigger)
    world.newer_owner(2)
    with pytest.raises(Superseded):
        world.resume(trigger)
    assert world.records.collected(ref(1, 1)) is None
    assert "checkpoint_lineage" not in world.task.ti.xcoms
    assert "ray_train_failure" not in world.task.ti.xcoms


def test_a_lost_job_is_concluded_from_the_manifest_and_its_records_completed(world: World) -> None:
    trigger = world.defer()
    world.bench.commit("checkpoint_0", "checkpoint_1")
    world.bench.store.delete("g000001/attempts/000001/records/000001.json")
    world.server.replace_head()
    failure = failed_resume(world, trigger, "lost")
    assert (failure.kind, failure.is_retryable) == (FailureKind.LOST, True)
    concluded = collected(world).outcome
    assert concluded is not None
    assert (concluded.state, concluded.num_commits) == (OutcomeState.FAILED, 2)
    late = world.records.segments(ref(1, 1))["late-owner-000001"].checkpoints
    assert [(e.checkpoint.rpartition("/")[2], e.late, e.files[0].size) for e in late] == [
        ("checkpoint_0", True, 8),
        ("checkpoint_1", True, 8),
    ]


def test_a_lost_job_that_is_there_again_is_attached_to(world: World) -> None:
    trigger = world.defer()
    world.server.set_status(trigger.submission_id, "RUNNING")
    again = world.defer_again(trigger, "lost")
    assert (again.attempt, again.submission_id) == (1, trigger.submission_id)
    assert world.server.num_posts == 1


def test_a_job_without_an_outcome_is_concluded_from_the_jobs_api(world: World) -> None:
    trigger = world.defer()
    world.server.set_status(trigger.submission_id, "FAILED", exit_code=137, error_type="JOB_ENTRYPOINT_COMMAND_ERROR")
    assert failed_resume(world, trigger).is_retryable
    assert collected(world).job_status == "FAILED"


def test_an_outcome_counts_whatever_has_become_of_the_dashboard(world: World) -> None:
    """Training went on while the cluster was unreachable; it is over, and its result is in the bucket."""
    trigger = world.defer()
    world.succeed(trigger)
    for status in (502, 401, 400, 200):
        fault = world.server.add(Fault("answer", path=r".*/api/jobs/.+", status=status))
        assert world.resume(trigger)["state"] == "success"
        assert fault.num_hit
        world.server.clear_faults()


def test_without_an_outcome_a_silent_cluster_is_retried(world: World) -> None:
    trigger = world.defer()
    world.server.add(Fault("answer", path=r".*/api/jobs/.+"))
    with pytest.raises(ClusterUnreachable):
        world.resume(trigger)
    assert world.task.ti.xcoms["ray_train_failure"]["kind"] == "network"
    assert world.records.collected(ref(1, 1)) is None


@pytest.mark.parametrize(
    ("end", "kind", "reason"),
    [
        ("timeout", FailureKind.TIMEOUT, "it timeout"),
        ("pending_too_long", FailureKind.CAPACITY, "it pending_too_long. Ray says: Job is pending."),
        ("unreachable", FailureKind.NETWORK, "it unreachable"),
    ],
)
def test_a_wait_that_was_given_up_fails_with_its_own_kind(
    world: World, end: str, kind: FailureKind, reason: str
) -> None:
    """The stopped job may still be RUNNING or PENDING in the Jobs API: its stop takes time, or is ignored."""
    trigger = world.defer()
    if end != "unreachable":
        world.bench.store.put_raw(layout.stop(1, 1, 1), stop(1).body())
    failure = failed_resume(world, trigger, end)
    assert (failure.kind, failure.reason) == (kind, reason)
    if end != "unreachable":
        concluded = collected(world).outcome
        assert concluded is not None
        assert concluded.failure == failure


def test_a_job_that_could_not_be_stopped_is_not_recorded_as_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains on; the next try attaches, and the driver's own outcome counts."""
    trigger = world.defer()
    world.server.set_status(trigger.submission_id, "RUNNING")
    monkeypatch.setattr("airflow_provider.operators.training_try.STOP_WAIT_S", 0.0)
    assert failed_resume(world, trigger, "silent_driver").kind is FailureKind.HANG
    assert world.records.collected(ref(1, 1)) is None


@pytest.mark.parametrize("status", ["STOPPED", "RUNNING"])
def test_a_deadline_waits_for_the_driver_and_is_not_hidden_by_our_own_stop(
    world: World, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = world.defer()
    world.bench.store.put_raw("g000001/attempts/000001/stop-000001.json", stop(1).body())
    world.server.set_status(trigger.submission_id, "RUNNING")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if status == "STOPPED":
            record = outcome("cancelled", failure=Failure(kind=FailureKind.STOPPED, reason="a stop record"))
            world.end(world.server.jobs[trigger.submission_id], status, record=record)

    monkeypatch.setattr("airflow_provider.operators.session.TrainingTry", partial(TrainingTry, sleep=sleep))
    monkeypatch.setattr("airflow_provider.operators.training_try.STOP_WAIT_S", 3.0)
    operator = world.operator()
    failure = failed_resume(world, trigger, "timeout", operator=operator)
    assert failure.kind is FailureKind.TIMEOUT
    assert sum(slept) == (1.0 if status == "STOPPED" else 3.0)


def test_a_job_that_succeeded_at_the_deadline_is_a_success(world: World) -> None:
    trigger = world.defer()
    world.succeed(trigger)
    assert world.resume(trigger, "timeout")["state"] == "success"


def test_a_broken_trigger_keeps_the_kind_of_its_error(world: World) -> None:
    trigger = world.defer()
    failure = failed_resume(world, trigger, "error", kind="auth", reason="the token was refused")
    assert (failure.kind, failure.is_retryable) == (FailureKind.AUTH, False)
    assert world.task.ti.xcoms["ray_train_failure"]["reason"] == failure.reason
    assert world.server.num("POST", ".*/stop") == 0


def test_resume_needs_the_event_alone(world: World) -> None:
    """`dag.test()` drops the kwargs of `defer`, and the process is another one."""
    trigger = world.defer()
    world.succeed(trigger)
    event = world.event(trigger)
    assert set(event) == {"end", "reason", "generation", "attempt", "k", "submission_id"}
    assert world.operator().execute_complete(world.task.context, event)["state"] == "success"


def test_a_retry_attaches_to_the_running_job(world: World) -> None:
    trigger = world.defer()
    world.server.set_status(trigger.submission_id, "RUNNING")
    world.next_try()
    again = world.defer()
    assert (again.submission_id, again.k) == (trigger.submission_id, 2)
    assert world.server.num_posts == 1


def test_the_budgets_are_printed_when_a_try_starts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, said = world.operator(retries=5), []
    monkeypatch.setattr(operator.log, "info", lambda text, *args: said.append(text % args if args else text))
    world.defer(operator)
    assert "driver or cluster lost" in said[0]
    assert said[0].splitlines()[6].endswith(" 5")


def test_a_replaced_process_that_made_a_mark_of_its_own_owns_nothing(world: World) -> None:
    """It froze before it owned. An owner of another mark would hide the current try's job from listener and trigger."""
    world.task.store.values.clear()
    world.task.store.refusal = refused(404)
    with pytest.raises(Superseded):
        world.operator().execute(world.task.context)
    assert world.bench.written() == []
    assert world.task.ti.pushed == []


def test_the_mark_of_a_new_dag_run_is_kept_before_anything_is_owned(world: World) -> None:
    world.task.store.values.clear()
    seen: list[object] = []
    world.bench.interfere = lambda *_: seen.append(world.task.store.values.get(MARKER_KEY))
    world.defer()
    first = seen[0]
    assert isinstance(first, dict)
    assert first["identity"] == world.task.store.values[MARKER_KEY]["identity"]
