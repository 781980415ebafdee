"""GPU time isn't burnt on errors that come back; everything else is tried again, which restores."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta
from typing import cast

import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider.core.errors import ClusterUnreachable, InvalidConfig, RayJobFailed, StoreThrottled, Superseded
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.policies.retry import THROTTLED_DELAY, RayTrainRetryPolicy
from airflow_provider.sensors.ray_train import RayTrainSensor

FINAL = {"user", "config", "permission", "auth", "superseded", "stopped", "timeout", "checkpoint"}


def job_failed(kind: FailureKind) -> RayJobFailed:
    return RayJobFailed("It failed", failure=Failure(kind=kind, reason="node 3 died at step 1200"))


@pytest.mark.parametrize("kind", list(FailureKind), ids=lambda kind: kind.value)
def test_the_kind_decides(kind: FailureKind) -> None:
    decision = RayTrainRetryPolicy().evaluate(job_failed(kind), 1, 3)
    assert decision.action is (RetryAction.FAIL if kind.value in FINAL else RetryAction.RETRY)
    assert decision.reason == f"{kind.value}: node 3 died at step 1200"
    assert decision.retry_delay == (THROTTLED_DELAY if kind is FailureKind.THROTTLING else None)


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (InvalidConfig("wrong"), RetryAction.FAIL),
        (Superseded("replaced"), RetryAction.FAIL),
        (ClusterUnreachable("away"), RetryAction.RETRY),
        (StoreThrottled("slow down"), RetryAction.RETRY),
    ],
)
def test_typed_errors_carry_their_kind(error: Exception, action: RetryAction) -> None:
    assert RayTrainRetryPolicy().evaluate(error, 1, 3).action is action


def test_an_error_that_went_through_a_process_border_is_judged_alike() -> None:
    error = pickle.loads(pickle.dumps(job_failed(FailureKind.USER)))  # noqa: S301 - its own
    assert RayTrainRetryPolicy().evaluate(error, 1, 3).action is RetryAction.FAIL


def test_a_reason_is_bounded() -> None:
    error = RayJobFailed("x", failure=Failure(kind=FailureKind.USER, reason="y" * 5000))
    assert len(RayTrainRetryPolicy().evaluate(error, 1, 3).reason or "") == 500


@pytest.mark.parametrize("error", [ValueError("x"), AirflowTaskTimeout(), KeyboardInterrupt()])
def test_foreign_exceptions_are_airflows_business(error: BaseException) -> None:
    assert RayTrainRetryPolicy().evaluate(error, 1, 3).action is RetryAction.DEFAULT


@pytest.mark.parametrize(
    ("deferrable", "timeout_s", "action"),
    [(False, None, RetryAction.FAIL), (False, 7200.0, RetryAction.DEFAULT), (True, None, RetryAction.DEFAULT)],
    ids=["waiting in a worker", "a deadline of its own", "submitting or collecting"],
)
def test_a_time_out_of_a_wait_in_a_worker_is_the_deadline_and_final(
    deferrable: bool, timeout_s: float | None, action: RetryAction
) -> None:
    """A deferred wait ends by our own deadline and is not retried: the mode must make no difference."""
    task = RayTrainOperator(
        task_id="t",
        storage_path="/m",
        train_loop="a:b",
        deferrable=deferrable,
        timeout_s=timeout_s,
        execution_timeout=timedelta(hours=1),
    )
    decision = RayTrainRetryPolicy().evaluate(AirflowTaskTimeout(), 1, 3, cast("Context", {"task": task}))
    assert decision.action is action


@pytest.mark.parametrize(
    ("mode", "action"), [("poke", RetryAction.FAIL), ("reschedule", RetryAction.DEFAULT)], ids=["poke", "reschedule"]
)
def test_a_time_out_of_one_look_of_a_sensor_is_not_the_end_of_its_wait(mode: str, action: RetryAction) -> None:
    """A rescheduled sensor is a process for each look, and one that hangs in the store says nothing of the wait."""
    task = RayTrainSensor(
        task_id="t", experiment="/m/x", deferrable=False, mode=mode, execution_timeout=timedelta(minutes=1)
    )
    decision = RayTrainRetryPolicy().evaluate(AirflowTaskTimeout(), 1, 3, cast("Context", {"task": task}))
    assert decision.action is action


def test_a_policy_of_the_users_own_judges_a_time_out() -> None:
    inner = ExceptionRetryPolicy([RetryRule(exception=AirflowTaskTimeout, action=RetryAction.RETRY)])
    task = RayTrainOperator(task_id="t", storage_path="/m", train_loop="a:b", deferrable=False)
    decision = RayTrainRetryPolicy(inner).evaluate(AirflowTaskTimeout(), 1, 3, cast("Context", {"task": task}))
    assert decision.action is RetryAction.RETRY


def test_an_authors_policy_decides_about_foreign_exceptions_only() -> None:
    inner = ExceptionRetryPolicy(
        [
            RetryRule(exception=ValueError, action=RetryAction.RETRY, retry_delay=timedelta(seconds=2)),
            RetryRule(exception=RayJobFailed, action=RetryAction.RETRY),
        ]
    )
    policy = RayTrainRetryPolicy(inner)
    assert policy.evaluate(ValueError("x"), 1, 3).retry_delay == timedelta(seconds=2)
    assert policy.evaluate(job_failed(FailureKind.USER), 1, 3).action is RetryAction.FAIL


def test_a_dag_with_the_operator_survives_airflows_serialization() -> None:
    """Airflow stores that there is a policy, never the policy: it is asked in the worker."""
    with DAG("d", schedule=None) as dag:
        RayTrainOperator(
            task_id="train",
            storage_path="s3://models/{{ ds }}",
            train_loop="pkg.mod:loop",
            scaling_config={"num_workers": (1, 4)},
            retry_policy=RayTrainRetryPolicy(ExceptionRetryPolicy([])),
        )
        RayTrainOperator.partial(task_id="sweep", storage_path="s3://models/x", train_loop="pkg.mod:loop").expand(
            train_loop_config=[{"lr": 0.1}, {"lr": 0.2}]
        )
    stored = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    again = DagSerialization.from_dict(stored)
    train, sweep = again.task_dict["train"], again.task_dict["sweep"]
    assert (train.task_type, train.has_retry_policy, train.retries) == ("RayTrainOperator", True, 3)
    assert (sweep.task_type, sweep.has_retry_policy, sweep.retries) == ("RayTrainOperator", True, 3)
    assert set(train.operator_extra_link_dict) == {"Ray job", "Experiment", "Lineage"}
