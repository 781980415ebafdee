"""A checkpoint that a training keeps failing from: set aside once, and given back when it was not to blame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure
from airflow_provider.core.fit_rules import decide_poison
from airflow_provider.core.job import JobSpec
from airflow_provider.core.manifest import Manifest, ManifestEntry, parse_manifest
from airflow_provider.core.records import QuarantineRecord
from airflow_provider.core.restore import registration_order
from airflow_provider.runtime.restoring import read_attempts
from airflow_provider.runtime.scribe import utc_now
from airflow_provider.runtime.speech import say
from airflow_provider.runtime.storage import STORE_PATIENCE_S, ExperimentStore, patiently

_POISON = "poison: "
"""How the reason of such a quarantine begins."""


@dataclass(frozen=True)
class _Suspect:
    """A checkpoint in quarantine for an error, and the manifest that still listed it."""

    checkpoint: str
    failure: Failure
    manifest: bytes


class PoisonWatch:
    """Carries out `decide_poison` over the fits of one job."""

    def __init__(
        self, store: ExperimentStore, spec: JobSpec, *, has_own_manifest: Callable[[], bool], ray_version: str
    ) -> None:
        """Suspects nothing yet."""
        self.store, self.spec, self._has_own_manifest = store, spec, has_own_manifest
        self._ray_version = ray_version
        self.reason = ""
        """Why the last decision was as it was."""
        self._suspect: _Suspect | None = None

    @property
    def has_suspect(self) -> bool:
        """Whether a checkpoint is in quarantine for an error of this job."""
        return self._suspect is not None

    def goes_back(self, failure: Failure, *, commits: int) -> bool:
        """Judge how a fit ended, which committed `commits` checkpoints; True: fit again, from the checkpoint before."""
        body = self._read_manifest()
        latest = parse_manifest(body, key="manifest").latest if body else None
        verdict = decide_poison(
            failure,
            checkpoint=latest.name if latest else None,
            suspect=self._suspect.checkpoint if self._suspect else None,
            on_corrupt=self.spec.restore.on_corrupt,
        )
        self.reason = verdict.reason
        if verdict.action == "release":
            self._release(verdict.reason, is_listed_again=commits == 0)
        if verdict.action != "quarantine" or latest is None or body is None:
            return False
        self._suspect = _Suspect(latest.name, failure, body)
        self._write(
            QuarantineRecord(
                checkpoint=latest.name,
                reason=f"{_POISON}{failure.reason}",
                attempt=self.spec.ref.attempt,
                created_at=utc_now(),
            )
        )
        say(f"checkpoint {latest.name} is in quarantine: {verdict.reason}")
        return True

    def give_up(self, why: str) -> Failure | None:
        """Give the suspect back; its error is what the job ends with."""
        failure = self._suspect.failure if self._suspect else None
        self._release(why, is_listed_again=True)
        return failure

    def _release(self, why: str, *, is_listed_again: bool) -> None:
        """Where nothing was committed since, Ray's manifest lists the suspect again as the newest."""
        suspect, self._suspect = self._suspect, None
        if suspect is None:
            return
        # A driver that died before it could judge left its suspect in quarantine: the same error clears that one, too.
        records = patiently(self._suspects, for_s=STORE_PATIENCE_S)
        if is_listed_again:
            body = patiently(partial(self._listed_again, suspect, records), for_s=STORE_PATIENCE_S)
            for key in self._manifest_keys():
                patiently(partial(self.store.write, key, body), for_s=STORE_PATIENCE_S)
        for record in records:
            released = record.model_copy(
                update={"reason": f"{record.reason}; released: {why}", "released_by": str(self.spec.ref)}
            )
            self._write(released)
            say(f"checkpoint {record.checkpoint} is released from quarantine: {why}")

    def _listed_again(self, suspect: _Suspect, released: Sequence[QuarantineRecord]) -> bytes:
        """The manifest from before the quarantine, with the suspects of dead drivers that descend from this one behind it."""
        names = {record.checkpoint for record in released} - {suspect.checkpoint}
        if not names:
            return suspect.manifest
        attempts = read_attempts(self.store, self.spec.ref, say=say)
        children = {e.parent: e for a in attempts for e in a.checkpoints.recorded if e.checkpoint in names}
        entries = registration_order(parse_manifest(suspect.manifest, key="manifest"))
        while (child := children.pop(entries[-1].name, None)) is not None:
            entries.append(ManifestEntry(child.checkpoint, dict(child.metrics)))
        manifest = Manifest(tuple(entries), entries[-1], tuple(range(len(entries))))
        return manifest.body(ray_version=self._ray_version)

    def _suspects(self) -> list[QuarantineRecord]:
        folder = f"{layout.generation(self.spec.ref.generation)}/quarantine"
        found = (self.store.read_record(QuarantineRecord, f"{folder}/{name}") for name in self.store.names(folder))
        return [r for r in found if r is not None and r.released_by is None and r.reason.startswith(_POISON)]

    def _write(self, record: QuarantineRecord) -> None:
        key = layout.quarantine(self.spec.ref.generation, record.checkpoint)
        patiently(lambda: self.store.write_record(key, record), for_s=STORE_PATIENCE_S)

    def _manifest_keys(self) -> tuple[str, ...]:
        own = layout.manifest(*self.spec.ref.rank)
        return (own,) if self._has_own_manifest() else (own, layout.published_manifest(self.spec.ref.generation))

    def _read_manifest(self) -> bytes | None:
        return patiently(lambda: self.store.read(self._manifest_keys()[-1]), for_s=STORE_PATIENCE_S)
