"""What really happened, whatever the records say; and what must never be, checked where it would happen."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider.core import layout
from airflow_provider.core.errors import NoUsableCheckpoint
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import ClaimRecord, CollectedRecord, OutcomeRecord, OutcomeState, QuarantineRecord
from airflow_provider.core.restore import quarantine_for
from tests.unit.machine.airflow import Clear, TryRun, kind_of
from tests.unit.machine.drivers import DriverProcess
from tests.unit.machine.surroundings import AWS_KEY, TOKEN

if TYPE_CHECKING:
    from airflow_provider.runtime.restoring import Resolved
    from tests.unit.machine.processes import Process
    from tests.unit.machine.world import World

Rank = tuple[int, int]
TIMEOUT_S = 36_000.0


@dataclass(eq=False)
class Attempt:
    """A claimed attempt."""

    claim: ClaimRecord
    is_clears_answer: bool = False
    is_published: bool = False
    """Accepted, and out: until then nobody saw a finished training."""
    success_at: int | None = None
    """When its driver wrote a success that no newer claim came before."""
    failure: FailureKind | None = None
    """Its driver's own word."""
    writer: DriverProcess | None = None
    """Of the manifest."""
    written_at: int = 0
    restored: str | None = None

    @property
    def rank(self) -> Rank:
        return self.claim.ref.rank


@dataclass(eq=False)
class Checkpoint:
    """A committed checkpoint."""

    progress: tuple[int, int, int]
    is_good: bool
    """Committed while no newer claim existed, by a loop that had not begun again."""
    damage: str = ""
    damaged_at: int = 0
    is_deleted: bool = False

    @property
    def is_usable(self) -> bool:
        return not self.damage and not self.is_deleted


