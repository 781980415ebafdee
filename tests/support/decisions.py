"""What Airflow does with an error of ours: the provider's retry policy, asked as Airflow asks it."""

from __future__ import annotations

from airflow.sdk.definitions.retry_policy import RetryAction, RetryDecision

from airflow_provider.policies.retry import RayTrainRetryPolicy


def decided(error: BaseException) -> RetryDecision:
    """The decision after the first of several tries."""
    return RayTrainRetryPolicy().evaluate(error, 1, 3)


def is_retried(error: BaseException) -> bool:
    """Whether Airflow tries again."""
    decision = decided(error)
    assert decision.action in (RetryAction.RETRY, RetryAction.FAIL), "the policy must not leave it to Airflow's default"
    return decision.action is RetryAction.RETRY
