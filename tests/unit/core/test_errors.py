"""Errors cross processes (trigger, worker, driver) and must arrive with their facts."""

from __future__ import annotations

import copy
import pickle

import pytest

from airflow_provider.core import errors
from airflow_provider.core.errors import ClusterUnreachable, InvalidConfig, RayJobFailed, RayTrainError, StoreThrottled
from airflow_provider.core.failure import Failure, FailureKind

FAILURE = Failure(kind=FailureKind.PREEMPTION, reason="preempted 2/5", exception_type="X", detail="trace")
CLASSES = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, RayTrainError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_pickling_and_copying_keep_class_message_and_facts(cls: type[RayTrainError]) -> None:
    facts = {"failure": FAILURE} if cls is RayJobFailed else {}
    error = cls("It broke", known="3 of 5", change="fix it", submission_id="af-1", **facts)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):  # noqa: S301
        assert type(again) is cls
        assert str(again) == str(error) == "It broke. Known: 3 of 5. To do: fix it."
        assert (again.what, again.known, again.change) == ("It broke", "3 of 5", "fix it")
        assert again.submission_id == "af-1"
        assert again.facts == error.facts
        assert again.failure == error.failure


def test_only_what_is_known_is_said() -> None:
    assert str(InvalidConfig("It broke")) == "It broke."
    assert str(InvalidConfig("It broke.", change="fix it.")) == "It broke. To do: fix it."


def test_a_fact_is_an_attribute_and_anything_else_is_not() -> None:
    error = InvalidConfig("x", key="owners/000001.json")
    assert error.key == "owners/000001.json"
    assert not hasattr(error, "other")
    assert not hasattr(InvalidConfig.__new__(InvalidConfig), "key")


def test_an_error_is_a_classified_failure() -> None:
    failure = StoreThrottled("Slow down").failure
    assert failure == Failure(kind=FailureKind.THROTTLING, reason="Slow down.", exception_type="StoreThrottled")
    assert failure.is_retryable


def test_a_failed_job_carries_its_own_failure() -> None:
    assert RayJobFailed("The training failed", failure=FAILURE).failure is FAILURE


def test_a_timeout_after_a_post_is_unreachable_and_never_not_found() -> None:
    assert issubclass(errors.SubmitUnknown, ClusterUnreachable)
    assert issubclass(errors.ClusterTimeout, ClusterUnreachable)
    assert errors.SubmitUnknown("x").failure.is_retryable
