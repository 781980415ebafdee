"""The experiment of the documentation's samples: one attempt that failed, one that restored and was preempted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.identity import TaskInstanceKey, experiment_uri, submission_id
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import CheckpointEntry, OutcomeRecord, OutcomeState, RecordSegment, RestoredRecord
from tests.support.command_line import lay_down
from tests.support.experiment import NOW, claim, owner
from tests.support.memory_store import MemoryStore

KEY = TaskInstanceKey("churn", "scheduled__2026-11-29T00:00:00+00:00", "train")
STORAGE_PATH = "s3://models/churn"
"""Where the page says that it lies."""
URI = experiment_uri(STORAGE_PATH, KEY)
BODY = b"w" * 12_400


class Sample:
    """Its records and checkpoints."""

    def __init__(self, *, session_name: str) -> None:
        self.store = MemoryStore(URI)
        self._listed: list[ManifestEntry] = []
        self._session = session_name
        self._own(1, minutes=0)
        self._claim(1, minutes=0, intent="no attempt yet: starting g1/a1")
        self._commit(1, epochs=range(4), minutes=1)
        failure = Failure(kind=FailureKind.INFRASTRUCTURE, reason="a worker's node died (ActorDiedError on rank 1)")
        ended = OutcomeRecord(state=OutcomeState.FAILED, failure=failure, finished_at=NOW + timedelta(minutes=6))
        self.store.put_raw(layout.outcome(1, 1), ended.body())
        self._own(2, minutes=7)
        why = f"g1/a1 ended FAILED (infrastructure: {failure.reason}): restoring as g1/a2"
        self._claim(2, minutes=7, intent=why)
        newest = self._listed[-1].name
        reason = f"restoring {newest} (latest, all 1 files there with their sizes)"
        self.store.put_raw(
            layout.restored(1, 2),
            RestoredRecord(
                checkpoint=newest, from_attempt=1, reason=reason, created_at=NOW + timedelta(minutes=7)
            ).body(),
        )
        self._commit(2, epochs=range(4, 7), minutes=8)
        taken = Failure(kind=FailureKind.PREEMPTION, reason="node 10.0.0.7 was preempted")
        ended = OutcomeRecord(state=OutcomeState.FAILED, failure=taken, finished_at=NOW + timedelta(minutes=12))
        self.store.put_raw(layout.outcome(1, 2), ended.body())

    def at(self, root: Path) -> Path:
        """The experiment below a folder that stands for the page's storage path."""
        return lay_down(self.store, root / URI.removeprefix(f"{STORAGE_PATH}/"))

    def job(self, attempt: int) -> str:
        return submission_id(URI, KEY, AttemptRef(generation=1, attempt=attempt))

    def _own(self, k: int, *, minutes: int) -> None:
        names: dict[str, Any] = {"dag_id": KEY.dag_id, "run_id": KEY.run_id, "task_id": KEY.task_id}
        record = owner(k, **names, created_at=NOW + timedelta(minutes=minutes))
        self.store.put_raw(layout.owner(k), record.body())

    def _claim(self, attempt: int, *, minutes: int, intent: str) -> None:
        record = claim(
            1,
            attempt,
            k=attempt,
            submission_id=self.job(attempt),
            session_name=self._session,
            intent=intent,
            created_at=NOW + timedelta(minutes=minutes),
        )
        self.store.put_raw(layout.claim(1, attempt), record.body())

    def _commit(self, attempt: int, *, epochs: range, minutes: int) -> None:
        entries = []
        for number, epoch in enumerate(epochs):
            when = NOW + timedelta(minutes=minutes + number)
            name = f"attempts/{attempt:06d}/checkpoint_{when:%Y-%m-%d_%H-%M-%S}.123456"
            metrics = {"epoch": epoch, "val_loss": round(0.9 / (epoch + 1), 3)}
            self.store.put_raw(f"g000001/{name}/model.pt", BODY)
            self._listed.append(ManifestEntry(name, metrics))
            files = (CheckpointFile(key="model.pt", size=len(BODY)),)
            entries.append(CheckpointEntry(checkpoint=name, files=files, metrics=metrics, reported_at=when))
        kept = tuple(self._listed[-3:])
        self.store.put_raw(layout.manifest(1, attempt), Manifest(kept, kept[-1]).body(ray_version="2.60.0"))
        segment = RecordSegment(checkpoints=tuple(entries), written_at=NOW)
        self.store.put_raw(layout.segment(1, attempt, "000001"), segment.body())
