"""What one exploration is about: its bounds and faults, and which rule is broken on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.model.state import State

FAULTS = frozenset({"heartbeat", "crash", "reply", "replaced", "moved", "silent", "corrupt", "outage", "refit"})
"""Kinds that share a configuration's budget of faults. `heartbeat`: Airflow gives a try up (it froze or died)."""


@dataclass(frozen=True)
class Bounds:
    """How much of everything one configuration explores."""

    name: str
    about: str
    tries: int = 2
    attempts: int = 3
    drivers: int = 3
    commits: int = 1
    keep: int = 1
    """Checkpoints that retention keeps."""
    faults: int = 1
    kinds: frozenset[str] = frozenset({"heartbeat"})
    stales: int = 0
    clears: int = 0
    sees_clear: bool = True
    """Whether a clear raises max_tries; otherwise it is seen in clear_number only."""
    marks: int = 0
    recreations: int = 0
    kills: bool = True
    """Whether on_kill may come."""
    marks_early: bool = False
    """Whether a mark may come in the moment between a try's start (Airflow deletes its XComs) and its first push."""
    times_out: bool = False
    """A mark is an execution_timeout without retries left: on_kill, but no listener."""
    on_clear: str = "auto"
    splits_first_look: bool = False
    """Whether a driver may freeze between its first look and its first sign of life."""

    def budget(self) -> dict[str, int]:
        return {
            "faults": self.faults,
            "stales": self.stales,
            "clears": self.clears,
            "marks": self.marks,
            "recreations": self.recreations,
        }


class World(NamedTuple):
    """Bounds and the seeded mistake, if any."""

    bounds: Bounds
    mistake: str = ""

    def can(self, s: State, kind: str) -> bool:
        """Whether a fault of this kind may still happen."""
        return s.faults > 0 and kind in self.bounds.kinds


class Move(NamedTuple):
    """One step that a state allows."""

    text: str
    state: State
    violation: str = ""
    is_fault: bool = False
    """Needs a fault or a person: the world owes nobody this step."""
