"""How long a driver has given no sign of life, without the time in which it may have been unable to: pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

Span = tuple[float, float]
"""From, until: seconds of one clock that never jumps."""


@dataclass(frozen=True)
class Sightings:
    """When one thing could be seen: the cluster, or the bucket. An outage lasts from the last time before it to the first one after it."""

    last: float
    """When it was seen last, or since when it is looked at."""
    is_away: bool = False
    outages: tuple[Span, ...] = ()

    def missed(self) -> Sightings:
        """It could not be seen."""
        return replace(self, is_away=True)

    def seen(self, now: float) -> Sightings:
        """It could."""
        return Sightings(now, outages=(*self.outages, (self.last, now)) if self.is_away else self.outages)

    def since(self, moment: float) -> Sightings:
        """Without the outages that were over by then."""
        return replace(self, outages=tuple(outage for outage in self.outages if outage[1] > moment))


def counted_silence_s(silent_since: float, now: float, *sightings: Sightings) -> float:
    """Seconds of a silence in which all of these could be seen.

    A driver that was cut off when they were gave no sign of life then, and is well: what counts is the time in which it could have. A
    short outage takes no more than itself away, so a frozen driver is found however often a poll fails.
    """
    spans = sorted(outage for one in sightings for outage in one.outages)
    counted, at = 0.0, silent_since
    for begin, end in spans:
        counted += max(0.0, min(begin, now) - at)
        at = max(at, end)
    return counted + max(0.0, now - at)
