"""Explores every reachable state breadth first, so the first violation of a kind has the shortest trace."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.model import airflow, cluster, drivers, endings, stops, submitting, tries
from tests.model.findings import FINDINGS
from tests.model.invariants import broken, is_end
from tests.model.rules import Bounds, Move, World
from tests.model.state import DEAD, ENDED, State, start

TRY_STEPS = {**tries.STEPS, **submitting.STEPS, **endings.STEPS, **stops.STEPS}
STUCK = "liveness: no end of the task can be reached any more"
Progress = Callable[["Exploration"], None]


def moves(s: State, w: World) -> Iterator[Move]:
    """Everything that may happen next."""
    yield from airflow.moves(s, w)
    for t, x in enumerate(s.tries):
        if x.pc == ENDED:
            continue
        yield from stops.kill(s, t, w) if x.kill else TRY_STEPS[x.pc](s, t, w)
    if s.listener.pc:
        yield from stops.listen(s, w)
    for d, driver in enumerate(s.drivers):
        if driver.pc == DEAD:
            continue
        yield from drivers.polls(s, d, w)
        yield from drivers.STEPS[driver.pc](s, d, w)
    yield from cluster.moves(s, w)


@dataclass
class Exploration:
    """What one exploration found."""

    world: World
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    is_complete: bool = True
    violations: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The shortest trace of each kind of violation."""
    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The same for open findings: what follows them is not explored."""


class Explorer:
    """One breadth-first search."""

    def __init__(self, bounds: Bounds, mistake: str = "", *, wanted: str | None = None, max_states: int = 0) -> None:
        self.world = World(bounds, mistake)
        self.found = Exploration(self.world)
        self._wanted, self._max_states = wanted, max_states
        first = start(**bounds.budget())
        self._index = {first: 0}
        self._states = [first]
        self._parents = array("i", [-1])
        self._sources, self._targets = array("i"), array("i")
        self._ends = bytearray()

    def run(self, progress: Progress | None = None) -> Exploration:
        began, found = time.monotonic(), self.found
        level_end, done = 1, 0
        while done < len(self._states):
            if done == level_end:
                found.depth += 1
                level_end = len(self._states)
            self._expand(done)
            done += 1
            is_enough = self._wanted is not None and any(v.startswith(self._wanted) for v in found.violations)
            if is_enough or (self._max_states and len(self._states) >= self._max_states):
                found.is_complete = False
                break
            if progress is not None and done % 20_000 == 0:
                found.states, found.seconds = len(self._states), time.monotonic() - began
                progress(found)
        found.states = len(self._states)
        if found.is_complete:
            self._check_ends()
        found.seconds = time.monotonic() - began
        return found

    def _expand(self, i: int) -> None:
        s, w = self._states[i], self.world
        self._ends.append(is_end(s, w))
        violation = broken(s, w)
        if violation:
            self._note(violation, i)
            return
        for move in moves(s, w):
            self.found.transitions += 1
            if move.violation:
                self._note(move.violation, i, move)
                continue
            j = self._index.setdefault(move.state, len(self._states))
            if j == len(self._states):
                self._states.append(move.state)
                self._parents.append(i)
            if not move.is_fault:
                self._sources.append(i)
                self._targets.append(j)

    def _note(self, violation: str, i: int, last: Move | None = None) -> None:
        found = self.found.violations
        if violation in FINDINGS:
            found, self._ends[i] = self.found.known, 1  # what follows is unknown, not stuck
        if violation not in found:
            found[violation] = (*self.trace(i), *([last.text] if last else []))

    def trace(self, i: int) -> tuple[str, ...]:
        """The steps to state `i`, in words."""
        path = [i]
        while self._parents[path[-1]] >= 0:
            path.append(self._parents[path[-1]])
        path.reverse()
        texts = []
        for here, there in pairwise(path):
            target = self._states[there]
            texts.append(next(m.text for m in moves(self._states[here], self.world) if m.state == target))
        return tuple(texts)

    def _check_ends(self) -> None:
        """When faults and people stop, each state must still reach an end: backwards from the ends."""
        size = len(self._states)
        starts = array("i", bytes(4 * (size + 1)))
        for target in self._targets:
            starts[target + 1] += 1
        for i in range(size):
            starts[i + 1] += starts[i]
        before = array("i", bytes(4 * len(self._targets)))
        fill = array("i", starts)
        for source, target in zip(self._sources, self._targets, strict=True):
            before[fill[target]] = source
            fill[target] += 1
        reached = bytearray(self._ends)
        todo = [i for i in range(size) if reached[i]]
        while todo:
            i = todo.pop()
            for source in before[starts[i] : starts[i + 1]]:
                if not reached[source]:
                    reached[source] = 1
                    todo.append(source)
        stuck = next((i for i in range(size) if not reached[i]), None)
        if stuck is not None and not self.found.violations:
            self._note(STUCK, stuck)


def explore(bounds: Bounds, mistake: str = "", *, progress: Progress | None = None, max_states: int = 0) -> Exploration:
    """Explore all that `bounds` allow."""
    return Explorer(bounds, mistake, max_states=max_states).run(progress)


def find(bounds: Bounds, mistake: str, wanted: str, *, max_states: int = 0) -> Exploration:
    """Explore with a seeded mistake until a violation that begins with `wanted`."""
    return Explorer(bounds, mistake, wanted=wanted, max_states=max_states).run()
