"""Where the time of an experiment went: stretches of each attempt, without gaps or overlaps, each with one cause."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import pairwise

from airflow_provider.core import layout
from airflow_provider.core.decision import FRESH_ALIVE_S
from airflow_provider.core.driver_marks import DriverMarks, driver_marks
from airflow_provider.core.lineage import AttemptRecords, ExperimentFacts
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import OutcomeState, OwnerRecord, Phase


class Cause(str, Enum):
    """Why time was not productive."""

    DETECTION = "detection"
    """From a failure, or the last sign of life, until somebody acted on it."""
    RETRYING = "retrying"
    """Between Airflow's tries: `retry_delay`, and Airflow's own scheduling."""
    QUEUEING = "queueing"
    """From a try's beginning to the driver's first record: decision, upload, POST, the job pending."""
    START_UP = "start_up"
    """The driver from its start to the worker group's: imports, the restore point, connecting to Ray."""
    WAITING = "waiting"
    """Waiting for nodes, and starting workers on them."""
    REWORK = "rework"
    """Training whose result was lost, since no checkpoint was committed after it or none of its checkpoints was restored."""
    UNACCOUNTED = "unaccounted"
    """The records can't tell: of an older release, or what a killed driver could not write."""


_CAUSES: Mapping[Phase, Cause] = {
    Phase.STARTING: Cause.START_UP,
    Phase.RESTORING: Cause.START_UP,
    Phase.WAITING: Cause.WAITING,
    Phase.LOST: Cause.DETECTION,
    Phase.FINISHING: Cause.DETECTION,
}


@dataclass(frozen=True)
class Stretch:
    """A piece of time with one use."""

    start: datetime
    end: datetime
    cause: Cause | None
    """None: productive."""


@dataclass(frozen=True)
class AttemptTime:
    """The stretches of one attempt: they follow one another, and the next attempt's begin at or after their end."""

    ref: AttemptRef
    stretches: tuple[Stretch, ...]
    over_at: datetime | None
    """When it was over as far as anybody knew then; None while it runs."""
    is_running: bool


def attempt_times(facts: ExperimentFacts, *, now: datetime) -> tuple[AttemptTime, ...]:
    """The stretches of all attempts. Linear in the number of checkpoints but for sorting them."""
    owners = {owner.k: owner for owner in facts.owners}
    marks = [_marks(facts.attempts, number, now=now) for number in range(len(facts.attempts))]
    kept = _kept_until(facts.attempts, marks)
    found: list[AttemptTime] = []
    start: datetime | None = None
    for number, attempt in enumerate(facts.attempts):
        later = facts.attempts[number + 1] if number + 1 < len(facts.attempts) else None
        begin = start or _begin(attempt, owners, not_before=None)
        over_at = _over_at(attempt, marks[number])
        start = _begin(later, owners, not_before=max(begin, over_at)) if later else None
        account = _Account(begin, max(begin, start or _last_moment(attempt, facts, over_at, now=now)))
        is_running = later is None and _is_running(attempt, marks[number], now=now)
        _fill(account, attempt, marks[number], kept=kept[number], is_running=is_running)
        if later is None and attempt.final_outcome is None:
            account.until(account.limit, Cause.DETECTION if marks[number].last_sign else Cause.QUEUEING)
        elif later is not None and _is_waited_for(attempt, later, owners):
            account.until(account.limit, _gap_cause(attempt, marks[number]))
        found.append(AttemptTime(attempt.claim.ref, account.closed(), None if is_running else over_at, is_running))
    return tuple(found)


class _Account:
    """Stretches one after another, within limits: a time that lies before the last one adds nothing."""

    def __init__(self, start: datetime, limit: datetime) -> None:
        self.limit, self._at = limit, start
        self._stretches: list[Stretch] = []

    def until(self, at: datetime, cause: Cause | None) -> None:
        """What happened from the end of the last stretch to `at`."""
        at = min(at, self.limit)
        if at > self._at:
            last = self._stretches[-1] if self._stretches else None
            if last is not None and last.cause is cause:
                self._stretches[-1] = Stretch(last.start, at, cause)
            else:
                self._stretches.append(Stretch(self._at, at, cause))
            self._at = at

    def closed(self) -> tuple[Stretch, ...]:
        """All of them."""
        return tuple(self._stretches)


