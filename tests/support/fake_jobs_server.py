"""The fake Jobs API: users get the same one, so it lies in the package."""

from airflow_provider.testing.jobs_api import FakeJobsServer

__all__ = ["FakeJobsServer"]
