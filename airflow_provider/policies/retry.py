"""Airflow's retries by failure kind: GPU time isn't burnt on errors that come back."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.failure import FailureKind

if TYPE_CHECKING:
    from airflow.sdk import Context

THROTTLED_DELAY = timedelta(minutes=5)
"""The bucket asked to slow down: coming back at once would be refused again."""


class RayTrainRetryPolicy(RetryPolicy):
    """Fail at once on kinds that trying again can't cure; retry (and so restore) on the others.

    `inner` decides about exceptions that are not ours. Known limitation: Airflow does not ask a retry policy when the
    worker process dies or the heartbeat times out; those retries always happen, and find the job by its records.
    """

    def __init__(self, inner: RetryPolicy | None = None) -> None:
        self.inner = inner

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide by the failure the exception carries."""
        if not isinstance(exception, RayTrainError):
            if self.inner is not None:
                return self.inner.evaluate(exception, try_number, max_tries, context)
            if _is_passed_deadline(exception, context):
                reason = "timeout: execution_timeout passed in the worker, and it is the deadline of the whole wait"
                return RetryDecision.fail(reason=reason)
            return RetryDecision.default()
        failure = exception.failure
        reason = f"{failure.kind.value}: {failure.reason}"[:500]
        if not failure.is_retryable:
            return RetryDecision.fail(reason=reason)
        delay = THROTTLED_DELAY if failure.kind is FailureKind.THROTTLING else None
        return RetryDecision.retry(delay=delay, reason=reason)


def _is_passed_deadline(exception: BaseException, context: Context | None) -> bool:
    """Whether Airflow's alarm ended a worker's wait. A deferred wait ends by our own deadline, without a retry: so must this.

    Not where `timeout_s` sets another deadline, nor while a deferrable task only submits or collects, nor for a rescheduled
    sensor, whose processes last for one look each: that is infrastructure.
    """
    task = context.get("task") if context is not None else None
    return isinstance(exception, AirflowTaskTimeout) and is_deadline_of_wait(task)


def is_deadline_of_wait(task: object) -> bool:
    """Whether `execution_timeout` is the deadline of the whole wait, and Airflow's alarm keeps it."""
    is_waiting = getattr(task, "deferrable", True) is False and getattr(task, "timeout_s", None) is None
    return is_waiting and not getattr(task, "is_rescheduled", False)
