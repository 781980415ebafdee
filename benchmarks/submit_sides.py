"""The sides of the submit benchmark, each run in a fresh interpreter as a task's process is one.

This file's text is sent to the interpreter of each peer: it may import nothing of ours outside the functions that need it.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

Given = dict[str, Any]
"""`address` and `token` of the cluster, `body` of a job to post, and what single sides need."""


def ours(given: Given) -> dict[str, float]:
    """`execute` of the operator's second try, up to its deferral. The DAG was parsed, so the operator is imported."""
    from airflow_provider.operators.ray_train import RayTrainOperator
    from tests.support.fake_airflow import FakeTask

    task = FakeTask()
    task.ti.try_number, task.ti.run_id = given["try_number"], given["run_id"]
    operator = RayTrainOperator(
        task_id="train",
        storage_path=given["storage_path"],
        experiment_name=given["experiment_name"],
        working_dir=given["working_dir"],
        train_loop="stepping:train_loop",
        train_loop_config={"marks": "/dev/null", "steps": 10_000, "every": 1, "step_s": 1.0},
    )
    num_calls = _count_store_calls() if given["is_counted"] else None
    begin = time.time()
    trigger = _deferred(operator, task.context)
    found = _timed(given, begin, trigger.submission_id)
    return found if num_calls is None else found | {"store_calls": num_calls()}


def raw(given: Given) -> dict[str, float]:
    """One POST, and nothing else: what Ray itself takes."""
    body = given["body"] | {"submission_id": f"raw-{uuid.uuid4().hex[:12]}"}
    begin = time.time()
    _asked(given, "POST", "/api/jobs/", json.dumps(body).encode())
    return _timed(given, begin, body["submission_id"])


def plain(given: Given) -> dict[str, float]:
    """Ray's own client, which asks for the version first."""
    from ray.job_submission import JobSubmissionClient

    begin = time.time()
    client = JobSubmissionClient(given["address"])
    submission_id = client.submit_job(entrypoint=given["body"]["entrypoint"], runtime_env=given["body"]["runtime_env"])
    return _timed(given, begin, submission_id)


def astro(given: Given) -> dict[str, float]:
    """`execute` of SubmitRayJob, up to its deferral."""
    from ray_provider.operators import SubmitRayJob  # type: ignore[import-not-found]  # in the peer's environment only

    os.environ["AIRFLOW_CONN_RAY_BENCH"] = json.dumps({"conn_type": "ray", "extra": {"address": given["address"]}})
    operator = SubmitRayJob(
        task_id="train",
        conn_id="ray_bench",
        entrypoint=given["body"]["entrypoint"],
        runtime_env=given["body"]["runtime_env"],
    )
    begin = time.time()
    trigger = _deferred(operator, {})
    return _timed(given, begin, trigger.job_id)


def google(given: Given) -> dict[str, float]:
    """`execute` of RaySubmitJobOperator, which doesn't wait unless it is told to."""
    from airflow.providers.google.cloud.operators.ray import (  # type: ignore[import-not-found]  # as above
        RaySubmitJobOperator,
    )

    class Instance:
        """Takes the link's XCom."""

        def xcom_push(self, *_: object, **__: object) -> None:
            """Keep nothing."""

    os.environ["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"] = "google-cloud-platform://"
    operator = RaySubmitJobOperator(  # noqa: AIR001 a side, as the other ones
        task_id="train",
        cluster_address=given["address"],
        entrypoint=given["body"]["entrypoint"],
        runtime_env=given["body"]["runtime_env"],
    )
    instance = Instance()
    begin = time.time()
    submission_id = operator.execute({"ti": instance, "task_instance": instance, "task": operator})
    return _timed(given, begin, submission_id)


def _deferred(operator: Any, context: Any) -> Any:
    """The trigger that the operator defers to."""
    from airflow.sdk.exceptions import TaskDeferred

    try:
        operator.execute(context)
    except TaskDeferred as deferred:
        return deferred.trigger
    raise RuntimeError("the task did not defer")


def _timed(given: Given, begin: float, submission_id: str) -> dict[str, float]:
    """From `begin` to Ray's own time of the POST, and to RUNNING."""
    while True:
        job = json.loads(_asked(given, "GET", f"/api/jobs/{submission_id}"))
        now = time.time()
        if job["status"] in {"FAILED", "STOPPED"}:
            raise RuntimeError(f"{submission_id} is {job['status']}: {job.get('message')}")
        if job["status"] != "PENDING":
            posted = job["start_time"] / 1000
            return {"own_s": posted - begin, "ray_s": now - posted, "running_s": now - begin}
        if now - begin > 120:
            raise TimeoutError(f"{submission_id} is still PENDING after 120 s")
        time.sleep(0.02)


def _asked(given: Given, method: str, path: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(given["address"] + path, data=body, method=method)  # noqa: S310 loopback
    request.add_header("Authorization", f"Bearer {given['token']}")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 loopback
        return bytes(answer.read())


def _count_store_calls() -> Callable[[], int]:
    """Count what boto3 sends. Importing it here costs what `execute` would pay: a counted run is not timed."""
    from botocore.httpsession import URLLib3Session

    sent: list[str] = []
    send = URLLib3Session.send

    def counted(self: Any, request: Any) -> Any:
        sent.append(request.url)
        return send(self, request)

    URLLib3Session.send = counted  # type: ignore[method-assign]  # counted from outside, as nothing in ours could
    return lambda: len(sent)
