"""A driver's phases as they are recorded: in order, and few enough for a segment however often they change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from airflow_provider.core.records import Phase, PhaseEntry

MAX_PHASES = 300
"""In one segment. A worker loss costs three."""
_RECENT = 60
"""The newest ones stay as they are: what follows on them is not known yet."""
_WINDOW = 4 * len(Phase)
"""Entries that are merged into one for each phase in them."""


def with_phase(phases: Sequence[PhaseEntry], phase: Phase, at: datetime) -> list[PhaseEntry]:
    """The phases with one more, in the order of time, merged where they would be too many.

    One that only repeats the phase before it is left out: it changes nothing.
    """
    place = len(phases)
    while place and phases[place - 1].at > at:
        place -= 1
    if place and phases[place - 1].phase is phase:
        return list(phases)
    added = [*phases[:place], PhaseEntry(phase=phase, at=at), *phases[place:]]
    return merged(added) if len(added) > MAX_PHASES else added


def merged(phases: Sequence[PhaseEntry]) -> list[PhaseEntry]:
    """Fewer entries with the same seconds in each phase: within a window, all visits of a phase become one."""
    old = len(phases) - _RECENT
    found: list[PhaseEntry] = []
    for start in range(0, old, _WINDOW):
        found.extend(_one_each(phases[start : min(start + _WINDOW, old) + 1]))
    return [*found, *phases[max(0, old) :]]


def _one_each(window: Sequence[PhaseEntry]) -> Iterator[PhaseEntry]:
    """One entry for each phase of the window, in the order in which they first came; its last entry only ends it."""
    lasted: dict[Phase, timedelta] = {}
    for entry, following in pairwise(window):
        lasted[entry.phase] = lasted.get(entry.phase, timedelta()) + (following.at - entry.at)
    at = window[0].at
    for phase, duration in lasted.items():
        yield PhaseEntry(phase=phase, at=at)
        at += duration
