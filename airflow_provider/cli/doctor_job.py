"""Doctor's small job: Ray's seams, versions and the bucket, seen by the cluster itself."""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from airflow_provider.cli.findings import Finding, ok, problem, warning
from airflow_provider.client.values import JobRequest
from airflow_provider.core.classify import classify_job
from airflow_provider.core.redaction import redact
from airflow_provider.core.self_check import MARK, REQUEST_FILE, SelfCheckReport, SelfCheckRequest
from airflow_provider.core.spec import StorageConfig
from airflow_provider.hooks.job_package import PACKAGE, runtime_files

if TYPE_CHECKING:
    from airflow_provider.client.jobs_client import SyncJobsClient
    from airflow_provider.client.values import JobInfo, Package

_POLL_S = 1.0
_METADATA = {"sent_by": "airflow ray-train doctor"}


@dataclass(frozen=True)
class CheckRequest:
    """What the job is sent with."""

    storage_path: str | None
    storage: StorageConfig = field(default_factory=StorageConfig)
    is_read_only: bool = False
    runtime_env: dict[str, Any] = field(default_factory=dict)
    python: str = "python"
    timeout_s: float = 180.0

    def package(self) -> Package:
        """Our runtime with the request inside."""
        from airflow_provider.client.packages import package_files

        asked = SelfCheckRequest(
            storage_path=self.storage_path, storage=self.storage, is_read_only=self.is_read_only
        ).model_dump_json()
        return package_files({**runtime_files(), f"{PACKAGE}/{REQUEST_FILE}": asked.encode()})

    def job(self, package: Package) -> JobRequest:
        """The job, under an id of its own."""
        env = dict(self.runtime_env)
        # Ray remembers a runtime environment that failed for 10 minutes: each check has one of its own.
        name = f"ray-train-doctor-{uuid.uuid4().hex[:12]}"
        env["env_vars"] = {**(env.get("env_vars") or {}), "RAY_TRAIN_V2_ENABLED": "1", "RAY_TRAIN_DOCTOR": name}
        env["py_modules"] = [package.uri]
        return JobRequest(
            submission_id=name,
            entrypoint=f"{shlex.quote(self.python)} -m {PACKAGE}.runtime.self_check",
            metadata=_METADATA,
            runtime_env=env,
        )


def check_by_job(
    client: SyncJobsClient, request: CheckRequest, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Finding]:
    """Send the job, wait for its end, read its report. Raises the cluster's errors."""
    package = request.package()
    job = request.job(package)
    client.submit_or_find(job, packages=[package])
    ended = _wait(client, job.submission_id, timeout_s=request.timeout_s, sleep=sleep)
    if ended is None or not ended.status.is_terminal:
        client.stop(job.submission_id)
        said = " ".join(redact(ended.message or "").split())[:300] if ended else "the cluster no longer knows it"
        yield problem(
            "check-job",
            f"the check {job.submission_id} did not end within {request.timeout_s:.0f} s; it was stopped",
            known=said,
            change="look whether the head has a place for a driver, or give it more time (--timeout)",
        )
        return
    part = client.logs(job.submission_id)
    report = read_report(part.text if part is not None else "")
    if report is None:
        yield _failed(ended)
        return
    yield ok("check-job", f"the check {job.submission_id} ran on the cluster: its runtime environment can be built")
    yield from findings(report)


def _wait(client: SyncJobsClient, job_id: str, *, timeout_s: float, sleep: Callable[[float], None]) -> JobInfo | None:
    seen, waited = client.get_job(job_id), 0.0
    while seen is not None and not seen.status.is_terminal and waited < timeout_s:
        sleep(_POLL_S)
        waited += _POLL_S
        seen = client.get_job(job_id)
    return seen


def _failed(job: JobInfo) -> Finding:
    failure = classify_job(
        status=job.status.value, error_type=job.error_type, exit_code=job.driver_exit_code, message=job.message or ""
    )
    return problem(
        "check-job",
        f"the check {job.submission_id} ended {job.status.value} without a report",
        known=f"{failure.kind.value}: {failure.reason}",
        change="correct the runtime environment or --python; the job's page on Ray's dashboard has the whole log",
    )


def read_report(log: str) -> SelfCheckReport | None:
    """The report in a job's log, or None."""
    for line in reversed(log.splitlines()):
        _, found, text = line.partition(MARK)
        if found:
            try:
                return SelfCheckReport.model_validate_json(text)
            except ValidationError:
                return None
    return None


def findings(report: SelfCheckReport) -> Iterator[Finding]:
    """The report, finding by finding."""
    yield _versions(report)
    if report.versions.get("ray") is not None:
        yield _seams(report)
    for step in report.bucket:
        what = f"the cluster's identity: {step.action}"
        if step.error is None:
            yield ok("cluster-bucket", what)
        else:
            change = step.change or "allow it for the nodes' role; the keys of Airflow's connection don't travel"
            yield problem("cluster-bucket", f"{what} failed", known=redact(step.error), change=change)


def _versions(report: SelfCheckReport) -> Finding:
    shown = ", ".join(f"{name} {text or 'missing'}" for name, text in report.versions.items())
    missing = [name for name in ("ray", "pyarrow", "pydantic") if report.versions.get(name) is None]
    if missing:
        what = f"the job's interpreter lacks {', '.join(missing)}"
        return problem("cluster-versions", what, known=shown, change="add it to the image or the runtime environment")
    if report.versions.get("torch") is None:
        change = "add it, unless the trainings bring it in their own runtime_env"
        return warning("cluster-versions", "the job's interpreter lacks torch", known=shown, change=change)
    return ok("cluster-versions", f"on the cluster: {shown}")


def _seams(report: SelfCheckReport) -> Finding:
    if report.missing_seams:
        return problem(
            "ray-seams",
            f"Ray lacks {len(report.missing_seams)} of the internals that fencing hangs on",
            known="; ".join(report.missing_seams),
            change="use a tested release of Ray: attempts would train unfenced, and say so",
        )
    return ok("ray-seams", "all of Ray's internals that fencing hangs on are in place")
