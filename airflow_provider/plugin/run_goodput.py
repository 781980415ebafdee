"""The goodput of a DAG run: that of its trainings together, as their XComs have it. No bucket is read for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider.core.goodput import Cause, TimeSpent
from airflow_provider.hooks.final_stop import JOB_RECORD_KEY
from airflow_provider.plugin.recorded import from_json

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

RESULT_KEY, FAILURE_KEY = "return_value", "ray_train_failure"
MAX_TRAININGS = 500
"""Of one DAG run; a result may have 48 kB."""


class RunGoodput(NamedTuple):
    """All trainings of a DAG run that have told theirs."""

    spent: TimeSpent
    num_told: int


def results_told(session: Session, *, dag_id: str, run_id: str) -> tuple[tuple[Any, ...], ...]:
    """Which results and failures there are, and since when: enough to notice a new one, without reading them."""
    rows = session.execute(_told(dag_id, run_id, _xcom().timestamp))
    return tuple(tuple(row) for row in rows)


def goodput_of_run(session: Session, *, dag_id: str, run_id: str) -> RunGoodput:
    """Add up what the trainings' newest tries left; a try that has only begun has left nothing yet."""
    told: dict[tuple[str, int], TimeSpent] = {}
    for task_id, map_index, _, value in session.execute(_told(dag_id, run_id, _xcom().value)):
        spent = spent_from_xcom(from_json(value))
        if spent is not None:
            told.setdefault((task_id, map_index), spent)
    return RunGoodput(sum(told.values(), TimeSpent()), len(told))


def _xcom() -> Any:
    from airflow.models.xcom import XComModel

    return XComModel


def _told(dag_id: str, run_id: str, column: Any) -> Any:
    """The run's results and failures of trainings, each with one column of its XCom."""
    from airflow.models.task_state_store import TaskStateStoreModel as Kept
    from sqlalchemy import and_, select

    xcom = _xcom()
    same = and_(
        xcom.dag_id == Kept.dag_id,
        xcom.run_id == Kept.run_id,
        xcom.task_id == Kept.task_id,
        xcom.map_index == Kept.map_index,
    )
    return (
        select(xcom.task_id, xcom.map_index, xcom.key, column)
        .join(Kept, same)
        .where(Kept.key == JOB_RECORD_KEY, Kept.dag_id == dag_id, Kept.run_id == run_id)
        .where(xcom.key.in_((RESULT_KEY, FAILURE_KEY)))
        .order_by(xcom.key.desc(), xcom.task_id, xcom.map_index)  # a result counts before a failure
        .limit(MAX_TRAININGS)
    )


def spent_from_xcom(value: Any) -> TimeSpent | None:
    """What a result or a failure says of its training's time; None where it says nothing that adds up."""
    found = value.get("goodput") if isinstance(value, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("lost_s"), dict):
        return None
    lost = {cause: _seconds(found["lost_s"].get(cause.value, 0.0)) for cause in Cause}
    wall, productive = _seconds(found.get("wall_s")), _seconds(found.get("productive_s"))
    if wall is None or productive is None or None in lost.values():
        return None
    return TimeSpent(wall, productive, {cause: seconds or 0.0 for cause, seconds in lost.items()})


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12:
        return None
    return float(value) if value >= 0 and math.isfinite(value) else None
