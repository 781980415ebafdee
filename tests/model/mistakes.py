"""Seeded mistakes: each removes one rule, and the configuration named for it must find the story that the rule ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.model.configurations import CONFIGURATIONS
from tests.model.rules import Bounds


@dataclass(frozen=True)
class Mistake:
    """One rule broken on purpose."""

    name: str
    about: str
    configuration: str
    finds: str
    """How the violation begins."""
    story: int | None = None
    """Number of the protocol's story."""
    within: dict[str, Any] = field(default_factory=dict)
    """Bounds that this story needs other than its configuration's small ones."""

    @property
    def bounds(self) -> Bounds:
        return replace(CONFIGURATIONS[self.configuration].small, **self.within)


HEARTBEAT = {"kinds": frozenset({"heartbeat"})}
OLD_STOP = "G4 a healthy try fails for good"
_ALL = [
    Mistake(
        "no marker", "a try acts before Airflow took its marker", "overlap", "G4 a process that Airflow replaced", 1
    ),
    Mistake(
        "compares with the last owner",
        "clears are looked for against the last owner, not the last that acted",
        "clears",
        "G9",
        2,
        within={"tries": 3, "attempts": 1, "drivers": 1, "kinds": frozenset({"heartbeat"})},
    ),
    Mistake(
        "no DAG-run identity",
        "a run that was created again looks like the old one",
        "made again",
        "G9",
        3,
        within={"tries": 3, "attempts": 1, "drivers": 1},
    ),
    Mistake(
        "no run uid",
        "a driver doesn't look whether its attempt ran before",
        "replies",
        "G1 two runs under one attempt",
        4,
    ),
    Mistake(
        "no second decision after a stop",
        "a job that an older owner stopped counts as failed",
        "unseen clears",
        OLD_STOP,
        5,
    ),
    Mistake("owners not read again before the POST", "no look between claim and POST", "made again", "G4 an orphan", 6),
    Mistake("no final owner", "the listener only stops what it finds", "marks", "G4 an orphan", 7, HEARTBEAT),
    Mistake(
        "stops are not obeyed at the start",
        "a driver only watches for stops that come while it runs",
        "timeouts",
        "G4 an orphan",
        8,
    ),
    Mistake(
        "no carry-over",
        "a driver doesn't look for an earlier success",
        "replies",
        "G9 a finished training is trained again",
        9,
    ),
    Mistake(
        "retired checkpoint used in place",
        "no copy of a checkpoint that the newest manifest no longer lists",
        "retired",
        "G12 an older attempt deletes",
        10,
    ),
    Mistake(
        "manifest before the claim",
        "the restore point is resolved before the claim exists",
        "moved",
        "G2 a committed, valid checkpoint is ignored",
        11,
    ),
    Mistake(
        "no fence between generations",
        "a driver looks for newer claims in its own generation only",
        "fresh clears",
        "G1 two live drivers",
        12,
    ),
    Mistake(
        "stop without an owner check",
        "on_kill and StopThenRestore don't look at the owners",
        "unseen clears",
        "G4 a process that is not the newest owner",
    ),
    Mistake(
        "owns again over a newer try",
        "a try that finds a newer owner owns again whatever its number",
        "stale events",
        "G4 a process that Airflow replaced owns over a newer try",
    ),
    Mistake(
        "only the newest owner is looked at",
        "an older try's record hides a newer try's",
        "stale events",
        "G4 a process that Airflow replaced owns over a newer try",
    ),
    Mistake(
        "any final owner ends a try",
        "a try exits at a final stop that was aimed at an older one",
        "marked and cleared",
        "liveness: Airflow's current try gives up",
    ),
    Mistake(
        "a lower try number is a clear",
        "a replaced try takes the newer one's work for a clear",
        "stale events",
        "G9 a finished training is trained again",
    ),
    Mistake(
        "an accepted success is always trained on",
        "a driver does not ask whether its claim answers a clear",
        "moved",
        "G9 a finished training is trained again",
    ),
    Mistake(
        "only the own claim's clear counts",
        "a driver does not ask the claims between a success and its own whether they answer a clear",
        "restore clears",
        "G9 a clear's training",
    ),
    Mistake(
        "the listener reads XComs only",
        "a mark between a try's start and its first push finds no record",
        "early marks",
        "G4 an orphan",
    ),
    Mistake(
        "no second look",
        "a driver does not look for a manifest of its own attempt again before it writes one",
        "twins",
        "G1 two runs under one attempt: the second goes on",
    ),
    Mistake(
        "records read before the job",
        "a try reads an attempt's records first and asks for its job afterwards",
        "unseen clears",
        OLD_STOP,
    ),
    Mistake(
        "outage is permission",
        "owners that can't be read count as none",
        "outages",
        "G4",
    ),
    Mistake(
        "a refit forgets its own commits",
        "a refit resolves as the first fit did",
        "refits",
        "G2 a committed, valid checkpoint is ignored",
    ),
]
MISTAKES = {m.name: m for m in _ALL}
