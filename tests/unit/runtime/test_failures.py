"""What ended a fit, seen through Ray's wrappers."""

from __future__ import annotations

from ray.exceptions import ActorDiedError
from ray.train.v2.api.exceptions import ControllerError

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.runtime.failures import ended_by_rule, failure_of
from airflow_provider.runtime.reporting import FitEnded

_ADVICE = (
    "The actor died unexpectedly before finishing this task. Worker exit type: SYSTEM_ERROR. Some common causes include: "
    "(1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force was called. "
    "consider enabling resource isolation to prevent significant loss of progress by uninformed kernel OOM killing."
)


class _Died(ActorDiedError):  # type: ignore[misc]
    def __init__(self) -> None:
        Exception.__init__(self, _ADVICE)


def test_advice_about_memory_under_a_dead_controller_is_no_finding() -> None:
    """Seen on Ray 2.60: SIGKILL of the controller read as out of memory, and the driver did not fit again."""
    assert failure_of(_Died()).kind is FailureKind.INFRASTRUCTURE


def test_our_rules_verdict_is_seen_through_the_controller_error() -> None:
    ended = Failure(kind=FailureKind.USER, reason="the same error 2 times", exception_type="ValueError")
    error = ControllerError(FitEnded("The fit was ended", failure=ended))
    assert ended_by_rule(error) == ended
    assert failure_of(error) == ended
    assert ended_by_rule(ControllerError(ValueError("x"))) is None
