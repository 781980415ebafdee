"""Links to the Ray dashboard's job page and to the experiment's folder.

Airflow stores a link when a try ends or defers by asking `get_link`; so each link reads the XCom that the operator
pushed right after it submitted or attached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

JOB_URL_KEY = "ray_job_url"
EXPERIMENT_URL_KEY = "experiment_url"


def job_url(address: str, submission_id: str) -> str:
    """The dashboard's page of one job."""
    return f"{address}/#/jobs/{quote(submission_id, safe='')}"


def experiment_url(uri: str, *, endpoint_url: str | None = None) -> str:
    """The bucket's page in AWS's console; with an endpoint of one's own, the folder's address there.

    A local path stays as it is. Airflow's UI shows only http(s) links, so `s3://` would stay hidden.
    """
    if not uri.startswith("s3://"):
        return uri
    bucket, _, prefix = uri[5:].partition("/")
    if endpoint_url:
        return f"{endpoint_url.rstrip('/')}/{quote(bucket)}/{quote(prefix)}/"
    return f"https://s3.console.aws.amazon.com/s3/buckets/{quote(bucket)}?prefix={quote(prefix)}/"


class _XComLink(BaseOperatorLink):
    """A link whose address was pushed to XCom."""

    key = ""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """Address pushed by the newest try, or nothing before the first submit."""
        from airflow.sdk.execution_time.xcom import XCom

        return XCom.get_value(key=self.key, ti_key=ti_key) or ""


class RayJobLink(_XComLink):
    """The job on the Ray dashboard."""

    name = "Ray job"
    key = JOB_URL_KEY


class ExperimentLink(_XComLink):
    """The experiment's folder, with checkpoints and records."""

    name = "Experiment"
    key = EXPERIMENT_URL_KEY
