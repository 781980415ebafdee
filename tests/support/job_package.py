"""A job as the operator would submit it: packages, records of owner and claim, the Jobs API. For tests of the runtime alone."""

from __future__ import annotations

import hashlib
import io
import json
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_provider.core import layout
from airflow_provider.core.job import ATTEMPT_ENV, JOB_SPEC_FILE
from airflow_provider.core.job_spec import JobSpec, Timings, TrainingSpec
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import ClaimRecord, OwnerRecord, Record, StopRecord
from airflow_provider.core.restore_policy import RestorePolicy

if TYPE_CHECKING:
    from tests.stack.ray_cluster import RayCluster
    from tests.stack.s3 import S3Server

_PACKAGE = Path(__file__).parents[2] / "airflow_provider"
TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")


def provider_zip(spec: JobSpec, *, changed: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
    """core/ and runtime/ with the job's document; `changed` are files of the package as a test wants them."""
    files = {f"airflow_provider/{JOB_SPEC_FILE}": spec.body()}
    for path in [_PACKAGE / "__init__.py", *_PACKAGE.glob("core/*.py"), *_PACKAGE.glob("runtime/*.py")]:
        files[f"airflow_provider/{path.relative_to(_PACKAGE)}"] = path.read_bytes()
    return zipped({**files, **changed})


def zipped(files: dict[str, bytes]) -> bytes:
    """A zip with fixed times, so that the same content has the same name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), files[name])
    return buffer.getvalue()


def now() -> datetime:
    """The test's clock."""
    return datetime.now(timezone.utc)


@dataclass
class Experiment:
    """One experiment on a real bucket and a real cluster, driven as an operator would."""

    s3: S3Server
    ray: RayCluster
    prefix: str
    files: dict[str, bytes]
    """The working directory."""
    env: dict[str, str] = field(default_factory=dict)
    package: dict[str, bytes] = field(default_factory=dict)
    """Files of the travelling package that differ from ours."""
    bucket: str = "models"

    def __post_init__(self) -> None:
        self.client = self.s3.client()

    @property
    def uri(self) -> str:
        """Where it lies."""
        return f"s3://{self.bucket}/{self.prefix}"

    def write(self, key: str, record: Record) -> None:
        """Write one record."""
        self.client.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{key}", Body=record.body())

    def read(self, key: str) -> bytes | None:
        """One object."""
        try:
            return bytes(self.client.get_object(Bucket=self.bucket, Key=f"{self.prefix}/{key}")["Body"].read())
        except self.client.exceptions.NoSuchKey:
            return None

    def json(self, key: str) -> dict[str, Any]:
        """One object that must be there."""
        body = self.read(key)
        assert body is not None, f"{key} is not there: {self.keys()}"
        parsed: dict[str, Any] = json.loads(body)
        return parsed

    def keys(self, below: str = "") -> list[str]:
        """All keys below a folder."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{self.prefix}/{below}"
        )
        return sorted(o["Key"].removeprefix(f"{self.prefix}/") for page in pages for o in page.get("Contents", []))

    def own(self, k: int, *, final: bool = False) -> None:
        """Write owner k."""
        owner = OwnerRecord(
            k=k,
            dag_id="d",
            run_id="r",
            task_id="t",
            dag_run_identity="i",
            try_number=k,
            max_tries=3,
            created_at=now(),
            final=final,
        )
        self.write(layout.owner(k), owner)

    def stop(self, n: int, *, k: int, g: int = 1) -> None:
        """Write a stop record."""
        self.write(layout.stop(g, n, k), StopRecord(k=k, reason="a test", created_at=now()))

    def spec(self, training: TrainingSpec, n: int, *, g: int = 1, **fields: Any) -> JobSpec:
        """The document of one attempt."""
        timings = fields.pop("timings", Timings(claim_poll_s=0.5, alive_s=2.0, refit_backoff_s=0.5))
        return JobSpec(
            experiment_uri=self.uri,
            ref=AttemptRef(generation=g, attempt=n),
            k=fields.pop("k", n),
            submission_id=f"{hashlib.sha256(self.uri.encode()).hexdigest()[:8]}-g{g}-a{n}",
            training=training,
            timings=timings,
            **fields,
        )

    def claim(self, spec: JobSpec) -> None:
        """Own the experiment and claim the attempt."""
        self.own(spec.k)
        g, n = spec.ref.rank
        record = ClaimRecord(
            k=spec.k,
            generation=g,
            attempt=n,
            submission_id=spec.submission_id,
            address=self.ray.address,
            try_number=n,
            intent="test",
            restore_policy=RestorePolicy(),
            spec_digest="s",
            code_digest="c",
            created_at=now(),
        )
        self.write(layout.claim(g, n), record)

    def submit(self, spec: JobSpec) -> str:
        """Upload both packages and post the job."""
        code = self._upload(provider_zip(spec, changed=self.package))
        work = self._upload(zipped(self.files))
        env = {ATTEMPT_ENV: str(spec.ref), "PYTHONUNBUFFERED": "1", **self.env}
        body = {
            "entrypoint": "python -m airflow_provider.runtime.driver",
            "submission_id": spec.submission_id,
            "runtime_env": {"py_modules": [code], "working_dir": work, "env_vars": env},
        }
        self._request("POST", "/api/jobs/", json.dumps(body).encode())
        return spec.submission_id

    def start(self, training: TrainingSpec, n: int, **fields: Any) -> str:
        """Claim and submit attempt n."""
        spec = self.spec(training, n, **fields)
        self.claim(spec)
        return self.submit(spec)

    def status(self, job: str) -> dict[str, Any]:
        """The job by the Jobs API."""
        found: dict[str, Any] = json.loads(self._request("GET", f"/api/jobs/{job}"))
        return found

    def log(self, job: str) -> str:
        """The job's output, and what Ray says about its end."""
        output = json.loads(self._request("GET", f"/api/jobs/{job}/logs"))["logs"]
        return f"{output}\n{self.status(job).get('message')}"

    def stop_job(self, job: str) -> None:
        """POST a stop."""
        self._request("POST", f"/api/jobs/{job}/stop")

    def wait(self, job: str, *, timeout_s: float = 240.0) -> dict[str, Any]:
        """Wait for the job's end."""
        self.until(lambda: self.status(job)["status"] in TERMINAL, job=job, what="the job's end", timeout_s=timeout_s)
        return self.status(job)

    def until(self, probe: Any, *, job: str, what: str, timeout_s: float = 240.0) -> None:
        """Poll; a time-out, or a job that ends before, shows the job's log."""
        end = time.monotonic() + timeout_s
        while not probe():
            status = self.status(job)["status"]
            is_over = status in TERMINAL and not probe()
            if is_over or time.monotonic() > end:
                why = f"the job is {status}" if is_over else f"not within {timeout_s} s"
                raise AssertionError(f"{what}: {why}\n{self.log(job)[-6000:]}")
            time.sleep(0.2)

    def committed(self, n: int, g: int = 1) -> list[str]:
        """Names in an attempt's manifest."""
        body = self.read(layout.manifest(g, n))
        return [e["checkpoint_dir_name"] for e in json.loads(body)["checkpoint_results"]] if body else []

    def _upload(self, body: bytes) -> str:
        name = f"_ray_pkg_{hashlib.sha256(body).hexdigest()[:32]}.zip"
        try:
            self._request("GET", f"/api/packages/gcs/{name}")
        except urllib.error.HTTPError:
            self._request("PUT", f"/api/packages/gcs/{name}", body)
        return f"gcs://{name}"

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.ray.address}{path}", data=body, method=method)
        request.add_header("Authorization", f"Bearer {self.ray.token}")
        request.add_header(
            "Content-Type", "application/json" if body and body[:1] == b"{" else "application/octet-stream"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())
