"""Goodput as bars: how much of the time ended in the result, and what the rest was lost to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider.core.driver_marks import driver_marks
from airflow_provider.core.goodput import Cause, TimeSpent, goodput, goodput_sentence, in_words
from airflow_provider.core.lineage import ExperimentFacts
from airflow_provider.plugin.view.facts import Seen

_MEANING = {
    Cause.DETECTION: "from a failure, or the last sign of life, until somebody acted on it",
    Cause.RETRYING: "between Airflow's tries: the retry delay and Airflow's scheduling",
    Cause.QUEUEING: "from a try's beginning to the driver's first record: upload, submit, the pending job",
    Cause.START_UP: "the driver's start: imports, the restore point, connecting to Ray",
    Cause.WAITING: "waiting for nodes, and starting workers on them",
    Cause.REWORK: "training whose result was lost, and that was done again",
    Cause.UNACCOUNTED: "the records can't tell",
}


@dataclass(frozen=True)
class Share:
    """Productive time, or one cause of loss. `width` is per cent of all time, `x` what lies left of it."""

    name: str
    css_name: str
    time: str
    percent: str
    x: float
    width: float
    meaning: str


@dataclass(frozen=True)
class GoodputView:
    """Of the whole experiment."""

    percent: str
    whole: str
    shares: tuple[Share, ...]
    """Productive time first, then the losses, the greatest first."""
    sentence: str


def build_goodput(seen: Seen) -> GoodputView | None:
    """None where there are no records to tell, or no time has passed."""
    if seen.facts is None or not seen.facts.attempts:
        return None
    return goodput_view(goodput(seen.facts, now=_up_to(seen, seen.facts)).total)


def _up_to(seen: Seen, facts: ExperimentFacts) -> datetime:
    """`as_of`, but never before what a driver is known to have done.

    Times after "now" count as those of a clock that is ahead, and all of the driver's would be moved: what it waited for before
    would shrink by up to 15 s, and stay so where the training has ended, for its page is made once.
    """
    newest = facts.attempts[-1]
    open_ones = [a for a in facts.attempts[:-1] if a.outcome is None]
    marks = [
        driver_marks(a, not_before=a.claim.created_at, not_after=max(seen.read_at, a.claim.created_at))
        for a in (*open_ones, newest)
    ]
    return max([seen.as_of, *(m.last_sign for m in marks if m.last_sign is not None)])


def goodput_view(spent: TimeSpent) -> GoodputView | None:
    """Of one training, or of several together."""
    if spent.fraction is None:
        return None
    return GoodputView(f"{spent.fraction:.0%}", in_words(spent.wall_s), _shares(spent), goodput_sentence(spent))


def _shares(spent: TimeSpent) -> tuple[Share, ...]:
    lost = sorted(((seconds, cause) for cause, seconds in spent.lost_s.items() if seconds > 0), key=lambda p: -p[0])
    parts = [("productive", "productive", spent.productive_s, "training that is in the result")]
    parts += [(cause.value.replace("_", "-"), cause.value, seconds, _MEANING.get(cause, "")) for seconds, cause in lost]
    shares = []
    x = 0.0
    for name, css_name, seconds, meaning in parts:
        width = seconds / spent.wall_s * 100
        shares.append(Share(name, css_name, in_words(seconds), f"{width:.1f} %", x, width, meaning))
        x += width
    return tuple(shares)
