"""An experiment in the bucket as a failed try left it, with any number of committed checkpoints behind it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.identity import TaskInstanceKey, submission_id
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import (
    CheckpointEntry,
    ClaimRecord,
    OutcomeRecord,
    OutcomeState,
    OwnerRecord,
    RecordSegment,
    RestoredRecord,
)
from tests.stack.s3 import S3Server

BODY = b'{"step": 0, "number": "0"}'
_PER_SEGMENT = 1000
_FIRST = AttemptRef(generation=1, attempt=1)
BUCKET = "models"


@dataclass(frozen=True)
class SeededExperiment:
    """One experiment of one task instance, whose first try has failed."""

    s3: S3Server
    prefix: str
    """Key of its folder in the bucket."""
    key: TaskInstanceKey
    identity: str
    """Of the DAG run, as it is kept in Airflow's state store."""
    num_checkpoints: int

    @property
    def uri(self) -> str:
        """Where it lies."""
        return f"s3://{BUCKET}/{self.prefix}"

    @property
    def names(self) -> list[str]:
        """All checkpoints, as the manifest lists them."""
        return [f"attempts/000001/checkpoint_{n:06d}" for n in range(self.num_checkpoints)]

    def seed(self, *, address: str, session_name: str) -> None:
        """Write everything: each checkpoint's file, the manifest, the records in full segments, claim and outcome."""
        at = datetime.now(timezone.utc) - timedelta(hours=1)
        names = self.names
        client = self.s3.client()
        with ThreadPoolExecutor(8) as pool:
            etags = list(pool.map(lambda name: self._put(client, f"g000001/{name}/state.json", BODY), names))
        for body_key, body in self.records(names, etags, at=at, address=address, session_name=session_name).items():
            self._put(client, body_key, body)

    def reset(self, run_id: str, *, address: str, session_name: str) -> None:
        """Take away what later tries have left and give it to that DAG run, so that its try finds the same under a new job id."""
        client = self.s3.client()
        at = datetime.now(timezone.utc) - timedelta(hours=1)
        key = replace(self.key, run_id=run_id)
        for name, body in self.owned(key, at=at, address=address, session_name=session_name).items():
            self._put(client, name, body)
        kept = {layout.owner(1)}
        first = f"{layout.attempt(1, 1)}/"
        for below in ("owners/", "g000001/attempts/0000"):
            # The first attempt's thousands of objects are not listed: only what comes after them.
            start_after = f"{self.prefix}/g000001/attempts/000001~" if below.startswith("g") else ""
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=BUCKET, Prefix=f"{self.prefix}/{below}", StartAfter=start_after
            )
            for page in pages:
                for found in page.get("Contents", []):
                    relative = found["Key"].removeprefix(f"{self.prefix}/")
                    if relative not in kept and not relative.startswith(first):
                        client.delete_object(Bucket=BUCKET, Key=found["Key"])

    def _put(self, client: Any, key: str, body: bytes) -> str:
        return str(client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}", Body=body)["ETag"])

    def records(
        self, names: list[str], etags: list[str], *, at: datetime, address: str, session_name: str
    ) -> dict[str, bytes]:
        """All but the checkpoints' own files, by key."""
        entries = [ManifestEntry(name, {"step": n}) for n, name in enumerate(names)]
        failed = Failure(kind=FailureKind.INFRASTRUCTURE, reason="the node of the driver was lost")
        outcome = OutcomeRecord(
            state=OutcomeState.FAILED, failure=failed, num_commits=len(names), finished_at=at + timedelta(minutes=50)
        )
        restored = RestoredRecord(checkpoint=None, reason="the first attempt", created_at=at)
        manifest = Manifest(entries=tuple(entries), latest=entries[-1] if entries else None)
        files = {
            **self.owned(self.key, at=at, address=address, session_name=session_name),
            layout.restored(*_FIRST.rank): restored.body(),
            layout.outcome(*_FIRST.rank): outcome.body(),
            layout.manifest(*_FIRST.rank): manifest.body(ray_version="2.60.0"),
        }
        for number, begin in enumerate(range(0, len(names), _PER_SEGMENT), 1):
            told = zip(names[begin : begin + _PER_SEGMENT], etags[begin : begin + _PER_SEGMENT], strict=True)
            checkpoints = tuple(
                CheckpointEntry(
                    checkpoint=name,
                    files=(CheckpointFile(key="state.json", size=len(BODY), etag=etag.strip('"')),),
                    metrics={"step": begin + n},
                    reported_at=at + timedelta(seconds=(begin + n) * 0.25),
                )
                for n, (name, etag) in enumerate(told)
            )
            segment = RecordSegment(checkpoints=checkpoints, written_at=at)
            files[layout.segment(*_FIRST.rank, f"{number:06d}")] = segment.body()
        return files

    def owned(self, key: TaskInstanceKey, *, at: datetime, address: str, session_name: str) -> dict[str, bytes]:
        """What says whose it is, by key: the owner and the first attempt's claim."""
        owner = OwnerRecord(
            k=1,
            dag_id=key.dag_id,
            run_id=key.run_id,
            task_id=key.task_id,
            dag_run_identity=self.identity,
            try_number=1,
            max_tries=3,
            created_at=at,
        )
        claim = ClaimRecord(
            k=1,
            generation=1,
            attempt=1,
            submission_id=submission_id(self.uri, key, _FIRST),
            address=address,
            session_name=session_name,
            try_number=1,
            intent="start",
            answers_clear=False,
            spec_digest="of another spec",
            code_digest="of other code",
            created_at=at,
        )
        return {layout.owner(1): owner.body(), layout.claim(*_FIRST.rank): claim.body()}
