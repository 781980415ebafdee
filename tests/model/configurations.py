"""The named configurations: what each is about, small bounds for the tests, larger ones for `make model`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tests.model.findings import SECOND_RUN
from tests.model.rules import Bounds


@dataclass(frozen=True)
class Configuration:
    """Two sizes of one subject."""

    small: Bounds
    large: Bounds
    at_least: int
    """States that the small exploration reaches: an empty one must not pass."""
    finds: frozenset[str] = frozenset()
    """Open findings that the small one must meet: who repairs one changes this line."""


def _configuration(
    name: str, about: str, *, at_least: int, larger: dict[str, Any], finds: tuple[str, ...] = (), **bounds: Any
) -> Configuration:
    bounds["kinds"] = frozenset(bounds.pop("kinds", "heartbeat").split())
    larger["kinds"] = frozenset(larger["kinds"].split()) if "kinds" in larger else bounds["kinds"]
    small = Bounds(name, about, **bounds)
    return Configuration(small, replace(small, **larger), at_least, frozenset(finds))


_ALL = [
    _configuration(
        "overlap",
        "a try that Airflow gave up goes on beside the next one; drivers crash",
        tries=2,
        faults=2,
        kinds="heartbeat crash",
        at_least=5_100,
        larger={"tries": 3},
    ),
    _configuration(
        "replies",
        "replies of POST are lost and the cluster is replaced",
        tries=2,
        faults=2,
        kinds="heartbeat reply replaced",
        at_least=8_200,
        larger={"faults": 3},
    ),
    _configuration(
        "clears",
        "a clear that raises max_tries, with and without on_kill",
        tries=2,
        clears=1,
        faults=1,
        kinds="crash replaced",
        at_least=67_400,
        larger={"kinds": "heartbeat replaced reply crash"},
    ),
    _configuration(
        "unseen clears",
        "a clear that only clear_number tells, with and without on_kill",
        tries=2,
        clears=1,
        sees_clear=False,
        faults=1,
        kinds="heartbeat",
        at_least=6_800,
        larger={"faults": 2, "kinds": "heartbeat reply"},
    ),
    _configuration(
        "fresh clears",
        "a clear with on_clear=fresh while the old cluster's drivers live on unseen",
        tries=2,
        clears=1,
        on_clear="fresh",
        drivers=2,
        faults=1,
        kills=False,
        kinds="moved",
        at_least=37_100,
        larger={"kills": True, "drivers": 3},
    ),
    _configuration(
        "restore clears",
        "a clear with on_clear=restore of a finished training, whose own attempt dies on the way",
        tries=3,
        clears=1,
        on_clear="restore",
        attempts=3,
        drivers=3,
        faults=1,
        kills=False,
        kinds="crash",
        at_least=53_400,
        larger={"kills": True},
    ),
    _configuration(
        "made again",
        "the DAG run is deleted and created again",
        tries=2,
        recreations=1,
        faults=1,
        at_least=4_600,
        larger={"tries": 3, "attempts": 2, "drivers": 1},
    ),
    _configuration(
        "marks",
        "a person marks the task failed: listener and on_kill",
        tries=2,
        marks=1,
        attempts=2,
        drivers=2,
        faults=1,
        kinds="reply crash",
        at_least=10_600,
        larger={"kinds": "heartbeat"},
    ),
    _configuration(
        "marked and cleared",
        "marked failed, then cleared at once",
        tries=2,
        attempts=1,
        drivers=1,
        marks=1,
        clears=1,
        faults=0,
        kills=False,
        at_least=25_500,
        larger={"kills": True},
    ),
    _configuration(
        "timeouts",
        "execution_timeout without a retry left: on_kill, but no listener",
        tries=2,
        marks=1,
        times_out=True,
        faults=1,
        kinds="reply crash replaced moved",
        at_least=3_200,
        larger={"faults": 3},
    ),
    _configuration(
        "moved",
        "the address moves to a new cluster: the old one's drivers live on unseen",
        tries=2,
        faults=2,
        kinds="heartbeat moved",
        at_least=19_200,
        larger={"kinds": "heartbeat moved reply"},
    ),
    _configuration(
        "retired",
        "checkpoints break while a superseded driver is about to delete",
        tries=2,
        attempts=2,
        drivers=2,
        commits=2,
        faults=2,
        kinds="moved corrupt",
        at_least=2_600,
        larger={"faults": 3, "attempts": 3, "drivers": 3, "kinds": "moved corrupt crash heartbeat"},
    ),
    _configuration(
        "refits",
        "fits within one job, broken checkpoints in quarantine, crashes",
        tries=2,
        commits=3,
        keep=2,
        faults=3,
        kinds="refit corrupt crash",
        at_least=11_900,
        larger={"faults": 5},
    ),
    _configuration(
        "silence",
        "the cluster gives no answer for a while",
        tries=2,
        faults=2,
        kinds="heartbeat silent",
        at_least=5_100,
        larger={"faults": 3},
    ),
    _configuration(
        "outages",
        "the bucket is away at any step of a try or of on_kill, also after it wrote",
        tries=2,
        clears=1,
        faults=1,
        kinds="outage",
        at_least=13_700,
        larger={"faults": 2, "kinds": "outage heartbeat"},
    ),
    _configuration(
        "stale events",
        "Airflow replaces a waiting try under the same task instance id, so its marker stays accepted",
        tries=3,
        attempts=2,
        drivers=2,
        stales=1,
        faults=1,
        at_least=19_900,
        larger={"attempts": 3, "drivers": 3},
    ),
    _configuration(
        "early marks",
        "a mark in the moment between a try's start and its first push",
        tries=2,
        marks=1,
        marks_early=True,
        faults=1,
        kills=False,
        attempts=1,
        drivers=1,
        at_least=18_200,
        larger={"kills": True},
    ),
    _configuration(
        "twins",
        "a driver that freezes between its first look and its first sign of life",
        tries=2,
        faults=2,
        kinds="reply moved",
        splits_first_look=True,
        at_least=3_500,
        larger={"kinds": "reply moved heartbeat"},
        finds=(SECOND_RUN,),
    ),
]
CONFIGURATIONS = {c.small.name: c for c in _ALL}
