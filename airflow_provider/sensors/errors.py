"""How a wait ends without success: our typed errors, which are also the exceptions that Airflow knows of sensors.

None of these is retried: the next try would read the same. `soft_fail` makes each of them a skip.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout

from airflow_provider.core.errors import RayJobFailed, RayTrainError
from airflow_provider.core.failure import FailureKind


class TrainingFailed(RayJobFailed, AirflowFailException):
    """The training that was waited for failed for good; `failure` carries its kind and reason."""


class ExperimentMissing(RayTrainError, AirflowFailException):
    """There is no experiment at the path, and `missing="fail"`."""

    kind = FailureKind.CONFIG


class ConditionNotMet(RayTrainError, AirflowFailException):
    """The training ended with success, and what was waited for never came."""

    kind = FailureKind.USER


class MetricMissing(ConditionNotMet):
    """A metric of the condition was in none of the checkpoints."""


class WaitTimedOut(RayTrainError, AirflowSensorTimeout):
    """The sensor's `timeout` passed; the training may still go on."""

    kind = FailureKind.TIMEOUT


class ExperimentNeverCame(WaitTimedOut):
    """The sensor's `timeout` passed, and there was no experiment at the path all the time."""


ENDS = (TrainingFailed, ExperimentMissing, ConditionNotMet, WaitTimedOut)
"""Ends of the wait itself, as against a store that refuses or can't be read."""
