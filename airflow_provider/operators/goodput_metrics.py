"""A training's goodput as Airflow metrics: to StatsD, Datadog or OpenTelemetry, wherever Airflow's own metrics go.

Airflow sets its metrics up in each task process, so they are sent by the one that collects the training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.core.goodput import Cause

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from airflow_provider.core.goodput import TimeSpent

GOODPUT = "ray_train.goodput"
"""Gauge: productive part of the whole training so far, all its tries together, from 0 to 1."""
WALL = "ray_train.wall_seconds"
"""Counter: what this try waited through. The counters of a training's tries add up to its whole time."""
PRODUCTIVE = "ray_train.productive_seconds"
"""Counter: the productive part of it."""
LOST = "ray_train.lost_seconds"
"""Counter with a cause behind it: `ray_train.lost_seconds.rework`."""


def emit_goodput(spent: TimeSpent, *, total: TimeSpent, ti: RuntimeTaskInstanceProtocol, log: Any) -> None:
    """Send the metrics of one try. A metrics server that is away or set up wrongly never harms the task."""
    try:
        from airflow.sdk.observability import stats

        tags = _tags(ti)
        if total.fraction is not None:
            stats.gauge(GOODPUT, round(total.fraction, 4), tags=tags)
        stats.incr(WALL, round(spent.wall_s), tags=tags)
        stats.incr(PRODUCTIVE, round(spent.productive_s), tags=tags)
        for cause in Cause:
            stats.incr(f"{LOST}.{cause.value}", round(spent.lost_s[cause]), tags=tags)
    except Exception:  # process edge: Airflow's backends raise what they like
        log.exception("The metrics of the training's goodput could not be sent; nothing else depends on them")


def _tags(ti: RuntimeTaskInstanceProtocol) -> dict[str, str]:
    """Those of Airflow's own task metrics: DAG and task, and the team where there is one."""
    tags = getattr(ti, "stats_tags", None)
    return dict(tags) if isinstance(tags, dict) else {"dag_id": ti.dag_id, "task_id": ti.task_id}
