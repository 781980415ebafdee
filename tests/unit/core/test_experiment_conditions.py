"""What a sensor concludes from metrics: a condition that holds, never will, or is not met yet; and what it returns."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider.core.experiment_wait import KeepWaiting, WaitDone, WaitSpec, baseline_of, wait_result
from airflow_provider.core.lineage import XCOM_LIMIT
from airflow_provider.core.strict_json import json_bytes
from tests.support.watched_experiment import WatchedExperiment, done, fails, failure, waits

# --- conditions ------------------------------------------------------------------------------------------------------------


def test_a_condition_holds_at_the_newest_checkpoint_that_meets_it(training: WatchedExperiment) -> None:
    waits(training.verdict("loss < 0.8"), "loss < 0.8: last 0.8, lowest 0.8 in 3 checkpoints")
    assert done(training.verdict("loss <= 0.9")) == "checkpoint_000002"
    assert done(training.verdict("epoch == 1 and loss < 1")) == "checkpoint_000001", (
        "an older one, but it is still there"
    )


def test_only_a_checkpoint_that_can_be_used_counts(training: WatchedExperiment) -> None:
    training.commit({"epoch": 3, "loss": 0.1}, {"epoch": 4, "loss": 0.9}, keep=1)
    waits(training.verdict("loss < 0.5"), "lowest 0.1")


def test_a_plateau_knows_checkpoints_that_retention_deleted(training: WatchedExperiment) -> None:
    training.commit(*({"epoch": i, "loss": 0.8} for i in range(3, 6)), keep=1)
    assert done(training.verdict("plateau(loss, patience=3)")) == "checkpoint_000005"
    waits(training.verdict("plateau(loss, patience=4)"), "not improved in the last 3")


def test_a_plateau_follows_the_line_of_descent_over_a_roll_back(training: WatchedExperiment) -> None:
    """What was trained and rolled back belongs to no model that exists: it is no checkpoint without improvement."""
    training.commit({"loss": 2.0}, {"loss": 2.0})
    assert done(training.verdict("plateau(loss, patience=2)")) == "checkpoint_000004"
    training.claim(2)
    training.restore(2, back_to=2)
    waits(training.verdict("plateau(loss, patience=2)"), "not improved in the last 0")
    training.commit({"loss": 0.9}, attempt=2)
    waits(training.verdict("plateau(loss, patience=2)"), "not improved in the last 1")
    training.commit({"loss": 0.9}, attempt=2)
    assert done(training.verdict("plateau(loss, patience=2)")) == "checkpoint_000001"


def test_a_condition_that_was_never_met_fails_at_the_end_with_the_numbers(training: WatchedExperiment) -> None:
    training.succeed()
    fails(training.verdict("loss < 0.1"), "not_met", "ended with success", "lowest 0.8 in 3 checkpoints")


def test_a_training_without_any_checkpoint_did_not_meet_it(watched: WatchedExperiment) -> None:
    watched.claim()
    waits(watched.verdict("loss < 1"), "no checkpoint is committed")
    watched.succeed()
    fails(watched.verdict("loss < 1"), "not_met", "no checkpoint is committed")


def test_a_failed_training_is_that_and_not_an_unmet_condition(training: WatchedExperiment) -> None:
    training.end("failed", failure=failure())
    fails(training.verdict("loss < 0.1"), "training_failed", "KeyError: labels")
    fails(training.verdict("no_such < 0.1"), "training_failed", "KeyError: labels")
    assert done(training.verdict("loss < 0.9")) == "checkpoint_000002", "but what holds, holds"


def test_a_metric_that_never_appears_is_told_early_and_fails_late(training: WatchedExperiment) -> None:
    verdict = training.verdict("val_los < 0.1")
    assert isinstance(verdict, KeepWaiting)
    assert verdict.warning == "none of 3 checkpoints reports val_los; they report epoch, loss"
    fails(
        training.verdict("val_los < 0.1", max_checkpoints_without_metric=3),
        "no_metric",
        "none of 3 checkpoints",
        "epoch, loss",
    )
    waits(training.verdict("val_los < 0.1", max_checkpoints_without_metric=None))
    training.succeed()
    fails(training.verdict("val_los < 0.1"), "no_metric", "ended with success", "val_los")


def test_a_first_checkpoint_without_the_metric_is_not_yet_worth_a_word(watched: WatchedExperiment) -> None:
    watched.claim()
    watched.commit({"epoch": 0})
    verdict = watched.verdict("val_loss < 0.1")
    assert isinstance(verdict, KeepWaiting)
    assert verdict.warning is None


def test_a_condition_looks_at_the_newest_generation_only(training: WatchedExperiment) -> None:
    training.succeed()
    training.claim(1, generation=2, k=2)
    waits(training.verdict("loss <= 0.8"), "g2/a1")


def test_since_holds_for_conditions_too(training: WatchedExperiment) -> None:
    old = baseline_of(training.sight())
    waits(training.verdict("loss <= 0.9", baseline=old, is_since_now=True))
    training.commit({"loss": 0.7})
    assert done(training.verdict("loss <= 0.9", baseline=old, is_since_now=True)) == "checkpoint_000003"


# --- the result ------------------------------------------------------------------------------------------------------------


def result_of(watched: WatchedExperiment, until: str = "end", **spec: Any) -> dict[str, Any]:
    verdict = watched.verdict(until, **spec)
    assert isinstance(verdict, WaitDone)
    found = wait_result(watched.sight(), verdict, WaitSpec(until=until, **spec))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def test_the_result_has_the_operators_names(training: WatchedExperiment) -> None:
    training.succeed()
    found = result_of(training, "epoch == 1")
    uri = "memory://bucket/experiment"
    assert found["checkpoint"] == {
        "uri": f"{uri}/g000001/attempts/000001/checkpoint_000001",
        "name": "g000001/attempts/000001/checkpoint_000001",
        "metrics": {"epoch": 1, "loss": 0.9},
        "truncated": False,
    }
    assert found["latest_checkpoint"]["metrics"]["epoch"] == 2
    assert (found["state"], found["experiment"], found["generation"], found["attempt"]) == ("success", uri, 1, 1)
    assert (found["attempts"], found["submission_id"], found["best_checkpoint"]) == (1, "raytrain-1-1", None)
    assert (found["progress"], found["until"]) == ({"epoch": 1}, "epoch == 1")


def test_a_result_before_the_end_says_running(training: WatchedExperiment) -> None:
    assert result_of(training, "epoch == 1")["state"] == "running"


def test_the_result_stays_within_the_xcom_limit_whatever_was_reported(watched: WatchedExperiment) -> None:
    watched.claim()
    watched.commit({f"m{i}": "ä" * 900 for i in range(40)} | {"nan": float("nan"), "epoch": 3})
    watched.succeed()
    assert json_bytes(result_of(watched)) <= XCOM_LIMIT
