"""What the fake Jobs API is made of: users get the same one, so it lies in the package."""

from airflow_provider.testing.jobs_api_parts import FakeJob, Fault, Recorded, TailSession, cut

__all__ = ["FakeJob", "Fault", "Recorded", "TailSession", "cut"]
