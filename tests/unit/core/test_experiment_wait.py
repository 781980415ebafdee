"""What a sensor concludes from an experiment's records: waiting, done, or failed, and never one for the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider.core.experiment_sight import Stage, training_stage
from airflow_provider.core.experiment_wait import (
    Baseline,
    KeepWaiting,
    baseline_of,
)
from airflow_provider.core.failure import FailureKind
from tests.support.watched_experiment import WatchedExperiment, attempt_ref, done, fails, failure, waits

# --- the end -----------------------------------------------------------------------------------------------------------


def test_nothing_there_is_waited_for_or_refused(watched: WatchedExperiment) -> None:
    waits(watched.verdict(), "no experiment at memory://")
    found = fails(watched.verdict(missing="fail"), "missing", "no experiment")
    assert found.failure.kind is FailureKind.CONFIG


def test_a_try_that_has_begun_is_not_missing(watched: WatchedExperiment) -> None:
    watched.own(1)
    waits(watched.verdict(missing="fail"), "try 1 of train has begun")


def test_a_running_training_is_waited_for_with_its_numbers(training: WatchedExperiment) -> None:
    waits(training.verdict(), "g1/a1 trains", "3 checkpoints", "epoch=2", "loss=0.8")


def test_a_driver_without_a_sign_of_life_is_told(training: WatchedExperiment) -> None:
    """Nobody may ever write how it ended: then a time-out's message has at least this."""
    sight = replace(training.sight(), alive_age_s=299.0)
    assert "sign of life" not in training_stage(sight).reason
    assert "no sign of life for 300 s" in training_stage(replace(sight, alive_age_s=300.0)).reason


def test_a_success_counts_once_its_task_accepted_it(training: WatchedExperiment) -> None:
    training.end()
    waits(training.verdict(), "not accepted")
    training.accept(None)
    waits(training.verdict(), "not accepted")
    training.accept()
    assert done(training.verdict()) == "checkpoint_000002"


def test_a_refused_success_is_a_failure(training: WatchedExperiment) -> None:
    training.end()
    training.accept(accepted=False, why="the training began again from the start")
    found = fails(training.verdict(), "training_failed", "began again")
    assert found.failure.kind is FailureKind.USER


def test_a_failure_that_is_not_retried_ends_the_wait_with_kind_and_reason(training: WatchedExperiment) -> None:
    training.end("failed", failure=failure("user", "KeyError: labels"))
    found = fails(training.verdict(), "training_failed", "g1/a1", "user", "KeyError: labels", "not retried")
    assert found.failure == failure("user", "KeyError: labels")


def test_a_failure_that_the_next_try_restores_is_waited_through(training: WatchedExperiment) -> None:
    """Try 1 of 4: Airflow retries, and the experiment goes on."""
    training.end("failed", failure=failure("lost", "head replaced"))
    waits(training.verdict(), "lost: head replaced", "try 1 of 4", "the next one restores")
    training.claim(2)
    waits(training.verdict(), "g1/a2 trains")


def test_the_last_tries_failure_ends_the_wait(training: WatchedExperiment) -> None:
    training.own(1, try_number=4)
    training.end("failed", failure=failure("lost", "head replaced"))
    fails(training.verdict(), "training_failed", "no try is left")


def test_a_try_that_attached_counts_as_the_one_that_met_the_failure(training: WatchedExperiment) -> None:
    training.own(2, try_number=4, acted_on=attempt_ref(1))
    training.end("failed", failure=failure("lost", "head replaced"))
    fails(training.verdict(), "training_failed", "no try is left")


@pytest.mark.parametrize("state", ["superseded", "cancelled"])
def test_an_attempt_that_was_taken_away_is_followed_by_another(training: WatchedExperiment, state: str) -> None:
    training.end(state, failure=failure("stopped" if state == "cancelled" else "superseded", "owner 2 asked to stop"))
    waits(training.verdict(), "owner 2 asked to stop")


@pytest.mark.parametrize("has_outcome", [True, False])
def test_a_time_out_that_is_not_retried_ends_the_wait(training: WatchedExperiment, has_outcome: bool) -> None:
    """The driver knows of the stop only; a pending one never even began."""
    training.stop(ends="timeout")
    if has_outcome:
        training.end("cancelled", failure=failure("stopped", "owner 1 asked to stop"))
    found = fails(training.verdict(), "training_failed", "the task gave up g1/a1 (timeout: execution_timeout)")
    assert found.failure.kind is FailureKind.TIMEOUT
    training.own(2)
    waits(training.verdict(), "try 2 has begun after g1/a1")


