"""What the tests of `gc` read of its answer, and jobs of ours for it to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider.testing.jobs_api import FakeJobsServer
from tests.support.training_try import KEY, job_id


def items(said: Any, verdict: str) -> dict[str, str]:
    """Names (their last part) and reasons."""
    found = [i for i in said.json["items"] if i["verdict"] == verdict]
    return {i["name"].rpartition("/")[2]: i["why"] for i in found}


def send(server: FakeJobsServer, path: Path, attempt: int, /, *, status: str = "RUNNING", **changes: str) -> str:
    """A job of ours on the cluster."""
    metadata = {
        "airflow_dag_id": KEY.dag_id,
        "airflow_run_id": KEY.run_id,
        "airflow_task_id": KEY.task_id,
        "airflow_map_index": "-1",
        "experiment": str(path),
        "attempt": f"g1/a{attempt}",
        **changes,
    }
    server.add_job(job_id(1, attempt), status=status, metadata=metadata)
    return job_id(1, attempt)
