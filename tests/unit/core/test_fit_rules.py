"""When a fit ends, when the driver fits again, and what proves a restore."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.fit_rules import (
    SeenFailure,
    Suspicion,
    decide_fit_failure,
    decide_poison,
    decide_refit,
    prove_restore,
)
from airflow_provider.core.spec import FailureConfig

CONFIG = FailureConfig(no_progress_failures=3, max_refits=4)


def user(line: int = 7, name: str = "ValueError", reason: str = "loss is nan in step 12") -> Failure:
    detail = f'Traceback:\n  File "/ray/actor.py", line 1, in f\n  File "/job/train.py", line {line}, in train\n{name}: {reason}'
    return Failure(kind=FailureKind.USER, reason=reason, exception_type=name, detail=detail)


def other(kind: FailureKind) -> Failure:
    return Failure(kind=kind, reason="a node died")


def seen(*failures: tuple[Failure, int]) -> list[SeenFailure]:
    return [SeenFailure(failure, commits) for failure, commits in failures]


def test_one_user_error_may_be_bad_luck() -> None:
    assert not decide_fit_failure(seen((user(), 0)), config=CONFIG).ends


def test_same_place_twice_without_a_commit_ends_the_fit_whatever_the_message_counts() -> None:
    """G6: messages hold step numbers; the place tells that it is the same error."""
    verdict = decide_fit_failure(
        seen((user(reason="nan in step 12"), 2), (user(reason="nan in step 14"), 2)), config=CONFIG
    )
    assert verdict.ends
    assert verdict.failure is not None
    assert verdict.failure.kind is FailureKind.USER
    assert "2 times without a commit" in verdict.reason
    assert "nan in step 14" in verdict.reason


def test_a_commit_in_between_starts_the_count_again() -> None:
    assert not decide_fit_failure(seen((user(), 2), (user(), 3)), config=CONFIG).ends


def test_different_errors_count_as_no_progress_only() -> None:
    two = seen((user(1), 0), (user(2), 0))
    assert not decide_fit_failure(two, config=CONFIG).ends
    three = decide_fit_failure([*two, *seen((user(3), 0))], config=CONFIG)
    assert three.ends
    assert "3 failures without a commit (no_progress_failures=3)" in three.reason


@pytest.mark.parametrize(
    "kind", [FailureKind.INFRASTRUCTURE, FailureKind.PREEMPTION, FailureKind.NETWORK, FailureKind.THROTTLING]
)
def test_the_cluster_s_failures_never_end_a_fit(kind: FailureKind) -> None:
    """Twenty lost nodes say nothing about the training."""
    assert not decide_fit_failure(seen(*[(other(kind), 0)] * 20), config=CONFIG).ends


def test_infrastructure_between_two_equal_errors_hides_neither() -> None:
    failures = seen((user(), 0), (other(FailureKind.INFRASTRUCTURE), 0), (user(), 0))
    assert decide_fit_failure(failures, config=CONFIG).ends


@pytest.mark.parametrize("kind", [FailureKind.PERMISSION, FailureKind.CONFIG])
def test_missing_permission_ends_at_once(kind: FailureKind) -> None:
    verdict = decide_fit_failure(seen((other(kind), 5)), config=CONFIG)
    assert verdict.ends
    assert verdict.failure is not None
    assert verdict.failure.kind is kind


def test_memory_without_progress_ends() -> None:
    failures = seen(*[(other(FailureKind.OUT_OF_MEMORY), 1)] * 3)
    assert decide_fit_failure(failures, config=CONFIG).ends
    assert not decide_fit_failure(failures[:2], config=CONFIG).ends


def refit(kind: FailureKind, *, done: int = 1, barren: int = 0, by_rule: bool = False) -> bool:
    verdict = decide_refit(
        other(kind), fits_done=done, fits_without_commit=barren, was_ended_by_rule=by_rule, config=CONFIG
    )
    assert verdict.reason
    return verdict.refits


def test_refits_while_it_is_the_cluster_s_fault() -> None:
    assert refit(FailureKind.INFRASTRUCTURE)
    assert refit(FailureKind.NETWORK, done=4)
    assert not refit(FailureKind.INFRASTRUCTURE, done=5), "max_refits"
    assert not refit(FailureKind.INFRASTRUCTURE, barren=3), "three fits in a row committed nothing"
    assert not refit(FailureKind.INFRASTRUCTURE, by_rule=True)


@pytest.mark.parametrize("kind", [FailureKind.USER, FailureKind.CONFIG, FailureKind.PERMISSION, FailureKind.SUPERSEDED])
def test_never_refits_what_would_fail_again(kind: FailureKind) -> None:
    assert not refit(kind)


@pytest.mark.parametrize(
    ("before", "after", "declared", "proven"),
    [
        ({"epoch": 3}, {"epoch": 4}, "epoch", "yes"),
        ({"epoch": 3}, {"epoch": 3}, "epoch", "yes"),
        ({"epoch": 3}, {"epoch": 0}, "epoch", "no"),
        ({"epoch": 3}, {"epoch": 0}, None, "no"),
        ({"loss": 3}, {"loss": 0}, None, "unknown"),
        ({"epoch": 3}, {}, "epoch", "unknown"),
        ({"epoch": "NaN"}, {"epoch": 1}, "epoch", "unknown"),
        ({"epoch": True}, {"epoch": False}, "epoch", "unknown"),
        ({"epoch": 10**400}, {"epoch": 1}, "epoch", "unknown"),
    ],
)
def test_proof_of_a_restore(before: dict, after: dict, declared: str | None, proven: str) -> None:
    """G8: a progress metric that fell means that the loop began again."""
    proof = prove_restore(before, after, declared=declared)
    assert proof.proven == proven
    assert proof.is_declared is (declared is not None)


def test_a_misspelt_progress_metric_leaves_the_guess() -> None:
    """Worse than none: it switched the proof off without a word."""
    proof = prove_restore({"epoch": 5}, {"epoch": 0}, declared="epoche")
    assert (proof.proven, proof.is_declared, proof.outcome) == ("no", False, "unknown")
    assert "'epoche' is not reported" in proof.reason
    assert "epoch fell from 5" in proof.reason


SUSPICION = Suspicion("c5", user())


def poison(repeats: int = 2, *, failure: Failure | None = None, **facts: Any) -> str:
    known: dict[str, Any] = {
        "checkpoint": "c5",
        "suspicion": None,
        "has_progressed": False,
        "num_suspected": 0,
        "on_corrupt": "rollback",
        **facts,
    }
    verdict = decide_poison((failure or user()).model_copy(update={"repeats": repeats}), **known)
    assert verdict.reason
    return verdict.action


def test_a_checkpoint_that_the_training_keeps_failing_from_is_tried_without_once() -> None:
    """G3: code or checkpoint? The one before it tells."""
    assert poison() == "suspect"
    assert poison(repeats=1) == "leave", "one error may be bad luck"
    assert poison(checkpoint=None) == "leave", "from the start: the code's error"
    assert poison(on_corrupt="fail") == "leave"
    assert poison(failure=other(FailureKind.OUT_OF_MEMORY)) == "leave"
    assert poison(num_suspected=3) == "leave", "it ends some day"


def test_an_error_that_an_older_checkpoint_shows_too_clears_the_suspect() -> None:
    """G2: a good checkpoint must not be passed over for an error in the code."""
    assert poison(suspicion=SUSPICION, checkpoint="c4") == "release"
    assert poison(suspicion=SUSPICION, checkpoint="c9", has_progressed=True) == "release", "the same, further on"
    assert poison(suspicion=SUSPICION, failure=user(9), checkpoint="c4") == "release", "another one, at once"
    assert poison(repeats=1, suspicion=SUSPICION, checkpoint="c4") == "leave", "the older one has had one failure only"


def test_training_that_goes_on_without_the_suspect_convicts_it() -> None:
    assert poison(suspicion=SUSPICION, failure=user(9), checkpoint="c9", has_progressed=True) == "convict"
    assert poison(suspicion=SUSPICION, failure=other(FailureKind.NETWORK), has_progressed=True) == "convict"


def test_a_repeated_error_says_how_often() -> None:
    verdict = decide_fit_failure(seen((user(), 0), (user(), 0)), config=CONFIG)
    assert verdict.failure is not None
    assert verdict.failure.repeats == 2
    mixed = decide_fit_failure(seen((user(1), 0), (user(2), 0), (user(3), 0)), config=CONFIG)
    assert mixed.failure is not None
    assert mixed.failure.repeats == 1


def test_a_guessed_metric_warns_and_never_refuses_a_training() -> None:
    """G8: `step` may begin anew in each epoch; only a declared metric fails a run."""
    guessed = prove_restore({"step": 900}, {"step": 10}, declared=None)
    assert (guessed.proven, guessed.outcome) == ("no", "unknown")
    declared = prove_restore({"step": 900}, {"step": 10}, declared="step")
    assert (declared.proven, declared.outcome) == ("no", "no")
