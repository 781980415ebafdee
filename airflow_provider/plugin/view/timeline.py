"""The timeline: tries as Airflow saw them, attempts as their drivers recorded them, on one axis of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from airflow_provider.core.lineage import AttemptRecords, LineageAttempt
from airflow_provider.plugin.view import words
from airflow_provider.plugin.view.attempts import state_of
from airflow_provider.plugin.view.facts import Recorded, Seen

MAX_BARS = 200
"""Bars of a lane; more would be thinner than a pixel."""
_MARK_WIDTH = 1.0
"""Per cent of the axis: marks that are nearer to one another can't be told apart."""
MAX_TRIES = 25
_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)
_MAX_TICKS = 7
_OPEN_TRY = frozenset({"running", "deferred", "restarting"})


@dataclass(frozen=True)
class Period:
    """Something that lasted."""

    phase: str
    start: datetime
    end: datetime


@dataclass(frozen=True)
class Bar:
    """A period as it is drawn; `x` and `width` are per cent of the axis."""

    phase: str
    x: float
    width: float
    title: str


@dataclass(frozen=True)
class Mark:
    """A moment, such as a failure."""

    kind: str
    x: float
    title: str
    number: int = 1
    """How many failures it stands for."""


@dataclass(frozen=True)
class Lane:
    """One try or attempt."""

    kind: str
    label: str
    state: str
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    summary: str
    """In words, for those who don't see it."""


@dataclass(frozen=True)
class Tick:
    """A time on the axis."""

    x: float
    at: datetime
    label: str
    is_date_shown: bool


@dataclass(frozen=True)
class Timeline:
    """All of it."""

    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    start: datetime
    end: datetime
    phases: tuple[str, ...]
    """Those that occur, for the legend."""


def build_timeline(recorded: Recorded, seen: Seen, shown: Sequence[LineageAttempt]) -> Timeline | None:
    """The tries and the attempts `shown` (those of one page); None while nothing has a time."""
    records = {str(a.claim.ref): a for a in seen.facts.attempts} if seen.facts else {}
    horizon = _horizon(recorded, seen)
    if horizon is None:
        return None
    attempts = [(a, _periods(a, records.get(a.ref), seen, horizon=horizon)) for a in shown]
    is_newest_page = not seen.lineage.attempts or (bool(shown) and shown[-1] == seen.lineage.attempts[-1])
    tries = _tries(recorded, horizon=horizon) if is_newest_page else []
    spans = [p for _, periods in [*tries, *((a.ref, ps) for a, ps in attempts)] for p in periods]
    if not spans:
        return None
    axis = Axis(min(p.start for p in spans), max(p.end for p in spans))
    lanes = [_lane(axis, label, periods, kind="try", state=state) for (label, state), periods in tries]
    for a, periods in attempts:
        marks = _failures(axis, a, records.get(a.ref))
        lanes.append(_lane(axis, f"Attempt {a.ref}", periods, kind="attempt", state=_state(a, seen), marks=marks))
    phases = dict.fromkeys(p.phase for _, periods in attempts for p in periods)
    return Timeline(tuple(lanes), axis.ticks(), axis.start, axis.end, tuple(phases))


