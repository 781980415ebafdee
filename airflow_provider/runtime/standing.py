"""May this driver go on? What PROTOCOL section 3 has it look for, at start and every few seconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, RecordUnreadable
from airflow_provider.core.job import EXIT_CANCELLED, EXIT_SUPERSEDED
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.records import AliveRecord, ClaimRecord, OwnerRecord, StopRecord
from airflow_provider.runtime.storage import ExperimentStore


class HitKind(str, Enum):
    """Why a driver must end itself."""

    SUPERSEDED = "superseded"
    """A newer claim exists, or the same attempt runs elsewhere: write nothing."""
    STOPPED = "stopped"
    """A stop record or a final owner: we were asked to end."""
    DEADLINE = "deadline"
    """The training's absolute deadline passed."""


@dataclass(frozen=True)
class Hit:
    """One reason to end, in words."""

    kind: HitKind
    reason: str

    @property
    def exit_code(self) -> int:
        """The driver's exit code."""
        return EXIT_SUPERSEDED if self.kind is HitKind.SUPERSEDED else EXIT_CANCELLED


class Standing:
    """Looks at the bucket for anything that ends this driver. Store errors are the caller's: they are never a hit."""

    def __init__(self, store: ExperimentStore, spec: JobSpec, *, run_uid: str) -> None:
        """`run_uid` is this process's own mark in `alive.json`."""
        self.store, self.spec, self.run_uid = store, spec, run_uid
        self._g, self._n = spec.ref.rank
        self._owners_read: set[int] = set()

    def first_look(self, *, now: datetime) -> Hit | None:
        """The check before anything is written; also asks whether the claim is ours and nobody ran this attempt before."""
        claim = self.store.read_record(ClaimRecord, layout.claim(self._g, self._n))
        if claim is None:
            # Airflow wrote it before it sent this job: whoever doesn't see it looks at another store.
            raise InvalidConfig(
                f"The claim of attempt {self.spec.ref} is not there: the cluster reads another store than Airflow",
                known=f"looked in {self.spec.experiment_uri}, endpoint {self.spec.storage.endpoint_url or 'default'}",
                change="give the cluster's way to the bucket in storage_config, or share the directory with its nodes",
            )
        if claim.submission_id != self.spec.submission_id:
            owner = f"belongs to job {claim.submission_id}"
            return Hit(HitKind.SUPERSEDED, f"the claim of attempt {self.spec.ref} {owner}")
        return self.newer_claim() or self.second_run() or self.look(now=now)

    def look(self, *, now: datetime) -> Hit | None:
        """The check of each poll."""
        # A second run of the same attempt comes before what writes an outcome: the outcome is the first run's to write.
        return self.newer_claim() or self._foreign_run() or self._deadline(now) or self._owners_and_stops()

    def newer_claim(self) -> Hit | None:
        """The check before every commit and before the outcome."""
        for key in (layout.claim(self._g, self._n + 1), layout.claim(self._g + 1, 1)):
            if self.store.exists(key):
                return Hit(HitKind.SUPERSEDED, f"a newer claim exists: {key}")
        return None

    def second_run(self) -> Hit | None:
        """Asked before this run has written a manifest: then one of its own attempt is another run's."""
        if not self.store.exists(layout.manifest(self._g, self._n)):
            return None
        return Hit(HitKind.SUPERSEDED, f"attempt {self.spec.ref} has a manifest already: the job was posted twice")

    def _deadline(self, now: datetime) -> Hit | None:
        deadline = self.spec.deadline
        if deadline is None or now < deadline:
            return None
        return Hit(HitKind.DEADLINE, f"the deadline {deadline:%Y-%m-%d %H:%M:%S} UTC passed")

    def _owners_and_stops(self) -> Hit | None:
        """Stop records are looked up by owner number: listing the attempt's folder would list all its checkpoints."""
        found = [k for name in self.store.names("owners") if (k := layout.parse_owner(f"owners/{name}")) is not None]
        newer = [k for k in found if k > self.spec.k]
        for k in sorted(set(newer) - self._owners_read):
            owner = self._final_owner(k)
            if owner is not None:
                return Hit(HitKind.STOPPED, f"owner {k} ended the task for good{_because(owner.final_because)}")
            self._owners_read.add(k)
        for k in (self.spec.k, *newer):
            key = layout.stop(self._g, self._n, k)
            if self.store.exists(key):
                return Hit(HitKind.STOPPED, f"owner {k} asked to stop{self._why(key)}")
        return None

    def _final_owner(self, k: int) -> OwnerRecord | None:
        try:
            owner = self.store.read_record(OwnerRecord, layout.owner(k))
        except RecordUnreadable:
            # Written by a newer release or torn: its claim or stop record would still end us.
            return None
        return owner if owner is not None and owner.final else None

    def _why(self, key: str) -> str:
        try:
            record = self.store.read_record(StopRecord, key)
        except RecordUnreadable:
            return ""
        return _because(record.reason if record else None)

    def _foreign_run(self) -> Hit | None:
        try:
            alive = self.store.read_record(AliveRecord, layout.alive(self._g, self._n))
        except RecordUnreadable:
            return None
        if alive is None or alive.run_uid == self.run_uid:
            return None
        return Hit(
            HitKind.SUPERSEDED, f"attempt {self.spec.ref} runs elsewhere too: alive.json is of run {alive.run_uid[:8]}"
        )


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""
