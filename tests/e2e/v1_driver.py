"""One attempt on V1 from the command line, as the driver runs it: resolve after the claim, fit, say what came out."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import ray

from airflow_provider.core.job import JobSpec
from airflow_provider.runtime.exceptions import classify_exception
from airflow_provider.runtime.restoring import read_attempts, resolve
from airflow_provider.runtime.storage import open_store
from airflow_provider.runtime.train_v1 import run_v1


def main(spec_path: str, answer_path: str) -> None:
    """Run the attempt that `spec_path` describes; the answer is JSON."""
    job = JobSpec.model_validate_json(Path(spec_path).read_text())
    store = open_store(job.experiment_uri, job.storage)
    resolved = resolve(
        store, job.ref, policy=job.restore, attempts=read_attempts(store, job.ref, say=print), say=print
    )
    passed_on = {key: os.environ[key] for key in ("PYTHONPATH", "V1_GATE", "RAY_TRAIN_V2_ENABLED")}
    ray.init(runtime_env={"env_vars": passed_on})
    try:
        result = run_v1(
            job, store=store, point=resolved.point, start=resolved.manifest, events_path=answer_path + ".events"
        )
    except Exception as error:
        answer = {"failure": json.loads(classify_exception(error).model_dump_json())}
    else:
        answer = {"mode": result.plan.mode.value, "reason": result.plan.reason, "metrics": result.metrics}
    Path(answer_path).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
