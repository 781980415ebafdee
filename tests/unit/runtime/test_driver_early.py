"""A driver that ends before it trains, is terminated, or comes second: its word is the right one, or none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.classify import classify_job
from airflow_provider.core.errors import BucketNotFound, RayTrainError, RecordUnreadable, StorePermissionDenied
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import EXIT_CANCELLED, EXIT_FAILED, EXIT_SUPERSEDED
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import (
    AliveRecord,
    ClaimRecord,
    CollectedRecord,
    OutcomeRecord,
    OutcomeState,
    Phase,
    StopRecord,
)
from airflow_provider.runtime.driver import Driver
from tests.support.fit_world import ends, fails
from tests.unit.runtime.test_driver import AT, Left, driver, no_exit, outcome

__all__ = ["no_exit"]
DENIED = StorePermissionDenied("PutObject under s3://models/x was refused", known="403")


def has_outcome(of: Driver) -> bool:
    return of.store.exists(layout.outcome(*of.spec.ref.rank))


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


def said_at_last(capsys: pytest.CaptureFixture[str]) -> Failure:
    """What Airflow's side makes of the job's log."""
    out = capsys.readouterr().out
    last = out.splitlines()[-1]
    assert last.startswith("[ray-train] failed: ")
    return classify_job("FAILED", "JOB_ENTRYPOINT_COMMAND_ERROR", EXIT_FAILED, out)


@pytest.mark.parametrize("error", [DENIED, BucketNotFound("no bucket"), RecordUnreadable("torn")])
def test_a_bucket_that_refuses_us_leaves_the_line_and_no_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: RayTrainError
) -> None:
    """Without the line it looks like a lost node, and is tried again for hours."""
    one = driver(tmp_path, ends(0))
    monkeypatch.setattr(one.store, "check_bucket", raising(error))
    assert one.run() == EXIT_FAILED
    said = said_at_last(capsys)
    assert (said.kind, said.is_retryable) == (error.kind, False)
    assert error.what in said.reason
    assert not has_outcome(one), "whose claim it is was not known yet"


def test_a_torn_claim_leaves_the_line_and_no_outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = driver(tmp_path, ends(0))
    one.store.write(layout.claim(1, 1), b'{"torn')
    assert one.run() == EXIT_FAILED
    assert said_at_last(capsys).kind is FailureKind.CHECKPOINT
    assert not has_outcome(one)


def test_a_record_that_cannot_be_read_for_the_carry_over_leaves_an_outcome_and_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = driver(tmp_path, ends(0), n=2)
    two.store.write(layout.outcome(1, 1), b'{"torn')
    assert two.run() == EXIT_FAILED
    left = outcome(two)
    assert left.state is OutcomeState.FAILED
    assert left.failure is not None
    assert left.failure.kind is FailureKind.CHECKPOINT
    assert said_at_last(capsys).reason == left.failure.reason
    assert not two.store.exists(layout.manifest(1, 2)), "nothing was trained"


def test_a_first_record_that_is_refused_leaves_an_outcome_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = driver(tmp_path, ends(0))
    monkeypatch.setattr(one.scribe, "start", raising(DENIED))
    assert one.run() == EXIT_FAILED
    failure = outcome(one).failure
    assert failure is not None
    assert failure.kind is FailureKind.PERMISSION
    assert said_at_last(capsys).kind is FailureKind.PERMISSION


def test_where_the_outcome_is_refused_too_the_line_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = driver(tmp_path, ends(0))
    monkeypatch.setattr(one.scribe, "start", raising(DENIED))
    monkeypatch.setattr(one.store, "write_record", raising(DENIED))
    assert one.run() == EXIT_FAILED
    assert said_at_last(capsys).kind is FailureKind.PERMISSION
    assert not has_outcome(one)


def test_an_early_failure_writes_nothing_over_a_newer_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = driver(tmp_path, ends(0))

    def superseded() -> None:
        driver(tmp_path, n=2)
        raise DENIED

    monkeypatch.setattr(one.scribe, "start", superseded)
    assert one.run() == EXIT_FAILED
    assert not has_outcome(one)


# --- SIGTERM -----------------------------------------------------------------------------------------------------------


def terminated(one: Driver) -> int:
    with pytest.raises(Left) as left:
        one._terminated()
    code: int = left.value.args[0]
    return code


def test_a_termination_without_a_stop_record_is_the_nodes_and_retried(tmp_path: Path) -> None:
    """A node that drains and a stop in Ray's dashboard look alike from inside; the job's status tells them apart."""
    one = driver(tmp_path)
    assert terminated(one) == EXIT_CANCELLED
    left = outcome(one)
    assert left.state is OutcomeState.CANCELLED
    assert left.failure is not None
    assert (left.failure.kind, left.failure.is_retryable) == (FailureKind.INFRASTRUCTURE, True)


def test_a_termination_after_our_stop_record_is_a_stop(tmp_path: Path) -> None:
    one = driver(tmp_path)
    one.store.write_record(layout.stop(1, 1, 1), StopRecord(k=1, reason="marked failed", created_at=AT))
    assert terminated(one) == EXIT_CANCELLED
    failure = outcome(one).failure
    assert failure is not None
    assert (failure.kind, failure.is_retryable) == (FailureKind.STOPPED, False)
    assert "marked failed" in failure.reason


def test_a_terminated_driver_that_was_superseded_writes_nothing(tmp_path: Path) -> None:
    one = driver(tmp_path)
    driver(tmp_path, n=2)
    assert terminated(one) == EXIT_SUPERSEDED
    assert not has_outcome(one)


# --- carried over ------------------------------------------------------------------------------------------------------


def answer(of: Driver, *, answers_clear: bool | None) -> None:
    """The driver's claim says whether a clear asked for it; None as an older release wrote it."""
    key = layout.claim(*of.spec.ref.rank)
    found = of.store.read_record(ClaimRecord, key)
    assert found is not None
    of.store.write_record(key, found.model_copy(update={"answers_clear": answers_clear}))


