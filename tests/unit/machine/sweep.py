"""One course of things, and one fault at each of its calls in turn: what chance may leave out is tried here.

A course is the same each time but for its fault, so call number n is the same call each time. A course whose number of calls
is reached without its fault has been tried to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.unit.machine.drivers import DriverProcess
from tests.unit.machine.ending import finish
from tests.unit.machine.processes import DIE_AFTER, GO, Call, Process
from tests.unit.machine.world import World

DIE = "die"
_OUTSIDE = ("bucket", "cluster", "airflow")
Course = Callable[[World], None]
"""Brings the world to where the calls begin to count."""


@dataclass
class Counter:
    """Counts the calls of all processes, and does something at one of them."""

    world: World
    at: int
    act: Callable[[Process], str | None]
    """Gets the process that stands before the call; what becomes of the call, or None where the process is gone."""
    is_counting: bool = False
    num: int = 0
    was_at: Call | None = None
    """Before which call it happened; None: the course was over before."""

    def resume(self, real: Callable[[Process, str], None], process: Process, order: str) -> None:
        """Instead of `Process.resume`."""
        is_call = process.at is not None and process.at.room in _OUTSIDE and process.about != "listener"
        if not self.is_counting or order != GO or not is_call:
            real(process, order)
            return
        self.num += 1
        if self.num - 1 == self.at:
            self.was_at = process.at
            what = self.act(process)
            if what is None or process.is_over:
                return
            order = what
        real(process, order)
        if order == DIE_AFTER:
            dies(self.world, process)


def dies(world: World, process: Process) -> None:
    """SIGKILL; a driver's threads end together."""
    process.kill()
    if isinstance(process.about, DriverProcess):
        process.about.crash()


def fault(world: World, how: str) -> Callable[[Process], str | None]:
    """One call fails, loses its answer, is the last one, or is never made."""

    def act(process: Process) -> str | None:
        process.had_fault = True
        if how == DIE:
            dies(world, process)
            return None
        return how

    return act


@contextmanager
def counted(counter: Counter) -> Iterator[None]:
    """From here on calls count."""
    real = Process.resume
    patches = pytest.MonkeyPatch()

    def resume(process: Process, order: str = GO) -> None:
        counter.resume(real, process, order)

    patches.setattr(Process, "resume", resume)
    counter.is_counting = True
    try:
        yield
    finally:
        patches.undo()


def tried(
    course: Course, after: Course, *, how: str, at: int, retries: int, deferrable: bool, lags: bool
) -> tuple[Call | None, list[str]]:
    """One story; which call had the fault (None: it was over before), and what was broken."""
    world = World(deferrable=deferrable, lags=lags)
    try:
        world.airflow.start_try(1, retries, 0)
        course(world)
        counter = Counter(world, at, fault(world, how))
        with counted(counter):
            after(world)
            if not world.truth.violations:
                finish(world)
        return counter.was_at, [*world.truth.violations]
    finally:
        world.close()
