"""A checkpoint that a training keeps failing from: set aside once, and given back when it was not to blame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure
from airflow_provider.core.fit_rules import PoisonVerdict, Suspicion, decide_poison
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.manifest import Manifest, parse_manifest
from airflow_provider.core.records import QuarantineRecord
from airflow_provider.runtime.scribe import utc_now
from airflow_provider.runtime.speech import say
from airflow_provider.runtime.storage import STORE_PATIENCE_S, ExperimentStore, patiently


@dataclass(frozen=True)
class _Open:
    """A suspicion that is not settled, with the manifest that still listed the checkpoint."""

    suspicion: Suspicion
    manifest: bytes
    names: tuple[str, ...]

    def has_progressed(self, now: Manifest | None) -> bool:
        """Whether anything was committed since."""
        return now is not None and not set(now.names) <= set(self.names)


class PoisonWatch:
    """Carries out `decide_poison` over the fits of one job. What it leaves open lapses with its attempt."""

    def __init__(self, store: ExperimentStore, spec: JobSpec, *, has_own_manifest: Callable[[], bool]) -> None:
        """Suspects nothing yet."""
        self.store, self.spec, self._has_own_manifest = store, spec, has_own_manifest
        self.reason = ""
        """Why the last decision was as it was."""
        self._open: _Open | None = None
        self._num_suspected = 0

    @property
    def failure(self) -> Failure | None:
        """The error for which a checkpoint is set aside now."""
        return self._open.suspicion.failure if self._open else None

    def goes_back(self, failure: Failure) -> bool:
        """Judge how a fit ended; True: fit again, from the checkpoint before."""
        body, manifest = self._read_manifest()
        verdict = self._judge(failure, manifest)
        if verdict.action == "convict":
            self.convict(verdict.reason)
            verdict = self._judge(failure, manifest)
        self.reason = verdict.reason
        if verdict.action == "release":
            self.release(verdict.reason)
        if verdict.action != "suspect" or manifest is None or manifest.latest is None or body is None:
            return False
        self._open = _Open(Suspicion(manifest.latest.name, failure), body, manifest.names)
        self._num_suspected += 1
        self._write(self._open.suspicion, is_suspicion=True)
        say(f"checkpoint {manifest.latest.name} is in quarantine: {verdict.reason}")
        return True

    def convict(self, why: str) -> None:
        """Training went past the suspect only without it: nobody restores it any more."""
        found, self._open = self._open, None
        if found is not None:
            self._write(found.suspicion, is_suspicion=False)
            original = layout.copied_from(found.suspicion.checkpoint)
            if original is not None:
                # The same bytes: the next attempt would copy them again.
                self._write(replace(found.suspicion, checkpoint=original), is_suspicion=False)
            say(f"checkpoint {found.suspicion.checkpoint} stays in quarantine: {why}")

    def release(self, why: str) -> None:
        """Give the suspect back. Where nothing was committed since, Ray's manifest lists it again as the newest."""
        found, self._open = self._open, None
        if found is None:
            return
        if not found.has_progressed(self._read_manifest()[1]):
            for key in self._manifest_keys():
                patiently(partial(self.store.write, key, found.manifest), for_s=STORE_PATIENCE_S)
        self._write(found.suspicion, is_suspicion=True, released_by=str(self.spec.ref))
        say(f"checkpoint {found.suspicion.checkpoint} is released from quarantine: {why}")

    def settle(self, *, is_success: bool) -> None:
        """The job's fits are over: what is still open is decided by how."""
        if is_success:
            self.convict("training finished without it")
        else:
            self.release("the job ended before it was known to be to blame")

    def _judge(self, failure: Failure, manifest: Manifest | None) -> PoisonVerdict:
        found = self._open
        return decide_poison(
            failure,
            checkpoint=manifest.latest.name if manifest and manifest.latest else None,
            suspicion=found.suspicion if found else None,
            has_progressed=found is not None and found.has_progressed(manifest),
            num_suspected=self._num_suspected,
            on_corrupt=self.spec.restore.on_corrupt,
        )

    def _write(self, suspicion: Suspicion, *, is_suspicion: bool, released_by: str | None = None) -> None:
        record = QuarantineRecord(
            checkpoint=suspicion.checkpoint,
            reason=f"poison: {suspicion.failure.reason}",
            attempt=self.spec.ref.attempt,
            created_at=utc_now(),
            is_suspicion=is_suspicion,
            released_by=released_by,
        )
        key = layout.quarantine(self.spec.ref.generation, suspicion.checkpoint)
        found = patiently(lambda: self.store.read_record(QuarantineRecord, key), for_s=STORE_PATIENCE_S)
        if found is not None and not found.is_suspicion and found.released_by is None:
            return  # a person set it aside meanwhile: that is not ours to give back
        patiently(lambda: self.store.write_record(key, record), for_s=STORE_PATIENCE_S)

    def _manifest_keys(self) -> tuple[str, ...]:
        own = layout.manifest(*self.spec.ref.rank)
        return (own,) if self._has_own_manifest() else (own, layout.published_manifest(self.spec.ref.generation))

    def _read_manifest(self) -> tuple[bytes | None, Manifest | None]:
        key = self._manifest_keys()[-1]
        body = patiently(lambda: self.store.read(key), for_s=STORE_PATIENCE_S)
        return body, parse_manifest(body, key=key) if body else None
