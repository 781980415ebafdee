"""Ray's budgets and Airflow's retries as one table, printed when a try starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider.operators.request import TrainingRequest


def budget_table(request: TrainingRequest, *, retries: int | None) -> str:
    """Who recovers from what, and how often."""
    failure, timings = request.training.failure, request.timings
    rows = [
        ("training worker lost", "Ray restarts the workers in the same job", _count(failure.max_failures)),
        ("node preempted", "Ray restarts the workers in the same job", _count(failure.max_preemption_failures)),
        (
            "no nodes",
            f"Ray waits, at most {_seconds(timings.resource_timeout_s)}",
            _count(failure.controller_failure_limit),
        ),
        ("store or controller fault", "the driver fits again in the same job", str(failure.max_refits)),
        ("no commit between failures", "the attempt ends", str(failure.no_progress_failures)),
        ("driver or cluster lost", "Airflow retries: attach or restore", str(retries or 0)),
        ("user, config, permission error", "nobody: it would come back", "0"),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines = [f"  {a.ljust(widths[0])}  {b.ljust(widths[1])}  {c}" for a, b, c in rows]
    return "budgets (failure, who recovers, how often):\n" + "\n".join(lines)


def _count(value: int) -> str:
    return "unlimited" if value == -1 else str(value)


def _seconds(value: float | None) -> str:
    return "without limit" if value is None else f"{value:.0f} s"
