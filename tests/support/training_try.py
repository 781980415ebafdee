"""One try on a bucket in memory and a cluster in a dict, with the order of all it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow_provider.core import layout
from airflow_provider.core.decision import TryFacts
from airflow_provider.core.identity import TaskInstanceKey, submission_id
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import Timings, TrainingSpec
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import CheckpointEntry, OutcomeRecord, OutcomeState, RecordSegment
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.core.spec import StorageConfig
from airflow_provider.operators.request import TrainingRequest
from airflow_provider.operators.training_try import TrainingTry
from airflow_provider.storage.experiment_records import ExperimentRecords
from tests.support.experiment import claim, owner, ref
from tests.support.fake_airflow import RUN_ID
from tests.support.fake_jobs_client import SESSION, FakeJobsClient
from tests.support.memory_store import MemoryStore
from tests.support.records import outcome

URI = "memory://bucket/experiment"
KEY = TaskInstanceKey("d", RUN_ID, "train")
BODY = b"weights!"


def request(**changes: Any) -> TrainingRequest:
    known: dict[str, Any] = {
        "key": KEY,
        "uri": URI,
        "conn_id": "ray",
        "aws_conn_id": None,
        "training": TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="pkg.mod:loop"),
        "storage": StorageConfig(),
        "restore": RestorePolicy(),
        "on_clear": "auto",
        "timings": Timings(),
        "dag_folder": Path("/dags"),
    }
    return TrainingRequest(**{**known, **changes})


def job_id(generation: int, attempt: int) -> str:
    return submission_id(URI, KEY, ref(generation, attempt))


@dataclass
class Bench:
    """The world that tries share."""

    store: MemoryStore = field(default_factory=lambda: MemoryStore(URI))
    log: list[tuple[str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.records = ExperimentRecords(self.store)
        self.client = FakeJobsClient(self.log)
        self.store.before_call = self._note
        self.interfere: Callable[[str, str], None] = lambda _verb, _key: None
        """Called with (verb, key) before each call to the store takes effect."""
        self.is_inside = False

    def _note(self, verb: str, key: str, _: int) -> None:
        if self.is_inside:
            return
        self.log.append((verb, key))
        self.is_inside = True
        try:
            self.interfere(verb, key)
        finally:
            self.is_inside = False

    def new_try(
        self,
        try_number: int = 1,
        *,
        is_archived: bool = False,
        identity: str = "i1",
        max_tries: int = 3,
        clear_number: int = 0,
        records: ExperimentRecords | None = None,
        **changes: Any,
    ) -> TrainingTry:
        def set_marker(k: int) -> bool:
            self.log.append(("marker", str(k)))
            return not is_archived

        return TrainingTry(
            request=request(**changes),
            facts=TryFacts(
                dag_run_identity=identity,
                try_number=try_number,
                max_tries=max_tries,
                clear_number=clear_number,
                own_ks=frozenset(),
            ),
            records=records or self.records,
            client=self.client,
            set_marker=set_marker,
            log=self.said.append,
            now=lambda: datetime(2026, 11, 29, 13, tzinfo=timezone.utc),
            sleep=self.slept.append,
        )

    def steps(self, *names: str) -> list[str]:
        """The order of what was done, as `verb key`, of the verbs given."""
        return [f"{verb} {key}".strip() for verb, key in self.log if verb in names]

    def written(self) -> list[str]:
        return sorted(info.key for info in self.store.list(""))

    # --- what others left --------------------------------------------------------------------------------------------

    def own(self, k: int, **changes: Any) -> None:
        self.store.put_raw(layout.owner(k), owner(k, **changes).body())

    def claim(self, attempt: int = 1, *, generation: int = 1, k: int = 1, **changes: Any) -> None:
        changes = {"session_name": SESSION, "submission_id": job_id(generation, attempt), **changes}
        record = claim(generation, attempt, k=k, **changes)
        self.store.put_raw(layout.claim(generation, attempt), record.body())

    def end(self, state: str = "failed", *, attempt: int = 1, generation: int = 1, **changes: Any) -> OutcomeRecord:
        """The driver's outcome, and the job's end."""
        from tests.support.fake_jobs_client import job

        record = outcome(state, **changes)
        self.store.put_raw(layout.outcome(generation, attempt), record.body())
        status = "SUCCEEDED" if record.state is OutcomeState.SUCCESS else "FAILED"
        name = job_id(generation, attempt)
        self.client.jobs[name] = job(name, status)
        return record

    def commit(self, *names: str, attempt: int = 1, generation: int = 1, missing: tuple[str, ...] = ()) -> list[str]:
        """Checkpoints with their files, manifest and records; those in `missing` lost their files."""
        full = [f"attempts/{attempt:06d}/{name}" for name in names]
        for name, path in zip(names, full, strict=True):
            if name not in missing:
                self.store.put_raw(f"{layout.generation(generation)}/{path}/model.pt", BODY)
        entries = tuple(ManifestEntry(path, {"epoch": i}) for i, path in enumerate(full))
        manifest = Manifest(entries=entries, latest=entries[-1] if entries else None)
        self.store.put_raw(layout.manifest(generation, attempt), manifest.body(ray_version="2.60.0"))
        recorded = tuple(
            CheckpointEntry(
                checkpoint=path,
                files=(CheckpointFile(key="model.pt", size=len(BODY)),),
                metrics={"epoch": i},
                reported_at=datetime(2026, 11, 29, 12, tzinfo=timezone.utc),
            )
            for i, path in enumerate(full)
        )
        for number, start in enumerate(range(0, len(recorded), 1000), 1):
            part = RecordSegment(
                checkpoints=recorded[start : start + 1000], written_at=datetime(2026, 11, 29, tzinfo=timezone.utc)
            )
            self.store.put_raw(layout.segment(generation, attempt, f"{number:06d}"), part.body())
        return full

    def newest_claim_ref(self) -> AttemptRef:
        found = self.records.newest_claim()
        assert found is not None
        return found.ref
