"""Goodput: how much of a training's time ended in its result, and what the rest was lost to. Pure, from the records.

`docs/goodput.md` says what each cause means. Every second between a try's beginning and the training's end is productive or
has exactly one cause; what nobody waited for (the time after a success, or until a person cleared the task) is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from airflow_provider.core.attempt_time import AttemptTime, Cause, Stretch, attempt_times
from airflow_provider.core.lineage import ExperimentFacts
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import OwnerRecord

__all__ = [
    "AttemptGoodput",
    "Cause",
    "Goodput",
    "TimeSpent",
    "TryGoodput",
    "combined",
    "goodput",
    "goodput_sentence",
    "goodput_xcom",
    "in_words",
]


def _nothing() -> dict[Cause, float]:
    return dict.fromkeys(Cause, 0.0)


@dataclass(frozen=True)
class TimeSpent:
    """Seconds by what they went into: `productive_s` and all of `lost_s` together are `wall_s`."""

    wall_s: float = 0.0
    productive_s: float = 0.0
    lost_s: Mapping[Cause, float] = field(default_factory=_nothing)
    """By cause; each cause has an entry."""

    @property
    def fraction(self) -> float | None:
        """Productive seconds of all, from 0 to 1; None where no time has passed."""
        return self.productive_s / self.wall_s if self.wall_s > 0 else None

    @property
    def unaccounted_s(self) -> float:
        """Seconds of which the records don't say whether they were productive: the fraction may be better by these."""
        return self.lost_s[Cause.UNACCOUNTED]

    def __add__(self, other: TimeSpent) -> TimeSpent:
        """Both together."""
        return TimeSpent(
            self.wall_s + other.wall_s,
            self.productive_s + other.productive_s,
            {cause: self.lost_s[cause] + other.lost_s[cause] for cause in Cause},
        )


@dataclass(frozen=True)
class AttemptGoodput:
    """One attempt, from the beginning of the try that claimed it to the next attempt's beginning, or its end."""

    ref: AttemptRef
    spent: TimeSpent
    is_running: bool
    """Measured up to now; its training since the last checkpoint counts as productive until it is lost."""


@dataclass(frozen=True)
class TryGoodput:
    """One owner of the experiment that is a try: what it waited through, a failure before it included."""

    k: int
    try_number: int
    run_id: str
    acted_on: AttemptRef | None
    """The attempt that it claimed or followed last; None: it died before that."""
    spent: TimeSpent


@dataclass(frozen=True)
class Goodput:
    """The goodput of one experiment, which is one task instance of a DAG run with all its tries."""

    experiment: str
    total: TimeSpent
    attempts: tuple[AttemptGoodput, ...]
    """By rank."""
    tries: tuple[TryGoodput, ...]
    """By owner number; a stop by hand is none."""

    def of_try(self, k: int) -> TimeSpent:
        """What owner `k` waited through; nothing where it is unknown."""
        return next((one.spent for one in self.tries if one.k == k), TimeSpent())

    def collected_by(self, k: int) -> TimeSpent:
        """The same, and that of the tries right before it which followed the same attempt and died before it was over."""
        tries = [one for one in self.tries if one.k <= k]
        spent = self.of_try(k)
        for one in reversed(tries[:-1] if tries and tries[-1].k == k else []):
            if one.acted_on is not None and one.acted_on != tries[-1].acted_on:
                break
            spent += one.spent
        return spent


def goodput(facts: ExperimentFacts, *, now: datetime) -> Goodput:
    """Account for all the time of an experiment. A training that still runs is measured up to `now`.

    Clocks of drivers and workers may differ: no part is ever negative, and the parts are the whole.
    """
    times = attempt_times(facts, now=now)
    attempts = tuple(AttemptGoodput(t.ref, _spent(t.stretches), t.is_running) for t in times)
    stretches = [stretch for time in times for stretch in time.stretches]
    owners = sorted((o for o in facts.owners if not o.final), key=lambda owner: owner.k)
    shares = _shares(stretches, _try_starts(owners, times))
    claimed = {a.claim.k: a.claim.ref for a in facts.attempts}
    tries = tuple(
        TryGoodput(o.k, o.try_number, o.run_id, o.acted_on or claimed.get(o.k), _spent(share))
        for o, share in zip(owners, shares, strict=True)
    )
    return Goodput(facts.uri, _spent(stretches), attempts, tries)


