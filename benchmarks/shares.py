"""A time line cut into shares: what of a recovery was detecting, deciding, starting, restoring, and Airflow's own scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DETECT, DECIDE, START, RESTORE = "detect", "decide", "start", "restore"
AIRFLOW = "airflow"
"""Airflow's scheduler and its processes' own start: shown apart, since nobody but Airflow can shorten it."""
AWAY = "away"
"""Until the cluster's head was there again: no orchestrator's time."""
SHARES = (DETECT, DECIDE, START, RESTORE, AIRFLOW, AWAY)


@dataclass(frozen=True)
class Cut:
    """A moment, and whose share the time before it was. None: nothing told when it was, so the next cut takes its time."""

    share: str
    at: float | None


def split(cuts: Sequence[Cut], *, begin: float) -> dict[str, float]:
    """Seconds by share, from `begin` to the last known cut; they add up to the whole.

    A cut that lies before the one before it (clocks of two processes, a record written late) takes nothing and moves nothing back.
    """
    found = dict.fromkeys(SHARES, 0.0)
    at = begin
    for cut in cuts:
        if cut.at is not None and cut.at > at:
            found[cut.share] += cut.at - at
            at = cut.at
    return found
