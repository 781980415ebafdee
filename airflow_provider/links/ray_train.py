"""Links to the Ray dashboard's job page, to the experiment's folder and to the lineage page.

Airflow stores a link when a try ends or defers by asking `get_link`; so the first two read the XCom that the operator
pushed right after it submitted or attached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.strict_json import storable

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey as AirflowsTaskInstanceKey

JOB_URL_KEY = "ray_job_url"
EXPERIMENT_URL_KEY = "experiment_url"
LINEAGE_TAB = "ray-train-lineage"
"""The route under which Airflow's UI shows the lineage page as a tab of a task instance."""


def job_url(address: str, submission_id: str) -> str:
    """The dashboard's page of one job."""
    return f"{address}/#/jobs/{quote(storable(submission_id), safe='')}"


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


def task_instance_path(key: TaskInstanceKey) -> str:
    """The task instance's page, relative to the root of Airflow's UI."""
    mapped = f"/mapped/{key.map_index}" if key.map_index >= 0 else ""
    dag_id, run_id, task_id = (quote(storable(part), safe="") for part in (key.dag_id, key.run_id, key.task_id))
    return f"dags/{dag_id}/runs/{run_id}/tasks/{task_id}{mapped}"


class _XComLink(BaseOperatorLink):
    """A link whose address was pushed to XCom."""

    key = ""

    def get_link(self, operator: BaseOperator, *, ti_key: AirflowsTaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
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


class LineageLink(BaseOperatorLink):
    """The lineage page, as a tab of the task instance in Airflow's UI."""

    name = "Lineage"

    def get_link(self, operator: BaseOperator, *, ti_key: AirflowsTaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """Below `[api] base_url`; without one it is relative, which the UI resolves against the address that it is served under."""
        from airflow.sdk.configuration import conf

        root = conf.get("api", "base_url", fallback="").rstrip("/")
        key = TaskInstanceKey(ti_key.dag_id, ti_key.run_id, ti_key.task_id, ti_key.map_index)
        path = f"{task_instance_path(key)}/plugin/{LINEAGE_TAB}"
        return f"{root}/{path}" if root else path
