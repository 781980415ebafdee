"""What is left of a lineage where the bucket can't be read: the XCom of the newest try that pushed one."""

from __future__ import annotations

from datetime import datetime, timezone

from pydantic import ValidationError

from airflow_provider.core.lineage import Lineage
from airflow_provider.plugin.view.facts import Recorded, Seen


def seen_from_xcom(recorded: Recorded) -> Seen | None:
    """The XCom's lineage, if it is there, readable, and of the experiment that is recorded now."""
    if recorded.lineage is None:
        return None
    try:
        lineage = Lineage.model_validate(recorded.lineage)
    except ValidationError:
        return None
    if lineage.experiment != recorded.experiment:
        return None
    times = [t for a in lineage.attempts for t in (a.finished_at, a.claimed_at) if t]
    if any(t.tzinfo is None for t in times):
        return None  # ours have a zone: this one is somebody else's
    return Seen(lineage, max(times, default=datetime.fromtimestamp(0, timezone.utc)), is_from_xcom=True)