@pytest.mark.parametrize("ends", [None, "success", "cancelled"])
def test_a_task_that_gave_up_ends_the_wait(training: WatchedExperiment, ends: str | None) -> None:
    """The job was stopped on the cluster, or its result never collected: the attempt has no word that it is over."""
    if ends is not None:
        training.end(ends)
    training.own(1, gave_up=failure("stopped", "stopped outside Airflow"))
    fails(training.verdict(), "training_failed", "the task gave up g1/a1 (stopped: stopped outside Airflow)")
    lives = replace(training.sight(), alive_age_s=299.0)
    assert training_stage(lives).stage is Stage.RUNNING, "its driver trains on"
    assert training_stage(replace(lives, alive_age_s=300.0)).stage is Stage.FAILED
    training.own(2)
    assert isinstance(training.verdict(), KeepWaiting)


def test_a_task_that_gave_up_before_it_trained_ends_the_wait(watched: WatchedExperiment) -> None:
    """A parent that is missing, code that can't be packed: there never was an attempt, or none after the clear."""
    watched.own(1, gave_up=failure("config", "no such folder"))
    fails(watched.verdict(), "training_failed", "gave up train before its first attempt", "no such folder")
    watched.own(2)
    waits(watched.verdict(), "no attempt yet")
    watched.claim(1, k=2)
    watched.end("failed", failure=failure("lost", "head replaced"))
    watched.own(3, try_number=2, gave_up=failure("config", "no such folder"))
    fails(watched.verdict(), "training_failed", "gave up g1/a1", "no such folder")


def test_a_result_that_was_accepted_counts_whatever_became_of_the_task(training: WatchedExperiment) -> None:
    training.succeed()
    training.own(1, gave_up=failure("permission", "no right to push"))
    assert done(training.verdict()) == "checkpoint_000002"


@pytest.mark.parametrize("ends", ["hang", "capacity", None])
def test_a_stop_that_a_try_follows_is_waited_through(training: WatchedExperiment, ends: str | None) -> None:
    training.stop(ends=ends)
    training.end("cancelled", failure=failure("stopped", "owner 1 asked to stop"))
    waits(training.verdict(), "owner 1 asked to stop", "the next one restores")


@pytest.mark.parametrize("ends", [(), ("success",)])
def test_a_person_who_stops_it_for_good_ends_the_wait(training: WatchedExperiment, ends: tuple[str, ...]) -> None:
    """Also between a success and its acceptance: no task will accept it any more."""
    for state in ends:
        training.end(state)
    training.own(2, final=True)
    found = fails(training.verdict(), "training_failed", "for good")
    assert found.failure.kind is FailureKind.STOPPED


def test_a_mark_before_the_first_attempt_ends_the_wait_too(watched: WatchedExperiment) -> None:
    watched.own(1)
    watched.own(2, final=True)
    fails(watched.verdict(), "training_failed", "before its first attempt")


def test_a_clear_after_a_final_failure_is_followed(training: WatchedExperiment) -> None:
    training.end("failed", failure=failure())
    training.own(2)
    waits(training.verdict(), "try 2 has begun after g1/a1")


def test_a_mark_after_a_success_changes_nothing(training: WatchedExperiment) -> None:
    training.succeed()
    training.own(2, final=True)
    assert done(training.verdict()) == "checkpoint_000002"


def test_a_new_generation_is_what_is_waited_for(training: WatchedExperiment) -> None:
    """A cleared training trains again: the end of the old generation is not its end."""
    training.succeed()
    training.claim(1, generation=2, k=2)
    waits(training.verdict(), "g2/a1 trains; 0 checkpoints")


def test_since_now_waits_for_the_next_end(training: WatchedExperiment) -> None:
    training.succeed()
    old: dict[str, Any] = {"is_since_now": True, "baseline": baseline_of(training.sight())}
    waits(training.verdict(**old), "before this wait began")
    training.own(2)
    waits(training.verdict(**old))
    training.claim(1, generation=2, k=2)
    training.commit({"epoch": 0}, generation=2)
    waits(training.verdict(**old), "g2/a1 trains")
    training.succeed(generation=2)
    assert done(training.verdict(**old)) == "checkpoint_000000"


