"""Attempts and failures as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from airflow_provider.core.lineage import AttemptRecords, LineageAttempt
from airflow_provider.links.ray_train import job_url
from airflow_provider.plugin.view import words
from airflow_provider.plugin.view.checkpoints import label_of
from airflow_provider.plugin.view.facts import Recorded, Seen

ATTEMPTS_PER_PAGE = 20
FAILURES_PER_PAGE = 20
T = TypeVar("T")


@dataclass(frozen=True)
class AttemptRow:
    """One attempt in the table."""

    ref: str
    tries: tuple[int, ...]
    """Airflow's tries that claimed it or attached to it."""
    state: str
    began_from: str
    """In words; the checkpoint's own label is `origin_label`."""
    origin: str | None
    """Name of the checkpoint that it restored."""
    origin_label: str
    restore_reason: str
    claimed_at: datetime
    finished_at: datetime | None
    lasted: str | None
    num_commits: int
    num_restarts: int
    failure_kind: str | None
    failure_reason: str | None
    is_fenced: bool | None
    submission_id: str
    job_url: str | None
    intent: str


@dataclass(frozen=True)
class FailureRow:
    """One failure: of a worker group inside an attempt, or the one that ended it."""

    at: datetime | None
    attempt: str
    kind: str
    reason: str
    then: str


@dataclass(frozen=True)
class Pages:
    """A page of rows, newest first."""

    number: int
    of: int
    num_all: int


def page_of(rows: Sequence[T], number: int, *, size: int) -> tuple[Sequence[T], Pages]:
    """The rows of a page; page 1 holds the last ones, in their own order."""
    num_pages = max(1, -(-len(rows) // size))
    number = min(max(1, number), num_pages)
    end = len(rows) - (number - 1) * size
    return rows[max(0, end - size) : end], Pages(number, num_pages, len(rows))


def attempt_rows(seen: Seen, recorded: Recorded, shown: Sequence[LineageAttempt]) -> tuple[AttemptRow, ...]:
    """The attempts of a page, newest first."""
    records = {str(a.claim.ref): a for a in seen.facts.attempts} if seen.facts else {}
    newest = seen.lineage.attempts[-1].ref if seen.lineage.attempts else None
    return tuple(_row(a, records.get(a.ref), seen, recorded, is_newest=a.ref == newest) for a in reversed(shown))


def state_of(attempt: LineageAttempt, seen: Seen, *, is_newest: bool) -> str:
    """The outcome; for an attempt that has none and isn't followed, what its driver says."""
    if attempt.state != "unknown":
        return attempt.state
    if is_newest and seen.alive is not None:
        return seen.alive.phase.value
    return "claimed" if is_newest and not attempt.num_commits else "no outcome yet"


def _row(
    attempt: LineageAttempt, records: AttemptRecords | None, seen: Seen, recorded: Recorded, *, is_newest: bool
) -> AttemptRow:
    tries = {t.try_number for t in seen.lineage.tries if t.acted_on == attempt.ref and not t.final}
    link = job_url(records.claim.address, attempt.submission_id) if records else None
    if link is None and is_newest:
        link = recorded.job_url
    began, origin, label = _origin(attempt)
    return AttemptRow(
        ref=attempt.ref,
        tries=tuple(sorted(tries | {attempt.try_number})),
        state=state_of(attempt, seen, is_newest=is_newest),
        began_from=began,
        origin=origin,
        origin_label=label,
        restore_reason=attempt.restore_reason or "",
        claimed_at=attempt.claimed_at,
        finished_at=attempt.finished_at,
        lasted=words.duration(attempt.finished_at - attempt.claimed_at) if attempt.finished_at else None,
        num_commits=attempt.num_commits,
        num_restarts=attempt.num_restarts,
        failure_kind=attempt.failure_kind,
        failure_reason=attempt.failure_reason,
        is_fenced=attempt.fenced,
        submission_id=attempt.submission_id,
        job_url=words.web_address(link),
        intent=attempt.intent,
    )


def _origin(attempt: LineageAttempt) -> tuple[str, str | None, str]:
    if attempt.restored_from:
        return "restored from", attempt.restored_from, label_of(attempt.restored_from)
    if attempt.warm_started_from:
        return f"warm-started from {attempt.warm_started_from}", None, ""
    return ("from the start" if attempt.restore_reason else "not restored yet"), None, ""


def failure_rows(seen: Seen) -> tuple[FailureRow, ...]:
    """Every failure of the experiment, oldest first."""
    records = {str(a.claim.ref): a for a in seen.facts.attempts} if seen.facts else {}
    found: list[FailureRow] = []
    for attempt in seen.lineage.attempts:
        segments = records[attempt.ref].segments if attempt.ref in records else ()
        restarts = sorted((r for s in segments for r in s.restarts), key=lambda r: r.at)
        found.extend(
            FailureRow(r.at, attempt.ref, r.failure.kind.value, r.failure.reason, r.decision) for r in restarts
        )
        if attempt.failure_kind:
            then = f"the attempt ended: {attempt.state}"
            found.append(
                FailureRow(attempt.finished_at, attempt.ref, attempt.failure_kind, attempt.failure_reason or "", then)
            )
    return tuple(found)