# --- when an attempt begins and ends -----------------------------------------------------------------------------------


def _marks(attempts: Sequence[AttemptRecords], number: int, *, now: datetime) -> DriverMarks:
    attempt = attempts[number]
    ends = [now]
    if attempt.outcome is not None and number + 1 < len(attempts):
        ends.append(attempts[number + 1].claim.created_at)
    collected = attempt.collected
    if collected is not None and (attempt.outcome is None) is (collected.outcome is not None):
        ends.append(collected.written_at)
    return driver_marks(attempt, not_before=attempt.claim.created_at, not_after=min(ends))


def _begin(attempt: AttemptRecords, owners: Mapping[int, OwnerRecord], *, not_before: datetime | None) -> datetime:
    """The try that claimed it began to work for it as soon as nothing else was there to wait for."""
    owner, claimed_at = owners.get(attempt.claim.k), attempt.claim.created_at
    at = min(owner.created_at, claimed_at) if owner else claimed_at
    if not_before is None:
        return at
    # An owner may have followed the attempt before for hours: that time is not this one's.
    return max(at, min(not_before, claimed_at))


def _over_at(attempt: AttemptRecords, marks: DriverMarks) -> datetime:
    """When somebody knew that it was over: its driver, or who collected it; else its last sign of life."""
    if marks.finished_at is not None:
        return marks.finished_at
    collected = attempt.collected
    if collected is not None and attempt.final_outcome is not None:
        return max(collected.written_at, marks.last_sign or collected.written_at)
    return marks.last_sign or attempt.claim.created_at


def _last_moment(attempt: AttemptRecords, facts: ExperimentFacts, over_at: datetime, *, now: datetime) -> datetime:
    """The end of the newest attempt's account: nobody waits for one that is over, given up, or ended by a person for good."""
    if attempt.final_outcome is not None or any(o.gave_up and o.k >= attempt.claim.k for o in facts.owners):
        return over_at
    finals = [o.created_at for o in facts.owners if o.final and o.k > attempt.claim.k]
    return max(over_at, min([now, *finals]))


def _is_running(attempt: AttemptRecords, marks: DriverMarks, *, now: datetime) -> bool:
    alive = attempt.alive
    if attempt.final_outcome is not None or alive is None:
        return False
    age_s = attempt.alive_age_s
    if age_s is None:
        age_s = (now - alive.written_at - marks.shift).total_seconds()
    return age_s < FRESH_ALIVE_S


def _is_waited_for(attempt: AttemptRecords, later: AttemptRecords, owners: Mapping[int, OwnerRecord]) -> bool:
    """Whether the time between two attempts counts: not after a success, and not until a person cleared the task."""
    if _is_success(attempt):
        return False
    if later.claim.generation != attempt.claim.generation or later.claim.answers_clear:
        return False
    if later.claim.answers_clear is False:
        return True
    before, after = owners.get(attempt.claim.k), owners.get(later.claim.k)  # of a release that did not say
    if before is None or after is None:
        return True
    is_same_run = before.dag_run_identity == after.dag_run_identity and before.max_tries == after.max_tries
    return is_same_run and (after.try_number > before.try_number or after.k == before.k)


def _is_success(attempt: AttemptRecords) -> bool:
    outcome = attempt.final_outcome
    return outcome is not None and outcome.state is OutcomeState.SUCCESS


def _gap_cause(attempt: AttemptRecords, marks: DriverMarks) -> Cause:
    if attempt.final_outcome is not None:
        return Cause.RETRYING
    return Cause.DETECTION if marks.last_sign else Cause.UNACCOUNTED


# --- what an attempt did -----------------------------------------------------------------------------------------------


@dataclass
class _Visit:
    """One visit of a phase. Training is kept up to `secured`, and what `kept` leaves of that."""

    phase: Phase | None
    start: datetime
    end: datetime
    secured: datetime | None = None
    kept: datetime | None = None
    rest: Cause = Cause.REWORK


