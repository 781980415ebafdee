"""What the commands' exit codes mean. Scripts depend on them: a number never changes its meaning."""

from __future__ import annotations

from airflow_provider.cli.errors import AirflowUnreadable, NotFound
from airflow_provider.core.errors import (
    BucketNotFound,
    ClusterAuthFailed,
    ClusterRefused,
    ClusterUnreachable,
    InvalidConfig,
    NotARayDashboard,
    RayTrainError,
    StoreCredentialsExpired,
    StorePermissionDenied,
    StoreUnreachable,
)

OK = 0
"""Done; nothing to worry about."""
PROBLEM = 1
"""It ran and found a problem, or could not do all it was asked to."""
USAGE = 2
"""The command line or a connection's fields are wrong (argparse's own code, too)."""
NOT_FOUND = 3
"""The experiment, checkpoint, connection or bucket is not there."""
UNREACHABLE = 4
"""Dashboard, object store or Airflow's database gave no usable answer, or refused our identity."""

_BY_ERROR: tuple[tuple[tuple[type[RayTrainError], ...], int], ...] = (
    ((NotFound, BucketNotFound), NOT_FOUND),
    ((ClusterUnreachable, ClusterAuthFailed, ClusterRefused, NotARayDashboard), UNREACHABLE),
    ((StoreUnreachable, StorePermissionDenied, StoreCredentialsExpired, AirflowUnreadable), UNREACHABLE),
    ((InvalidConfig,), USAGE),
)


def exit_code(error: RayTrainError) -> int:
    """The exit code of a command that an error ended."""
    return next((code for kinds, code in _BY_ERROR if isinstance(error, kinds)), PROBLEM)