def combined(goodputs: Iterable[Goodput]) -> TimeSpent:
    """The trainings of a DAG run together, for example all indexes of a mapped task: their seconds are added."""
    total = TimeSpent()
    for one in goodputs:
        total += one.total
    return total


def _spent(stretches: Iterable[Stretch]) -> TimeSpent:
    sums: dict[Cause | None, timedelta] = dict.fromkeys((None, *Cause), timedelta())
    for stretch in stretches:
        sums[stretch.cause] += stretch.end - stretch.start
    seconds = {cause: duration.total_seconds() for cause, duration in sums.items()}
    lost = {cause: seconds[cause] for cause in Cause}
    return TimeSpent(sum(sums.values(), timedelta()).total_seconds(), seconds[None], lost)


def _try_starts(owners: Sequence[OwnerRecord], times: Sequence[AttemptTime]) -> list[datetime]:
    """Where each try's share begins: as it owned; or, since it waited for that, as the attempt before it was over."""
    starts: list[datetime] = []
    owned_before: datetime | None = None
    for owner in owners:
        at = max([owner.created_at, *starts[-1:]])
        before = [t for t in times if t.stretches and t.stretches[0].start < at]
        over_at = before[-1].over_at if before else None
        is_its_wait = over_at is not None and over_at <= at and (owned_before is None or over_at >= owned_before)
        starts.append(max([over_at, *starts[-1:]]) if over_at is not None and is_its_wait else at)
        owned_before = at
    return starts


def _shares(stretches: Sequence[Stretch], starts: Sequence[datetime]) -> list[list[Stretch]]:
    """The stretches cut where tries begin. What lies before the first one is the first one's."""
    shares: list[list[Stretch]] = [[] for _ in starts]
    number = 0
    for stretch in stretches if starts else ():
        at = stretch.start
        while number + 1 < len(starts) and starts[number + 1] < stretch.end:
            if starts[number + 1] > at:
                shares[number].append(Stretch(at, starts[number + 1], stretch.cause))
                at = starts[number + 1]
            number += 1
        shares[number].append(Stretch(at, stretch.end, stretch.cause))
    return shares


# --- shown -------------------------------------------------------------------------------------------------------------


def goodput_xcom(spent: TimeSpent) -> dict[str, Any]:
    """For XCom: the fraction with four digits, seconds with one; causes that cost nothing are there too, as 0."""
    return {
        "fraction": None if spent.fraction is None else round(spent.fraction, 4),
        "wall_s": round(spent.wall_s, 1),
        "productive_s": round(spent.productive_s, 1),
        "lost_s": {cause.value: round(spent.lost_s[cause], 1) for cause in Cause},
    }


def goodput_sentence(spent: TimeSpent) -> str:
    """One sentence for people, the greatest loss first: `goodput 82% of 1 h 10 min: 57 min 12 s productive; lost: ...`."""
    if spent.fraction is None:
        return "goodput: no time has passed"
    lost = sorted(((s, c) for c, s in spent.lost_s.items() if s >= 0.5), key=lambda item: -item[0])
    parts = ", ".join(f"{in_words(seconds)} {cause.value.replace('_', '-')}" for seconds, cause in lost)
    return (
        f"goodput {spent.fraction:.0%} of {in_words(spent.wall_s)}: {in_words(spent.productive_s)} productive; "
        f"lost: {parts or 'nothing'}"
    )


def in_words(seconds: float) -> str:
    """A duration by its two greatest units: `42 s`, `3 min 20 s`, `1 h 10 min`, `2 d 3 h`."""
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"
