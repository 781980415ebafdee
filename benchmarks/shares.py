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
    """A moment, and whose share the time before it was. None: nothing told when it was, so the next known cut's time is partly this one's."""

    share: str
    at: float | None


def split(cuts: Sequence[Cut], *, begin: float) -> dict[str, float]:
    """Seconds by share, from `begin` to the last known cut; they add up to the whole.

    A cut that lies before the one before it (clocks of two processes, a record written late) takes nothing and moves nothing back. Time
    that may be whose end nobody told is never Airflow's: a reworded log line must not flatter who is measured.
    """
    found = dict.fromkeys(SHARES, 0.0)
    at, untold = begin, ""
    for cut in cuts:
        if cut.at is None:
            untold = untold or cut.share
        elif cut.at > at:
            found[untold if untold and cut.share == AIRFLOW else cut.share] += cut.at - at
            at, untold = cut.at, ""
    return found