@dataclass
class Truth:
    """Kept by the surroundings at each effect."""

    world: World
    attempts: dict[Rank, Attempt] = field(default_factory=dict)
    checkpoints: dict[tuple[int, str], Checkpoint] = field(default_factory=dict)
    """By generation and name."""
    violations: list[str] = field(default_factory=list)
    now: int = 0
    """Number of effects so far."""

    def broken(self, what: str) -> None:
        """Noted and not raised: the product would catch it."""
        self.violations.append(what)

    def newest(self) -> Attempt | None:
        return self.attempts[max(self.attempts)] if self.attempts else None

    def is_superseded(self, rank: Rank) -> bool:
        return any(other > rank for other in self.attempts)

    def of(self, generation: int, name: str) -> Checkpoint | None:
        """A checkpoint by its name, or by the name of a copy of it."""
        original = layout.copied_from(name)
        if original is not None:
            return self.of(generation, original)
        return self.checkpoints.get((generation, name))

    # --- the bucket --------------------------------------------------------------------------------------------------

    def read(self, process: Process | None, verb: str, key: str, result: Any) -> None:
        """Who saw what, and when."""
        if process is None:
            return
        self.now += 1
        if verb == "list_folder" and key == "owners/":
            process.seen["owner"] = len(result.objects)
        elif verb == "read" and key.startswith("owners/"):
            k = layout.parse_owner(key) or 0
            process.seen["owner"] = max(k, process.seen.get("owner", 0)) if result is not None else k - 1
        elif verb == "read" and key.endswith("/alive.json") and result is not None:
            driver = self.world.visible_driver(layout.parse_attempt(key))
            process.seen[key] = driver if driver is not None and driver.is_live else None
        elif verb == "head" and key.endswith(layout.MANIFEST):
            process.seen["looked"] = self.now

    def wrote(self, process: Process | None, key: str, body: bytes) -> None:
        """An object was written."""
        if process is None:
            return
        self.now += 1
        text = body.decode(errors="replace")
        if TOKEN in text or AWS_KEY in text:
            self.broken(f"G11 a secret stands in {key}")
        if isinstance(process.about, DriverProcess):
            self._wrote_as_driver(process, process.about, key, body)
        elif key.endswith("/claim.json"):
            self._claimed(process, ClaimRecord.parse(body, key=key))
        elif layout.parse_stop(key) is not None:
            self._stopped(process, layout.parse_stop(key) or 0, key)
        elif key.endswith("/collected.json"):
            self._collected(key, CollectedRecord.parse(body, key=key))

    def _claimed(self, process: Process, claim: ClaimRecord) -> None:
        run, newest = process.about, self.newest()
        assert isinstance(run, TryRun)
        made = Attempt(claim)
        if newest is not None and made.rank < newest.rank and not run.is_archived:
            self.broken(f"G1 {claim.ref} is claimed after {newest.claim.ref}")
        if claim.deadline != claim.created_at + timedelta(seconds=TIMEOUT_S):
            self.broken(f"G10 the deadline of {claim.ref} is {claim.deadline}, claimed at {claim.created_at}")
        if "is lost" in claim.intent and newest is not None:
            driver = process.seen.get(layout.alive(*newest.rank))
            if driver is not None and driver.is_live and driver is self.world.visible_driver(newest.rank):
                self.broken(f"G5 {newest.claim.ref} is called lost: its sign of life was read, the cluster knows it")
        made.is_clears_answer = self._answers(run, claim, newest)
        self.attempts[made.rank] = made
        self.world.before_claim[made.rank] = self.world.bucket.snapshot()

    def _answers(self, run: TryRun, claim: ClaimRecord, newest: Attempt | None) -> bool:
        """G9: a clear of a published training trains anew, any other restores; without one nothing begins anew."""
        airflow = self.world.airflow
        asked: Clear | None = run.clear if run.clear is airflow.clear else None
        is_anew = newest is not None and claim.generation > newest.claim.generation
        if asked is None and is_anew and not run.is_archived:
            self.broken(f"G9 {claim.ref} begins anew without a clear")
        if asked is not None and newest is not None and newest.rank == asked.rank and not run.is_archived:
            is_late_publication = newest.is_published and not asked.was_published
            if is_anew is not asked.was_published and not is_late_publication:
                self.broken(
                    f"G9 {claim.ref} answers a clear of {'a finished' if asked.was_published else 'an open'} one"
                )
        if asked is not None:
            airflow.clear = None
        return asked is not None

    def _stopped(self, process: Process, k: int, key: str) -> None:
        owners = sum(layout.parse_owner(name) is not None for name in self.world.bucket.names())
        seen = process.seen.get("owner", owners)
        if seen > k:
            self.broken(f"G4 {process.name} stops {key} as owner {k} although owner {seen} had come")

    def _collected(self, key: str, record: CollectedRecord) -> None:
        rank = layout.parse_attempt(key)
        assert rank is not None
        self.attempts[rank].is_published |= bool(record.published)
        driver = self.world.visible_driver(rank)
        is_given_up = record.outcome is not None and record.outcome.state is OutcomeState.FAILED
        has_stop = any(layout.parse_stop(name) for name in self.world.bucket.names() if _below(name, rank))
        if is_given_up and driver is not None and driver.is_live and not has_stop:
            self.broken(f"G5 {key} calls a training failed that goes on")

    # --- drivers -----------------------------------------------------------------------------------------------------

    def _wrote_as_driver(self, process: Process, driver: DriverProcess, key: str, body: bytes) -> None:
        rank = driver.spec.ref.rank
        owner = layout.parse_attempt(key)
        if (owner is not None and owner > rank) or key.startswith("owners/") or key.endswith("/claim.json"):
            self.broken(f"G12 {driver.name} writes {key}")
        attempt = self.attempts[rank]
        if key == layout.manifest(*rank):
            if attempt.writer not in (None, driver):
                self.broken(
                    f"G1 {driver.name} writes over the manifest of {attempt.writer.name if attempt.writer else ''}"
                )
            if attempt.writer is not driver:
                attempt.writer, attempt.written_at = driver, self.now
            self._committed(process, driver, parse_manifest(body, key=key).names)
        elif key == layout.outcome(*rank):
            record = OutcomeRecord.parse(body, key=key)
            attempt.failure = record.failure.kind if record.failure else None
            if driver.began_again and record.state is OutcomeState.SUCCESS:
                self.broken(f"G8 {driver.name} ends well although its loop began again")
            if record.restore_proven == "no" and not driver.began_again:
                self.broken(f"G8 {driver.name} is said to have begun again, and went on")
            if record.state is OutcomeState.SUCCESS and not self.is_superseded(rank):
                attempt.success_at = self.now

    def _committed(self, process: Process, driver: DriverProcess, names: tuple[str, ...]) -> None:
        generation, number = driver.spec.ref.rank
        for name in names:
            is_own = name.startswith(f"attempts/{number:06d}/checkpoint_")
            if is_own and (generation, name) not in self.checkpoints:
                progress = (generation, number, int(name[-6:]))
                is_good = not self.is_superseded(driver.spec.ref.rank) and not driver.began_again
                self.checkpoints[generation, name] = Checkpoint(progress, is_good)

    def is_known_window(self, process: Process, key: str) -> bool:
        """The open finding "twins" of docs/protocol-model.md: frozen between its last look and its first manifest."""
        driver = process.about
        if not isinstance(driver, DriverProcess) or key != layout.manifest(*driver.spec.ref.rank):
            return False
        attempt = self.attempts[driver.spec.ref.rank]
        return attempt.writer not in (None, driver) and process.seen.get("looked", 0) < attempt.written_at

    def deleted(self, process: Process | None, key: str) -> None:
        """G12: nothing that a newer attempt restored or lists. G8: nothing good by a loop that began again."""
        generation = layout.parse_generation(key)
        name = key.partition("/")[2].rpartition("/")[0]
        found = self.checkpoints.get((generation or 0, name))
        if process is None or found is None:
            return
        self.now += 1
        found.is_deleted = True
        if process.about.began_again and found.is_good:
            self.broken(f"G8 {process.name} deletes {name} although its loop began again")
        rank = process.about.spec.ref.rank
        for attempt in self.attempts.values():
            body = self.world.bucket.body(layout.manifest(*attempt.rank))
            is_torn = layout.manifest(*attempt.rank) in self.world.torn
            listed = parse_manifest(body, key="manifest").names if body and not is_torn else ()
            if attempt.rank > rank and attempt.rank[0] == generation and name in (attempt.restored, *listed):
                self.broken(f"G12 {process.name} deletes {name}, which {attempt.claim.ref} restored or lists")

    def begins_to_look(self, driver: DriverProcess, *, has_own: bool) -> None:
        """What it could restore now."""
        generation, number = driver.spec.ref.rank
        driver.known, driver.looked_at = {}, self.now
        banned = self._banned(driver.spec.ref)
        driver.known = {
            name: c
            for (g, name), c in self.checkpoints.items()
            if g == generation and c.is_good and c.is_usable and name not in banned
            if c.progress[1] < number + has_own
        }

    def _banned(self, ref: AttemptRef) -> frozenset[str]:
        prefix = f"{layout.generation(ref.generation)}/quarantine/"
        keys = [key for key in self.world.bucket.names() if key.startswith(prefix)]
        records = [QuarantineRecord.parse(self.world.bucket.body(key) or b"", key=key) for key in keys]
        return quarantine_for(ref.attempt, records).banned

    def resolved(self, driver: DriverProcess, found: Resolved | Exception) -> None:
        """G2, G3 and G9 of what a driver is about to restore."""
        generation, rank = driver.spec.ref.generation, driver.spec.ref.rank
        if self.is_superseded(rank) or self.attempts[rank].writer not in (None, driver):
            return
        usable = {name: c.progress for name, c in driver.known.items() if c.is_usable}
        best = max(usable, key=lambda name: usable[name], default=None)
        if isinstance(found, Exception):
            if isinstance(found, NoUsableCheckpoint) and best is not None:
                self.broken(f"G2 {driver.name} refuses although {best} could be restored: {found}")
            return
        chosen = self.of(generation, found.checkpoint) if found.checkpoint else None
        if best is not None and (chosen is None or chosen.progress < usable[best]):
            self.broken(f"G2 {driver.name} ignores {best} and restores {found.checkpoint}: {found.point.reason}")
        is_copy = layout.copied_from(found.checkpoint or "") is not None
        if chosen is not None and chosen.damage and chosen.damaged_at < driver.looked_at and not is_copy:
            self.broken(f"G3 {driver.name} restores {found.checkpoint}, which is {chosen.damage}")
        self.attempts[rank].restored = found.checkpoint
        for earlier in self.attempts.values():
            since = [a for a in self.attempts.values() if earlier.rank < a.rank <= rank]
            is_over = earlier.success_at is not None and earlier.success_at < driver.started_at
            if is_over and since and not any(a.is_clears_answer for a in since):
                self.broken(f"G9 {driver.name} trains although {earlier.claim.ref} had finished and nobody cleared it")

    # --- Airflow -----------------------------------------------------------------------------------------------------

    def waits(self, name: str, ref: AttemptRef, deadline: datetime | None) -> None:
        """G10: a wait never gets more time than its attempt's claim gave."""
        claim = self.attempts[ref.rank].claim
        if deadline != claim.deadline:
            self.broken(f"G10 {name} waits for {ref} until {deadline}, not {claim.deadline}")

    def pushed(self, run: TryRun, what: str) -> None:
        if run.is_archived and not run.confirmed and not run.is_weak:
            self.broken(f"G1 {run.name} publishes {what} although Airflow has replaced it")

    def published(self, run: TryRun, result: Any) -> None:
        self.pushed(run, "its result")
        newest = self.newest()
        is_old = run.clear is not None and newest is not None and newest.rank == run.clear.rank
        if is_old and run.clear is not None and run.clear.was_published and not run.is_archived:
            self.broken(f"G9 {run.name} answers a clear with the old result")

    def failed(self, run: TryRun, process: Process, *, is_current: bool, is_retried: bool) -> None:
        """G4, G5 and G6 of how a try failed."""
        kind, newest = kind_of(process.error), self.newest()
        if kind is FailureKind.USER and is_retried:
            self.broken(f"G6 {run.name} is retried after a user error: {process.error}")
        if not is_current:
            return
        if kind is FailureKind.SUPERSEDED:
            self.broken(f"liveness: {run.name}, Airflow's current one, gives up: {process.error}")
        if kind is FailureKind.STOPPED and not self.world.has_outside_stop:
            self.broken(f"G4 {run.name} fails for good because a stop of ours hit its job: {process.error}")
        driver = self.world.visible_driver(newest.rank) if newest else None
        is_unreachable = self.world.cluster.silence is not None and driver is not None and driver.is_live
        if is_unreachable and not is_retried and not self.world.torn:
            self.broken(f"G5 {run.name} fails for good while the cluster is silent and trains: {process.error}")


def _below(key: str, rank: Rank) -> bool:
    return key.startswith(f"{layout.attempt(*rank)}/")
