"""Airflow's retries by failure kind: GPU time isn't burnt on errors that come back."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

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
            return RetryDecision.default()
        failure = exception.failure
        reason = f"{failure.kind.value}: {failure.reason}"[:500]
        if not failure.is_retryable:
            return RetryDecision.fail(reason=reason)
        delay = THROTTLED_DELAY if failure.kind is FailureKind.THROTTLING else None
        return RetryDecision.retry(delay=delay, reason=reason)
