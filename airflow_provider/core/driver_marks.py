"""What one driver left about time: its phases, commits and end, moved together where its clock contradicts Airflow's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain

from airflow_provider.core import layout
from airflow_provider.core.lineage import AttemptRecords
from airflow_provider.core.records import CheckpointEntry, OutcomeState, Phase

Mark = tuple[Phase | None, datetime]
"""A phase and when it began; None where nobody recorded which one it was."""
_BEFORE_TRAINING = frozenset({Phase.STARTING, Phase.RESTORING})


@dataclass(frozen=True)
class DriverMarks:
    """The marks of one attempt, all by the driver's clock and `shift`."""

    phases: tuple[Mark, ...] = ()
    commits: Mapping[str, datetime] = field(default_factory=dict)
    """When each checkpoint was committed, oldest first; those that were only found later are not among them."""
    has_untimed: bool = False
    """Some commits were found later, so nobody knows when they were made: after the last one in `commits`."""
    steps_back: tuple[tuple[datetime, datetime | None], ...] = ()
    """Commits that descend from another checkpoint than the one committed before them, with the time of that one.

    None: one of an earlier attempt. A fit that went back over a poisoned checkpoint makes them.
    """
    last_sign: datetime | None = None
    """The last thing it is known to have done; None: it never began."""
    finished_at: datetime | None = None
    """When it wrote its own outcome."""
    shift: timedelta = timedelta()


def driver_marks(attempt: AttemptRecords, *, not_before: datetime, not_after: datetime) -> DriverMarks:
    """Read an attempt's records. `not_before` and `not_after` are Airflow's times of its claim and of what followed its end.

    A driver's clock may differ from Airflow's. What it did can't lie before its claim, and its outcome not after what
    followed on that: all its times are moved by the least that makes it so, which leaves the durations between them.
    """
    entries = attempt.entries
    commits = _commits(attempt, entries)
    phases = _phases(attempt, commits)
    finished_at = _finished_at(attempt)
    alive = attempt.alive
    signs = [
        *(at for _, at in phases),
        *commits.values(),
        *(r.at for s in attempt.segments for r in s.restarts),
        *([attempt.restored.created_at] if attempt.restored else []),
        *([alive.written_at] if alive else []),
        *([finished_at] if finished_at else []),
    ]
    if not signs:
        return DriverMarks()
    earliest, latest = not_before - min(signs), not_after - (finished_at or max(signs))
    shift = max(earliest, min(timedelta(), latest))

    def moved(at: datetime) -> datetime:
        try:
            return at + shift
        except OverflowError:  # a damaged record may say any year
            return not_after

    return DriverMarks(
        phases=tuple((phase, moved(at)) for phase, at in phases),
        commits={name: moved(at) for name, at in commits.items()},
        has_untimed=any(name not in commits for name in attempt.own_commits),
        steps_back=tuple((moved(at), moved(base) if base else None) for at, base in _steps_back(entries, commits)),
        last_sign=moved(max(signs)),
        finished_at=moved(finished_at) if finished_at else None,
        shift=shift,
    )


def _finished_at(attempt: AttemptRecords) -> datetime | None:
    """A carried outcome is an earlier attempt's, with its times."""
    outcome = attempt.outcome
    return outcome.finished_at if outcome and outcome.carried_from is None else None


def _commits(attempt: AttemptRecords, entries: Mapping[str, CheckpointEntry]) -> dict[str, datetime]:
    found = {name: entry.reported_at for name, entry in entries.items() if not entry.late}
    alive = attempt.alive
    if alive and alive.last_checkpoint and alive.last_commit_at:
        found.setdefault(alive.last_checkpoint, alive.last_commit_at)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _steps_back(
    entries: Mapping[str, CheckpointEntry], commits: Mapping[str, datetime]
) -> Iterator[tuple[datetime, datetime | None]]:
    before: str | None = None
    for name, at in commits.items():
        parent = entries[name].parent if name in entries else None
        base = (layout.copied_from(parent) or parent) if parent else None
        if before is not None and base is not None and base != before:
            yield at, commits.get(base)
        before = name


def _phases(attempt: AttemptRecords, commits: Mapping[str, datetime]) -> list[Mark]:
    recorded = sorted((p for s in attempt.segments for p in s.phases), key=lambda p: p.at)
    marks: list[Mark] = [(p.phase, p.at) for p in recorded]
    alive, first_commit = attempt.alive, next(iter(commits.values()), None)
    if alive is not None and marks and alive.phase_since > marks[-1][1]:
        marks.append((alive.phase, alive.phase_since))  # in no segment yet, where a driver was killed
    if marks and (first_commit is None or any(phase is Phase.TRAINING for phase, _ in marks)):
        return marks
    marks = _guessed(attempt, marks, list(commits.values()))
    if alive is None or (alive.phase is not Phase.TRAINING and first_commit and alive.phase_since < first_commit):
        return marks
    return [*(mark for mark in marks if mark[1] < alive.phase_since), (alive.phase, alive.phase_since)]


def _guessed(attempt: AttemptRecords, known: Sequence[Mark], commits: Sequence[datetime]) -> list[Mark]:
    """Marks from commits and restarts alone: from commit to commit it trained, the rest is unknown.

    For records of older releases, and for a Ray whose callbacks tell nothing.
    """
    first_commit = commits[0] if commits else None
    marks = [m for m in known if m[0] in _BEFORE_TRAINING and (first_commit is None or m[1] <= first_commit)]
    others = [m[1] for m in known if m[0] not in _BEFORE_TRAINING]
    began = min(others) if others else attempt.restored.created_at if attempt.restored else first_commit
    if began is None:
        return marks
    marks.append((None, min(began, first_commit) if first_commit else began))
    restarts = (r.at for s in attempt.segments for r in s.restarts)
    last: datetime | None = None
    is_training = False
    for at, is_commit in sorted(chain(((c, True) for c in commits), ((r, False) for r in restarts))):
        if is_commit:
            last = at
            if not is_training:
                marks.append((Phase.TRAINING, at))
        elif is_training and last is not None:
            marks.append((None, last))
        is_training = is_commit
    outcome = attempt.final_outcome
    if is_training and last is not None and (outcome is None or outcome.state is not OutcomeState.SUCCESS):
        marks.append((None, last))
    return marks