@pytest.mark.parametrize(
    ("accepted", "answers_clear", "is_carried"),
    [
        (..., False, True),
        (..., True, True),
        (None, False, True),
        (None, True, True),
        (True, False, True),
        (True, True, False),
        (True, None, False),
        (False, False, False),
        (False, True, False),
        (False, None, False),
    ],
)
def test_a_success_is_carried_over_unless_a_person_or_a_refusal_asked_for_more(
    tmp_path: Path, accepted: Any, answers_clear: bool | None, is_carried: bool
) -> None:
    """A claim may be older than the acceptance it finds: then nobody asked for more training than there was.

    After a clear, or a refusal, giving the old result back would train nothing, for ever.
    """
    one = driver(tmp_path, ends(0))
    one.run()
    if accepted is not ...:
        record = CollectedRecord(k=1, accepted=accepted, written_at=AT)
        one.store.write_record(layout.collected(1, 1), record)
    two = driver(tmp_path, ends(1), n=2)
    answer(two, answers_clear=answers_clear)
    if not is_carried:
        assert two.run() == 0
        assert outcome(two).carried_from is None
        assert outcome(two).latest_checkpoint == "attempts/000002/checkpoint_1"
        return
    with pytest.raises(Left, match="0"):
        two.run()
    assert outcome(two).carried_from == AttemptRef(generation=1, attempt=1)
    assert not two.store.exists(layout.manifest(1, 2))