def _fill(
    account: _Account, attempt: AttemptRecords, marks: DriverMarks, *, kept: datetime | None, is_running: bool
) -> None:
    is_over, is_success = attempt.final_outcome is not None, _is_success(attempt)
    if not marks.phases:
        if is_over:
            account.until(_over_at(attempt, marks), Cause.QUEUEING)
        return
    end = account.limit if is_running else marks.finished_at or marks.last_sign or account.limit
    visits = _visits(marks, end=end, kept=kept, is_kept_to_end=is_success or is_running)
    account.until(visits[0].start, Cause.QUEUEING)
    for visit in visits:
        _account_for(account, visit, is_success=is_success and visit is visits[-1])
    if is_over:
        account.until(_over_at(attempt, marks), Cause.DETECTION)


def _account_for(account: _Account, visit: _Visit, *, is_success: bool) -> None:
    if visit.phase is Phase.TRAINING:
        secured = visit.secured or visit.start
        account.until(min(secured, visit.kept or secured), None)
        account.until(secured, Cause.REWORK)
        account.until(visit.end, visit.rest)
    elif visit.phase is Phase.FINISHING and is_success:
        account.until(visit.end, None)
    else:
        account.until(visit.end, _CAUSES[visit.phase] if visit.phase is not None else Cause.UNACCOUNTED)


def _visits(marks: DriverMarks, *, end: datetime, kept: datetime | None, is_kept_to_end: bool) -> list[_Visit]:
    found = [_Visit(phase, at, following[1], kept=kept) for (phase, at), following in pairwise(marks.phases)]
    found.append(_Visit(*marks.phases[-1], max(end, marks.phases[-1][1]), kept=kept))
    training = [visit for visit in found if visit.phase is Phase.TRAINING]
    times = list(marks.commits.values())
    for number, visit in enumerate(training):
        before = training[number + 1].start if number + 1 < len(training) else None
        place = len(times) if before is None else bisect_right(times, before)
        last = times[place - 1] if place else None
        visit.secured = min(last, visit.end) if last is not None and last >= visit.start else visit.start
    for at, base in marks.steps_back:
        for visit in reversed([v for v in training if v.end <= at]):
            kept = visit.start if base is None else base
            if visit.end <= kept:
                break
            visit.kept = min(visit.kept or kept, kept)
    if training:
        last_one = training[-1]
        is_to_the_end = all(v.phase is Phase.FINISHING for v in found[found.index(last_one) + 1 :])
        if is_kept_to_end and is_to_the_end:
            last_one.secured = last_one.end
        elif marks.has_untimed:
            last_one.rest = Cause.UNACCOUNTED
    return found


# --- whose training is in the newest checkpoint ------------------------------------------------------------------------


def _kept_until(attempts: Sequence[AttemptRecords], marks: Sequence[DriverMarks]) -> list[datetime | None]:
    """For each attempt, up to when later ones built on its training; None: on all that it committed.

    Follows what was restored back from the newest attempt of each generation: what none of these stands on was trained in
    vain. A success never was: somebody has its result.
    """
    kept: list[datetime | None] = [None] * len(attempts)
    made_by = _made_by(attempts, marks)
    base = -1
    """The attempt on which the ones after it stand."""
    for number in reversed(range(len(attempts))):
        attempt = attempts[number]
        if number + 1 == len(attempts) or attempts[number + 1].claim.generation != attempt.claim.generation:
            base = number  # the newest of its generation stands for itself
        if number > base:
            kept[number] = attempt.claim.created_at
            continue
        restored = attempt.restored
        if restored is None:
            base = number - 1  # it never began to train
        elif restored.checkpoint is None:
            base = -1
        else:
            name = layout.copied_from(restored.checkpoint) or restored.checkpoint
            base = min(made_by.get((attempt.claim.generation, name), number - 1), number - 1)
            if base >= 0:
                kept[base] = marks[base].commits.get(name)
    return [None if _is_success(a) else at for a, at in zip(attempts, kept, strict=True)]


def _made_by(attempts: Sequence[AttemptRecords], marks: Sequence[DriverMarks]) -> dict[tuple[int, str], int]:
    """Which attempt committed a checkpoint of a generation: the first one that knows it."""
    found: dict[tuple[int, str], int] = {}
    for number, attempt in enumerate(attempts):
        for name in (*(e.checkpoint for s in attempt.segments for e in s.checkpoints), *marks[number].commits):
            found.setdefault((attempt.claim.generation, name), number)
    return found
