"""Which counters the next Airflow try will have: read from Airflow where it can be, else assumed and said so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_provider.cli.airflow_side import ENDED_TASK, TaskInAirflow, task_in_airflow
from airflow_provider.cli.errors import AirflowUnreadable
from airflow_provider.core.decision import TryFacts
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.records import OwnerRecord

After = Literal["auto", "retry", "clear"]
_COUNTED = frozenset({"scheduled", "queued"})
"""States in which Airflow has counted the coming try already, but for one that was deferred and goes on."""
_NEW_MARK = "(a mark that the next try makes)"


@dataclass(frozen=True)
class NextTry:
    """The facts of the try to come, and what of them is a guess."""

    facts: TryFacts
    after: Literal["retry", "clear"]
    airflow_state: str | None
    assumed: tuple[str, ...]


def read_next_try(key: TaskInstanceKey, owners: dict[int, OwnerRecord], *, after: After) -> NextTry:
    """The next try of a task instance whose experiment has these owners."""
    newest = owners[max(owners)]
    try:
        seen, why = task_in_airflow(key), "this Airflow has no such task instance"
    except AirflowUnreadable as error:
        seen, why = None, f"{error.what} ({error.known})"
    # Of the DAG run that the newest owner is of; the first one had the task's own retries.
    retries = min(one.max_tries for one in owners.values() if one.dag_run_identity == newest.dag_run_identity)
    if seen is None:
        return _by_owner(newest, retries=retries, after=after, why=why)
    return _by_airflow(seen, newest, retries=retries, after=after)


def _by_owner(newest: OwnerRecord, *, retries: int, after: After, why: str) -> NextTry:
    is_over = newest.final or newest.gave_up is not None
    is_clear = after == "clear" or (after == "auto" and is_over)
    facts = TryFacts(
        dag_run_identity=newest.dag_run_identity,
        try_number=newest.try_number + 1,
        max_tries=newest.try_number + retries if is_clear else newest.max_tries,
        clear_number=newest.clear_number + (1 if is_clear else 0),
        own_ks=frozenset(),
    )
    by = "a stop for good" if newest.final else "a try that gave up" if newest.gave_up else "a try that may be retried"
    said = f"{why}: the newest owner, {newest.k}, is {by}, so the next try is {'a clear' if is_clear else 'a retry'} (--after)"
    if after != "auto":
        said = (
            f"{why}: the next try is {'a clear' if is_clear else 'a retry'} after owner {newest.k}'s, as --after says"
        )
    return NextTry(facts, "clear" if is_clear else "retry", None, (said,))


def _by_airflow(seen: TaskInAirflow, newest: OwnerRecord, *, retries: int, after: After) -> NextTry:
    is_clear = after == "clear" or (after == "auto" and seen.state in ENDED_TASK)
    assumed = []
    if is_clear:
        assumed.append(f"a clear: Airflow says that the task is {seen.state or 'not scheduled'}")
    elif seen.state in ENDED_TASK:
        assumed.append(f"Airflow says that the task is {seen.state}, so a retry (--after) would need a clear")
    is_counted = seen.state in _COUNTED and not seen.is_resuming and not is_clear
    is_new = seen.identity is None
    if is_new:
        assumed.append("Airflow keeps no mark of this DAG run: it was created again, or its state store was emptied")
    facts = TryFacts(
        dag_run_identity=seen.identity or _NEW_MARK,
        try_number=seen.try_number + (0 if is_counted else 1),
        max_tries=seen.try_number + retries if is_clear else seen.max_tries,
        clear_number=seen.clear_number + (1 if is_clear else 0),
        own_ks=frozenset(),
    )
    if seen.identity not in (None, newest.dag_run_identity):
        assumed.append("the newest owner is of another DAG run of that name")
    return NextTry(facts, "clear" if is_clear else "retry", seen.state or "not scheduled", tuple(assumed))