def test_since_now_takes_the_end_of_what_was_running(training: WatchedExperiment) -> None:
    old: dict[str, Any] = {"is_since_now": True, "baseline": baseline_of(training.sight())}
    training.succeed()
    assert done(training.verdict(**old)) == "checkpoint_000002"


def test_since_now_forgives_an_old_failure(training: WatchedExperiment) -> None:
    training.end("failed", failure=failure())
    old: dict[str, Any] = {"is_since_now": True, "baseline": baseline_of(training.sight())}
    waits(training.verdict(**old))
    training.claim(2)
    training.end("failed", failure=failure(), attempt=2)
    fails(training.verdict(**old), "training_failed", "g1/a2")


# --- the next checkpoint -------------------------------------------------------------------------------------------------


def test_the_next_checkpoint_is_one_that_was_not_there(training: WatchedExperiment) -> None:
    old = baseline_of(training.sight())
    waits(training.verdict("checkpoint", baseline=old), "no checkpoint newer than", "checkpoint_000002")
    training.commit({"epoch": 3}, {"epoch": 4})
    assert done(training.verdict("checkpoint", baseline=old)) == "checkpoint_000004", "the newest of the new ones"


def test_any_checkpoint_is_new_where_none_was(watched: WatchedExperiment) -> None:
    old = baseline_of(watched.sight())
    assert old == Baseline()
    watched.claim()
    waits(watched.verdict("checkpoint", baseline=old), "no checkpoint")
    watched.commit({"epoch": 0})
    assert done(watched.verdict("checkpoint", baseline=old)) == "checkpoint_000000"


def test_checkpoints_of_a_retry_are_newer_also_when_the_old_one_is_gone(training: WatchedExperiment) -> None:
    old = baseline_of(training.sight())
    training.claim(2)
    training.restore(2, back_to=2)
    waits(training.verdict("checkpoint", baseline=old))
    training.commit({"epoch": 3}, attempt=2, keep=1)
    assert done(training.verdict("checkpoint", baseline=old)) == "checkpoint_000000"
    unknown = old.model_copy(update={"checkpoint": "g000001/attempts/000001/checkpoint_gone"})
    assert done(training.verdict("checkpoint", baseline=unknown)) == "checkpoint_000000"


def test_a_copy_that_was_only_restored_is_not_new(training: WatchedExperiment) -> None:
    """Nothing was trained for it: its metrics are the old ones."""
    old = baseline_of(training.sight())
    training.claim(2)
    training.commit({"epoch": 2}, attempt=2, keep=1)
    training.restore(2, back_to=0)
    waits(training.verdict("checkpoint", baseline=old))
    training.commit({"epoch": 3}, attempt=2)
    assert done(training.verdict("checkpoint", baseline=old)) == "checkpoint_000001"


def test_checkpoints_of_a_new_generation_are_new(training: WatchedExperiment) -> None:
    old = baseline_of(training.sight())
    training.claim(1, generation=2, k=2)
    training.commit({"epoch": 0}, generation=2)
    assert done(training.verdict("checkpoint", baseline=old)) == "checkpoint_000000"


def test_a_checkpoint_is_there_although_the_training_failed_since(training: WatchedExperiment) -> None:
    old = baseline_of(training.sight())
    training.commit({"epoch": 3})
    training.end("failed", failure=failure())
    assert done(training.verdict("checkpoint", baseline=old)) == "checkpoint_000003"


def test_an_end_without_a_new_checkpoint_fails(training: WatchedExperiment) -> None:
    training.succeed()
    old = baseline_of(training.sight())
    fails(training.verdict("checkpoint", baseline=old), "not_met", "ended with success", "newer than")
    waits(training.verdict("checkpoint", baseline=old, is_since_now=True), "before this wait began")


def test_a_quarantined_checkpoint_is_none(training: WatchedExperiment) -> None:
    old = baseline_of(training.sight())
    (bad,) = training.commit({"epoch": 3})
    training.quarantine(bad)
    waits(training.verdict("checkpoint", baseline=old))


def test_a_given_checkpoint_separates_old_from_new(training: WatchedExperiment) -> None:
    since = Baseline.of_checkpoint("g000001/attempts/000001/checkpoint_000001")
    assert (since.generation, since.attempt) == (1, 1)
    assert done(training.verdict("checkpoint", baseline=since)) == "checkpoint_000002"
    ahead = Baseline.of_checkpoint("g000002/attempts/000001/checkpoint_000001")
    waits(training.verdict("checkpoint", baseline=ahead))
