"""How long an event loop didn't look at its sockets, from 1 ms on: exact, and at the price of three clock readings a turn.

A task that sleeps and looks how late it woke would need hundreds of wakes a second to see a block of 10 ms, and would be a load itself.
"""

from __future__ import annotations

import asyncio
import gc
import time
from multiprocessing import RawArray
from typing import Any

LEAST_S = 0.001
"""Shorter turns are not looked at, which halves the price; where there was no longer one, the figures are 0."""
_WORST, _WORST_CPU, _WORST_COLLECTION = range(3)


class Probe:
    """Figures in shared memory: made before a fork, filled by the child, read by the parent."""

    def __init__(self) -> None:
        self._shared: Any = RawArray("d", 3)

    @property
    def worst_ms(self) -> float:
        """The longest time from one look at the sockets to the next, or by which a look came back late."""
        return float(self._shared[_WORST]) * 1000

    @property
    def worst_cpu_ms(self) -> float:
        """The most processor time that the loop's thread spent between two looks: what a busy machine can't spoil."""
        return float(self._shared[_WORST_CPU]) * 1000

    @property
    def worst_collection_ms(self) -> float:
        """The longest garbage collection: of all that the process holds, so mostly of what Airflow loaded."""
        return float(self._shared[_WORST_COLLECTION]) * 1000

    def reset(self) -> None:
        """Begin anew."""
        self._shared[_WORST] = self._shared[_WORST_CPU] = self._shared[_WORST_COLLECTION] = 0.0

    def watch_running_loop(self) -> None:
        """Time each turn of the loop that runs now."""
        self._watch_collections()
        selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio offers no other place
        look, shared = selector.select, self._shared
        left, left_cpu = time.perf_counter(), time.thread_time()

        def timed(timeout: float | None = None) -> Any:
            nonlocal left, left_cpu
            came = time.perf_counter()
            if came - left > LEAST_S:
                shared[_WORST] = max(shared[_WORST], came - left)
                shared[_WORST_CPU] = max(shared[_WORST_CPU], time.thread_time() - left_cpu)
            ready = look(timeout)
            left, left_cpu = time.perf_counter(), time.thread_time()
            if timeout is not None and timeout > 0 and not ready:
                # It came back late: another thread held the interpreter, or the machine was busy. The selector rounds up to 1 ms.
                shared[_WORST] = max(shared[_WORST], left - came - timeout - 0.001)
            return ready

        selector.select = timed

    def _watch_collections(self) -> None:
        shared, began = self._shared, 0.0

        def timed(phase: str, _: dict[str, int]) -> None:
            nonlocal began
            if phase == "start":
                began = time.perf_counter()
            else:
                shared[_WORST_COLLECTION] = max(shared[_WORST_COLLECTION], time.perf_counter() - began)

        gc.callbacks.append(timed)
