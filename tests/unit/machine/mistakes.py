"""Seeded mistakes: each breaks one rule of the product in the machine's world, and the machine must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_provider.core import classify, decision, failure
from airflow_provider.core.errors import RecordUnreadable, StoreUnreachable
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.fit_rules import RestoreProof
from airflow_provider.core.records import StopRecord
from airflow_provider.core.restore import Verdict
from airflow_provider.hooks import stop
from airflow_provider.hooks.stop import StopResult
from airflow_provider.operators import collecting
from airflow_provider.operators.training_try import TrainingTry
from airflow_provider.runtime import fit_loop, restoring, scribe
from airflow_provider.runtime.standing import Standing
from airflow_provider.triggers import ray_train as trigger_module
from tests.support.experiment import NOW
from tests.unit.machine import drivers, stages
from tests.unit.machine.world import World


@dataclass(frozen=True)
class Mistake:
    """One rule broken on purpose."""

    name: str
    seed: Callable[[World], None]
    finds: str
    """How what the machine says about it begins; one of several, by `|`."""
    stage: Callable[[World], None]
    """Where its stories begin."""
    kinds: tuple[str, ...] = ()
    """What may happen in them beside the course of things."""


def stop_without_owner_check(world: World) -> None:
    def record_stop(records: Any, *, ref: Any, k: int, reason: str) -> StopResult:
        records.create_stop(ref, record=StopRecord(k=k, reason=reason, created_at=NOW))
        return StopResult(is_sent=True, reason=reason)

    world.patches.setattr(stop, "record_stop", record_stop)
    world.patches.setattr(trigger_module, "record_stop", record_stop)


def manifest_read_before_the_claim(world: World) -> None:
    """The driver gets what the bucket held when its attempt was about to be claimed."""
    real = fit_loop.read_attempts

    def read_attempts(store: Any, ref: Any, **fields: Any) -> Any:
        now, world.bucket._objects = world.bucket._objects, dict(world.before_claim[ref.rank])
        current, world.scheduler.current = world.scheduler.current, None  # reads of the past are no steps
        try:
            return restoring.read_attempts(store, ref, **fields)
        finally:
            world.bucket._objects, world.scheduler.current = now, current

    def looking(store: Any, ref: Any, **fields: Any) -> Any:
        real(store, ref, **fields)  # for the world's own notes
        return read_attempts(store, ref, **fields)

    world.patches.setattr(fit_loop, "read_attempts", looking)


def no_second_look_at_the_job(world: World) -> None:
    """A job that was unknown before its traces were read is judged by the first answer."""
    real_sight, real_read = TrainingTry.sight, TrainingTry.read_newest
    answers: dict[TrainingTry, dict[str, Any]] = {}

    def sight(self: TrainingTry, job_id: str) -> Any:
        known = answers.get(self)
        if known is None:
            return real_sight(self, job_id)
        if job_id not in known:
            known[job_id] = real_sight(self, job_id)
        return known[job_id]

    class Once(TrainingTry):
        __hash__ = object.__hash__

        def sight(self, job_id: str) -> Any:
            return sight(self, job_id)

        def read_newest(self) -> Any:
            answers[self] = {}
            try:
                return real_read(self)
            finally:
                del answers[self]

    from airflow_provider.operators import session

    world.patches.setattr(
        session, "TrainingTry", lambda **fields: Once(**fields, now=world.clocks.airflow, sleep=world.sleep)
    )


def unreadable_is_missing(world: World) -> None:
    """What could not be read was never written."""
    real = fit_loop.read_attempts

    def read_attempts(*args: Any, **fields: Any) -> Any:
        try:
            return real(*args, **fields)
        except (RecordUnreadable, StoreUnreachable):
            return []

    world.patches.setattr(fit_loop, "read_attempts", read_attempts)


def restores_the_unverified(world: World) -> None:
    world.patches.setattr(restoring, "verify", lambda *_: Verdict(is_usable=True, why="nobody looked"))


def attaching_extends_the_deadline(world: World) -> None:
    real = TrainingTry._submitted

    def submitted(self: TrainingTry, decision: Any, claim: Any) -> Any:
        later = self.now() + timedelta(seconds=self.request.timeout_s or 0)
        return real(self, decision, claim.model_copy(update={"deadline": later}))

    world.patches.setattr(TrainingTry, "_submitted", submitted)


def user_errors_are_retried(world: World) -> None:
    world.patches.setattr(failure, "_FINAL_KINDS", failure._FINAL_KINDS - {FailureKind.USER})


def secrets_are_repeated(world: World) -> None:
    world.patches.setattr(classify, "redact", lambda text: text)


def restores_are_not_proven(world: World) -> None:
    proof = RestoreProof("yes", "nobody looked", is_declared=True)
    world.patches.setattr(scribe, "prove_restore", lambda *_, **__: proof)


def retention_does_not_wait(world: World) -> None:
    world.patches.setattr(drivers, "is_held", lambda *_: False)


def drivers_look_for_no_newer_claim(world: World) -> None:
    world.patches.setattr(Standing, "newer_claim", lambda _: None)


def lineage_by_records_alone(world: World) -> None:
    """What a killed driver had committed and not recorded is forgotten."""
    world.patches.setattr(collecting, "read_manifest", lambda *_, **__: None)


def a_clear_is_taken_for_a_retry(world: World) -> None:
    world.patches.setattr(decision, "detect_clear", lambda *_, **__: decision.Clear(is_clear=False))


def deletions_ask_for_no_newer_claim(world: World) -> None:
    """The fence lets a driver delete that a newer attempt has superseded, and its polls come too late."""
    world.patches.setattr(drivers.SteppedRay, "_ask", lambda _: None)


MISTAKES = [
    Mistake("drivers look for no newer claim", drivers_look_for_no_newer_claim, "G1", stages.overlapping),
    Mistake("stop without owner check", stop_without_owner_check, "G4", stages.training, ("airflow", "people")),
    Mistake(
        "manifest read before the claim", manifest_read_before_the_claim, "G2", stages.training, ("airflow", "people")
    ),
    Mistake("no second look at the job", no_second_look_at_the_job, "G5", stages.late_post),
    Mistake("unreadable is missing", unreadable_is_missing, "G2", stages.restoring, ("faults",)),
    Mistake("restores the unverified", restores_the_unverified, "G3", stages.dead_driver, ("breaks", "airflow")),
    Mistake("attaching extends the deadline", attaching_extends_the_deadline, "G10", stages.training, ("people",)),
    Mistake("user errors are retried", user_errors_are_retried, "G6", stages.training, ("airflow",)),
    Mistake("restores are not proven", restores_are_not_proven, "G8", stages.going_on),
    Mistake("retention does not wait for the proof", retention_does_not_wait, "G8 .* deletes", stages.going_on),
    Mistake("lineage by records alone", lineage_by_records_alone, "G7", stages.dead_driver, ("people",)),
    Mistake("a clear is taken for a retry", a_clear_is_taken_for_a_retry, "G9", stages.finished, ("people",)),
    Mistake("secrets are repeated", secrets_are_repeated, "G11", stages.training, ("airflow",)),
    Mistake("deletions ask for no newer claim", deletions_ask_for_no_newer_claim, "G12 .* deletes", stages.overlapping),
]
