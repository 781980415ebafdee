"""A checkpoint that a training keeps failing from: set aside once, and given back when it was not to blame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure
from airflow_provider.core.fit_rules import decide_poison
from airflow_provider.core.job import JobSpec
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.core.records import QuarantineRecord
from airflow_provider.runtime.scribe import utc_now
from airflow_provider.runtime.speech import say
from airflow_provider.runtime.storage import STORE_PATIENCE_S, ExperimentStore, patiently


@dataclass(frozen=True)
class _Suspect:
    """A checkpoint in quarantine for an error, and the manifest that still listed it."""

    checkpoint: str
    failure: Failure
    manifest: bytes


class PoisonWatch:
    """Carries out `decide_poison` over the fits of one job."""

    def __init__(self, store: ExperimentStore, spec: JobSpec, *, has_own_manifest: Callable[[], bool]) -> None:
        """Suspects nothing yet."""
        self.store, self.spec, self._has_own_manifest = store, spec, has_own_manifest
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
        self._write(self._suspect, why=f"poison: {failure.reason}", released_by=None)
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
        if is_listed_again:
            for key in self._manifest_keys():
                patiently(partial(self.store.write, key, suspect.manifest), for_s=STORE_PATIENCE_S)
        self._write(suspect, why=f"{suspect.failure.reason}; released: {why}", released_by=str(self.spec.ref))
        say(f"checkpoint {suspect.checkpoint} is released from quarantine: {why}")

    def _write(self, suspect: _Suspect, *, why: str, released_by: str | None) -> None:
        record = QuarantineRecord(
            checkpoint=suspect.checkpoint,
            reason=why,
            attempt=self.spec.ref.attempt,
            created_at=utc_now(),
            released_by=released_by,
        )
        key = layout.quarantine(self.spec.ref.generation, suspect.checkpoint)
        patiently(lambda: self.store.write_record(key, record), for_s=STORE_PATIENCE_S)

    def _manifest_keys(self) -> tuple[str, ...]:
        own = layout.manifest(*self.spec.ref.rank)
        return (own,) if self._has_own_manifest() else (own, layout.published_manifest(self.spec.ref.generation))

    def _read_manifest(self) -> bytes | None:
        return patiently(lambda: self.store.read(self._manifest_keys()[-1]), for_s=STORE_PATIENCE_S)