@pytest.mark.parametrize("answers_clear", [True, False])
def test_the_retry_of_an_attempt_that_answered_a_clear_trains_on_as_well(tmp_path: Path, answers_clear: bool) -> None:
    """The clear's own attempt died on the way: the next one owes the same work, although no new clear asked for it."""
    one = driver(tmp_path, ends(0))
    one.run()
    one.store.write_record(layout.collected(1, 1), CollectedRecord(k=1, accepted=True, written_at=AT))
    two = driver(tmp_path, n=2)
    answer(two, answers_clear=answers_clear)
    three = driver(tmp_path, ends(1), n=3)
    answer(three, answers_clear=False)
    if answers_clear:
        assert three.run() == 0
        assert outcome(three).latest_checkpoint == "attempts/000003/checkpoint_1"
        return
    with pytest.raises(Left, match="0"):
        three.run()
    assert outcome(three).carried_from == AttemptRef(generation=1, attempt=1)


# --- a second run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [ends(0), fails(FailureKind.USER, 0), fails(FailureKind.INFRASTRUCTURE)],
    ids=["success", "bug", "lost"],
)
@pytest.mark.parametrize("change", ["nothing", "stop", "deadline"])
def test_a_second_run_of_the_same_job_never_writes_over_the_firsts_outcome(
    tmp_path: Path, first: Any, change: str
) -> None:
    """Ray starts a driver again when its head comes back: a finished training must not become a cancelled one."""
    one = driver(tmp_path, first, fails(FailureKind.USER), fails(FailureKind.USER))
    one.run()
    before = one.store.read(layout.outcome(1, 1))
    assert before is not None
    fields = {"deadline": AT - timedelta(days=1)} if change == "deadline" else {}
    again = driver(tmp_path, ends(5), **fields)
    if change == "stop":
        again.store.write_record(layout.stop(1, 1, 1), StopRecord(k=1, reason="cleared", created_at=AT))
    with pytest.raises(Left, match=str(EXIT_SUPERSEDED)):
        again.run()
    assert again.store.read(layout.outcome(1, 1)) == before


@pytest.mark.parametrize("change", ["stop", "deadline"])
def test_the_firsts_manifest_alone_tells_the_second_run_off(tmp_path: Path, change: str) -> None:
    """The sign of life can't be read, and what is asked of the attempt would make it write an outcome."""
    one = driver(tmp_path, ends(0))
    one.run()
    before = one.store.read(layout.outcome(1, 1))
    one.store.write(layout.alive(1, 1), b'{"torn')
    fields = {"deadline": AT - timedelta(days=1)} if change == "deadline" else {}
    again = driver(tmp_path, ends(5), **fields)
    if change == "stop":
        again.store.write_record(layout.stop(1, 1, 1), StopRecord(k=1, reason="cleared", created_at=AT))
    with pytest.raises(Left, match=str(EXIT_SUPERSEDED)):
        again.run()
    assert again.store.read(layout.outcome(1, 1)) == before


@pytest.mark.parametrize("change", ["nothing", "stop", "deadline"])
def test_a_second_run_beside_the_first_leaves_the_outcome_to_it(tmp_path: Path, change: str) -> None:
    fields = {"deadline": AT - timedelta(days=1)} if change == "deadline" else {}
    again = driver(tmp_path, ends(5), **fields)
    other = AliveRecord(run_uid="other", phase=Phase.STARTING, phase_since=AT, written_at=AT)
    again.store.write_record(layout.alive(1, 1), other)
    if change == "stop":
        again.store.write_record(layout.stop(1, 1, 1), StopRecord(k=1, reason="cleared", created_at=AT))
    with pytest.raises(Left, match=str(EXIT_SUPERSEDED)):
        again.run()
    assert not has_outcome(again)
    assert again.store.read_record(AliveRecord, layout.alive(1, 1)) == other


def test_a_deadline_that_had_passed_before_the_first_run_is_its_own_outcome(tmp_path: Path) -> None:
    one = driver(tmp_path, ends(0), deadline=AT - timedelta(days=1))
    with pytest.raises(Left):
        one.run()
    left = one.store.read_record(OutcomeRecord, layout.outcome(1, 1))
    assert left is not None
    assert left.failure is not None
    assert left.failure.kind is FailureKind.TIMEOUT