@dataclass(frozen=True)
class Axis:
    """Maps times to per cent."""

    start: datetime
    end: datetime

    def x(self, at: datetime) -> float:
        """Per cent from the left; what lies outside is moved to the edge."""
        whole = (self.end - self.start).total_seconds() or 1.0
        return min(100.0, max(0.0, (at - self.start).total_seconds() / whole * 100))

    def ticks(self) -> tuple[Tick, ...]:
        """Round times, at most seven."""
        whole = (self.end - self.start).total_seconds()
        step = next((s for s in _STEPS_S if whole / s <= _MAX_TICKS), whole / _MAX_TICKS)
        first = -(-self.start.timestamp() // step) * step
        num = int(max(0.0, self.end.timestamp() - first) // step) + 1
        is_date_shown = whole > 86_400
        ticks = []
        for i in range(min(num, _MAX_TICKS + 1)):
            at = datetime.fromtimestamp(first + i * step, timezone.utc)
            if self.start <= at <= self.end:
                text = f"{at:%m-%d %H:%M}" if is_date_shown else f"{at:%H:%M:%S}" if step < 60 else f"{at:%H:%M}"
                ticks.append(Tick(self.x(at), at, text, is_date_shown))
        return tuple(ticks)


def _horizon(recorded: Recorded, seen: Seen) -> datetime | None:
    """The newest time that anything is known of: what is still open is drawn up to there."""
    times = [t for one in recorded.tries for t in (one.queued_at, one.started_at, one.ended_at) if t]
    times += [t for a in seen.lineage.attempts for t in (a.claimed_at, a.finished_at) if t]
    times += [c.reported_at for c in seen.lineage.checkpoints[-1:] if c.reported_at]
    times += [seen.alive.written_at] if seen.alive else []
    if times and recorded.is_live:
        times.append(seen.as_of)
    return max(times, default=None)


def _tries(recorded: Recorded, *, horizon: datetime) -> list[tuple[tuple[str, str], list[Period]]]:
    found = []
    for one in recorded.tries[-MAX_TRIES:]:
        end = one.ended_at or (horizon if one.state in _OPEN_TRY else one.started_at)
        periods = []
        if one.queued_at and one.started_at and one.queued_at < one.started_at:
            periods.append(Period("queued", one.queued_at, one.started_at))
        if one.started_at and end:
            periods.append(Period(one.state or "none", one.started_at, max(end, one.started_at)))
        found.append(((f"Try {one.number}", one.state or "none"), periods))
    return found


def _periods(attempt: LineageAttempt, records: AttemptRecords | None, seen: Seen, *, horizon: datetime) -> list[Period]:
    """What an attempt did and when: the phases that its driver recorded, and before them the wait for a driver."""
    is_open = attempt == seen.lineage.attempts[-1] and attempt.finished_at is None
    end = max(attempt.finished_at or _end_without_outcome(attempt, seen, horizon=horizon), attempt.claimed_at)
    entered = _phases(attempt, records)
    if seen.alive and is_open and (not entered or seen.alive.phase_since > entered[-1][1]):
        entered.append((seen.alive.phase.value, seen.alive.phase_since))
    # Clocks of Airflow and of drivers differ: nothing begins before the claim, or ends after the end.
    steps = [("pending", attempt.claimed_at), *entered]
    times = [min(max(at, attempt.claimed_at), end) for _, at in steps] + [end]
    periods = [Period(phase, times[i], max(times[i], times[i + 1])) for i, (phase, _) in enumerate(steps)]
    return [p for p in periods if p.start < p.end] or [Period(steps[-1][0], attempt.claimed_at, end)]


def _phases(attempt: LineageAttempt, records: AttemptRecords | None) -> list[tuple[str, datetime]]:
    """As recorded. Attempts of older releases have none: they are starting until they have restored, then they train."""
    found = (
        sorted(((p.phase.value, p.at) for s in records.segments for p in s.phases), key=lambda p: p[1])
        if records
        else []
    )
    if found:
        return found
    restored = records.restored.created_at if records and records.restored else None
    if restored is None:
        return [("training", attempt.claimed_at)] if attempt.num_commits else []
    return [("starting", attempt.claimed_at), ("training", restored)]


def _state(attempt: LineageAttempt, seen: Seen) -> str:
    return state_of(attempt, seen, is_newest=attempt == seen.lineage.attempts[-1])


def _end_without_outcome(attempt: LineageAttempt, seen: Seen, *, horizon: datetime) -> datetime:
    """An attempt that left no word ends where the next one was claimed; the newest goes on."""
    refs = [a.ref for a in seen.lineage.attempts]
    number = refs.index(attempt.ref)
    return seen.lineage.attempts[number + 1].claimed_at if number + 1 < len(refs) else horizon


def _lane(
    axis: Axis, label: str, periods: Sequence[Period], *, kind: str, state: str, marks: tuple[Mark, ...] = ()
) -> Lane:
    drawn = bounded(list(periods), axis)
    bars = tuple(
        Bar(p.phase, axis.x(p.start), axis.x(p.end) - axis.x(p.start), f"{label}: {p.phase}, {_span(p)}") for p in drawn
    )
    lasted: dict[str, timedelta] = {}
    for p in periods:
        lasted[p.phase] = lasted.get(p.phase, timedelta()) + (p.end - p.start)
    parts = [f"{phase} {words.duration(time)}" for phase, time in lasted.items()]
    num_failures = sum(mark.number for mark in marks)
    parts += [f"{num_failures} failures" if num_failures > 1 else "1 failure"] if num_failures else []
    began = f" from {words.moment(periods[0].start)}" if periods else ""
    return Lane(kind, label, state, bars, marks, f"{label}, {state}{began}: {', '.join(parts) or 'nothing yet'}")


def _span(period: Period) -> str:
    return f"{words.duration(period.end - period.start)} from {words.moment(period.start)}"


def bounded(periods: list[Period], axis: Axis) -> list[Period]:
    """At most MAX_BARS periods: where there are more, each slice of the axis has the phase that filled most of it."""
    if len(periods) <= MAX_BARS:
        return periods
    width = (axis.end - axis.start) / MAX_BARS
    slices: dict[int, dict[str, float]] = {}
    for p in periods:
        first, last = (min(MAX_BARS - 1, int((t - axis.start) / width)) for t in (p.start, p.end))
        for i in range(first, last + 1):
            left, right = axis.start + i * width, axis.start + (i + 1) * width
            part = (min(p.end, right) - max(p.start, left)).total_seconds()
            filled = slices.setdefault(i, {})
            filled[p.phase] = filled.get(p.phase, 0.0) + max(0.0, part)
    return [
        Period(max(filled, key=lambda phase: filled[phase]), axis.start + i * width, axis.start + (i + 1) * width)
        for i, filled in sorted(slices.items())
    ]


def _failures(axis: Axis, attempt: LineageAttempt, records: AttemptRecords | None) -> tuple[Mark, ...]:
    found = (
        [(r.at, r.failure.kind.value, r.failure.reason) for s in records.segments for r in s.restarts]
        if records
        else []
    )
    marks = [Mark("restart", axis.x(at), f"{words.moment(at)}: {kind}: {why}") for at, kind, why in sorted(found)]
    marks = _apart(marks)
    if attempt.failure_kind and attempt.finished_at:
        text = f"{words.moment(attempt.finished_at)}: {attempt.failure_kind}: {attempt.failure_reason or ''}"
        marks.append(Mark("end", axis.x(attempt.finished_at), text))
    return tuple(marks)


def _apart(marks: list[Mark]) -> list[Mark]:
    """Marks that would cover one another become one, with the number of them and the last one's words."""
    groups: list[list[Mark]] = []
    for mark in marks:
        if groups and mark.x - groups[-1][0].x < _MARK_WIDTH:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return [
        g[0] if len(g) == 1 else Mark(g[0].kind, g[0].x, f"{len(g)} failures, the last {g[-1].title}", len(g))
        for g in groups
    ]
