"""An experiment in memory as a sensor meets it: a training's records, written step by step."""

from __future__ import annotations

from typing import Any

from airflow_provider.core import layout
from airflow_provider.core.condition import Condition
from airflow_provider.core.experiment_sight import ExperimentSight
from airflow_provider.core.experiment_wait import (
    CHECKPOINT,
    END,
    KeepWaiting,
    WaitDone,
    WaitFailed,
    WaitFailure,
    WaitSpec,
    WaitVerdict,
    judge_look,
)
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.records import (
    CheckpointEntry,
    CollectedRecord,
    QuarantineRecord,
    RecordSegment,
    RestoredRecord,
    StopRecord,
)
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.experiment_view import ExperimentView
from tests.support.experiment import NOW, claim, owner, ref
from tests.support.memory_store import MemoryStore
from tests.support.records import outcome

URI = "memory://bucket/experiment"


class WatchedExperiment:
    """One experiment. Every attempt `n` belongs to owner `n` and try `n` unless said otherwise."""

    def __init__(self, uri: str = URI) -> None:
        self.store = MemoryStore(uri)
        self.view = ExperimentView(ExperimentRecords(self.store))
        self._rows: dict[tuple[int, int], list[CheckpointEntry]] = {}
        self._listed: dict[int, list[ManifestEntry]] = {}

    # --- what a training leaves --------------------------------------------------------------------------------------

    def own(self, k: int = 1, **changes: Any) -> None:
        self.store.put_raw(layout.owner(k), owner(k, **changes).body())

    def claim(self, attempt: int = 1, *, generation: int = 1, k: int | None = None) -> None:
        k = k or attempt
        if self.store.head(layout.owner(k)) is None:
            self.own(k)
        self.store.put_raw(layout.claim(generation, attempt), claim(generation, attempt, k=k).body())

    def commit(
        self, *rows: dict[str, Any], attempt: int = 1, generation: int = 1, keep: int | None = None
    ) -> list[str]:
        """Checkpoints with these metrics, each the child of the one before; the manifest keeps the last `keep`."""
        done = self._rows.setdefault((generation, attempt), [])
        listed = self._listed.setdefault(generation, [])
        names = []
        for metrics in rows:
            name = f"attempts/{attempt:06d}/checkpoint_{len(done):06d}"
            parent = listed[-1].name if listed else None
            done.append(CheckpointEntry(checkpoint=name, metrics=metrics, reported_at=NOW, parent=parent))
            listed.append(ManifestEntry(name, metrics))
            names.append(f"{layout.generation(generation)}/{name}")
        if keep is not None:
            del listed[:-keep]
        self.write_manifest(attempt=attempt, generation=generation)
        segment = RecordSegment(checkpoints=tuple(done), written_at=NOW)
        self.store.put_raw(layout.segment(generation, attempt, "000001"), segment.body())
        return names

    def write_manifest(self, *, attempt: int = 1, generation: int = 1) -> None:
        listed = tuple(self._listed.get(generation, ()))
        manifest = Manifest(entries=listed, latest=listed[-1] if listed else None)
        self.store.put_raw(layout.manifest(generation, attempt), manifest.body(ray_version="2.60.0"))

    def restore(self, attempt: int, *, back_to: int, generation: int = 1) -> None:
        """What a driver restored: the `back_to`-th listed checkpoint; what came after it is left out of the manifest."""
        listed = self._listed[generation]
        del listed[back_to + 1 :]
        record = RestoredRecord(checkpoint=listed[-1].name, reason="rolled back", created_at=NOW)
        self.store.put_raw(layout.restored(generation, attempt), record.body())
        self.write_manifest(attempt=attempt, generation=generation)

    def quarantine(self, name: str, *, generation: int = 1) -> None:
        name = name.removeprefix(f"{layout.generation(generation)}/")
        record = QuarantineRecord(checkpoint=name, reason="poison", attempt=1, created_at=NOW)
        self.store.put_raw(layout.quarantine(generation, name), record.body())

    def stop(self, k: int = 1, *, ends: str | None = None, attempt: int = 1, generation: int = 1) -> None:
        """Owner `k` asked the attempt to end."""
        kind = FailureKind(ends) if ends else None
        record = StopRecord(k=k, reason="execution_timeout", ends=kind, created_at=NOW)
        self.store.put_raw(layout.stop(generation, attempt, k), record.body())

    def end(self, state: str = "success", *, attempt: int = 1, generation: int = 1, **changes: Any) -> None:
        """The driver's outcome, with the latest checkpoint."""
        listed = self._listed.get(generation)
        changes.setdefault("latest_checkpoint", listed[-1].name if listed else None)
        self.store.put_raw(layout.outcome(generation, attempt), outcome(state, **changes).body())

    def accept(self, accepted: bool | None = True, *, attempt: int = 1, generation: int = 1, why: str = "") -> None:
        record = CollectedRecord(k=1, accepted=accepted, refused_because=why or None, written_at=NOW)
        self.store.put_raw(layout.collected(generation, attempt), record.body())

    def succeed(self, *, attempt: int = 1, generation: int = 1) -> None:
        self.end(attempt=attempt, generation=generation)
        self.accept(attempt=attempt, generation=generation)

    # --- what a sensor makes of it -----------------------------------------------------------------------------------

    def sight(self) -> ExperimentSight:
        return self.view.look()

    def verdict(self, until: str = END, **spec: Any) -> WaitVerdict:
        condition = None if until in (END, CHECKPOINT) else Condition.parse(until)
        return judge_look(self.sight(), WaitSpec(until=until, **spec), condition)


def failure(kind: str = "user", reason: str = "KeyError: labels") -> Failure:
    return Failure(kind=FailureKind(kind), reason=reason)


def attempt_ref(attempt: int, generation: int = 1) -> Any:
    return ref(generation, attempt)


def waits(verdict: WaitVerdict, *words: str) -> None:
    """The wait goes on, with these words in its reason."""
    assert isinstance(verdict, KeepWaiting), verdict
    assert [w for w in words if w not in verdict.reason] == [], verdict.reason


def fails(verdict: WaitVerdict, why: str, *words: str) -> WaitFailed:
    """The wait failed for this, with these words in its reason."""
    assert isinstance(verdict, WaitFailed), verdict
    assert verdict.why is WaitFailure(why)
    assert [w for w in words if w not in verdict.reason] == [], verdict.reason
    return verdict


def done(verdict: WaitVerdict) -> str:
    """Name of the checkpoint that ended the wait."""
    assert isinstance(verdict, WaitDone), verdict
    return verdict.checkpoint.name.rpartition("/")[2] if verdict.checkpoint else ""
