"""Errors that only the command line has."""

from __future__ import annotations

from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.failure import FailureKind


class NotFound(RayTrainError):
    """What the command line names is not there."""

    kind = FailureKind.CONFIG


class AirflowUnreadable(RayTrainError):
    """Airflow's database could not be read from this process."""

    kind = FailureKind.NETWORK
