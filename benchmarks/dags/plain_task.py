"""The peer of the recovery and goodput benchmarks: Ray's own client in a Python task, retried by Airflow, as people write it."""

from __future__ import annotations

import json
import os
import shlex
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseHook, Param, task

TRAINING = Path(__file__).resolve().parent / "training"

with DAG(
    "plain_task",
    schedule=None,
    catchup=False,
    params={
        "marks": Param("", type="string"),
        "steps": Param(10, type="integer"),
        "every": Param(1, type="integer"),
        "step_s": Param(0.5, type="number"),
        "num_workers": Param(2, type="integer"),
        "max_failures": Param(0, type="integer"),
    },
):
    # As often as ours in these benchmarks, for what is polled and what is waited for before a retry.
    @task(retries=20, retry_delay=timedelta(seconds=1))
    def train(*, params: dict[str, Any]) -> None:
        """Submit the script and wait for its job; a retry submits another job, which begins from scratch."""
        connection = BaseHook.get_connection("ray_default")
        os.environ["RAY_AUTH_TOKEN"] = connection.password or ""  # read when ray is imported
        from ray.job_submission import JobStatus, JobSubmissionClient

        client = JobSubmissionClient(connection.host)
        run = {
            "storage_path": "s3://models/plain",
            "num_workers": params["num_workers"],
            "max_failures": params["max_failures"],
        }
        loop = {name: params[name] for name in ("marks", "steps", "every", "step_s")}
        job = client.submit_job(
            entrypoint=f"python plain.py {shlex.quote(json.dumps({'run': run, 'loop': loop}))}",
            runtime_env={"working_dir": str(TRAINING), "env_vars": {"RAY_TRAIN_V2_ENABLED": "1"}},
        )
        while not (status := client.get_job_status(job)).is_terminal():
            time.sleep(1)
        if status is not JobStatus.SUCCEEDED:
            raise RuntimeError(f"{job} is {status}")

    train()
