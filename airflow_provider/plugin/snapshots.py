"""Readings of buckets in a few threads of our own, with limits: the API server's loop and its own threads never wait for one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from airflow_provider.core.errors import ForeignExperiment, InvalidConfig, RayTrainError
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.redaction import redact
from airflow_provider.plugin.bucket import ExperimentReader
from airflow_provider.plugin.view.facts import Problem, Recorded, Seen

WAIT_S = 8.0
"""How long a request waits for a reading; the reading itself goes on, for the next request."""
NUM_THREADS = 4
MAX_WAITING = 16
FRESH_S = 2.0
"""A reading is good for this long, and for three times as long as it took."""
CACHED_BYTES = 256_000_000
"""Of memory, over all experiments: some six with 10,000 checkpoints, or fifty usual ones."""
CACHED_EXPERIMENTS = 50
Address = tuple[TaskInstanceKey, str, str | None, str | None]


@dataclass
class _Entry:
    reader: ExperimentReader | None = None
    seen: Seen | None = None
    num_bytes: int = 0
    """Memory of what is seen, which outlives a reader that has to be opened again."""
    problem: Problem | None = None
    good_until: float = 0.0
    running: Future[None] | None = None

    @property
    def held_bytes(self) -> int:
        """What goes with this entry. A reading that broke off has left what it read in its reader."""
        reader = self.reader  # another thread may take it away
        return max(self.num_bytes, reader.num_bytes if reader is not None else 0)


class Snapshots:
    """The newest reading of each experiment that somebody looks at."""

    def __init__(
        self,
        open_reader: Callable[[Recorded], ExperimentReader],
        *,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open_reader` is called in a thread; it may read connections."""
        self._open_reader, self._wait_s, self._clock = open_reader, wait_s, clock
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="ray-train-lineage")
        self._entries: OrderedDict[Address, _Entry] = OrderedDict()
        self._num_running = 0
        self._lock = threading.Lock()

    async def get(self, recorded: Recorded) -> tuple[Seen | None, Problem | None]:
        """The newest reading, and what kept us from a newer one. Never raises, and waits `wait_s` at most."""
        if recorded.experiment is None:
            return None, None
        entry, running = self._begin(
            (recorded.key, recorded.experiment, recorded.aws_conn_id, recorded.team_name), recorded
        )
        if running is not None:
            try:
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(running)), self._wait_s)
            except asyncio.TimeoutError:
                return entry.seen, _slow(self._wait_s)
        elif entry.seen is None and entry.problem is None:
            return None, Problem(
                "Too many pages wait for their buckets at this moment",
                f"{MAX_WAITING} readings are under way in this API server",
                "try again in some seconds",
            )
        return entry.seen, entry.problem

    def _begin(self, address: Address, recorded: Recorded) -> tuple[_Entry, Future[None] | None]:
        """One reading at a time for each experiment, however many ask for it."""
        with self._lock:
            entry = self._entries.setdefault(address, _Entry())
            self._entries.move_to_end(address)
            if entry.running is not None and not entry.running.done():
                return entry, entry.running
            if self._clock() < entry.good_until:
                return entry, None
            if self._num_running >= MAX_WAITING:
                return entry, None
            self._num_running += 1
            entry.running = self._pool.submit(self._read, entry, recorded)
            return entry, entry.running

    def _read(self, entry: _Entry, recorded: Recorded) -> None:
        began = self._clock()
        try:
            if entry.reader is None:
                entry.reader = self._open_reader(recorded)
            entry.seen, entry.problem = entry.reader.look(recorded.key), None
            entry.num_bytes = entry.reader.num_bytes
        except RayTrainError as error:
            # What was seen before stays: an old page with a word about its age is better than none.
            is_refusal = isinstance(error, ForeignExperiment)
            entry.problem = Problem(redact(error.what), redact(error.known), redact(error.change), is_refusal)
            if isinstance(error, InvalidConfig):
                entry.reader = None  # the connection may be another one next time
            if is_refusal:
                entry.seen, entry.num_bytes = None, 0
        except Exception as error:  # noqa: BLE001 - process edge: a backend or library of the deployment may raise anything
            entry.problem = Problem("The experiment can't be read", f"{type(error).__name__} while reading it")
            entry.reader = None
        finally:
            took = self._clock() - began
            entry.good_until = self._clock() + max(FRESH_S, 3 * took)
            with self._lock:
                self._num_running -= 1
                self._forget()

    def _forget(self) -> None:
        """Drop what nobody has asked for the longest time, until the rest is small enough. The newest stays."""
        sizes = {address: entry.held_bytes for address, entry in self._entries.items()}
        for address in list(self._entries)[:-1]:
            if len(sizes) <= CACHED_EXPERIMENTS and sum(sizes.values()) <= CACHED_BYTES:
                return
            entry = self._entries[address]
            if entry.running is None or entry.running.done():
                del self._entries[address], sizes[address]

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _slow(wait_s: float) -> Problem:
    return Problem(
        "The bucket has not answered yet",
        f"this API server waited {wait_s:.0f} s for it",
        "wait: the page tries again by itself; if it stays so, look at the AWS connection and at the way from Airflow's "
        "API server to the bucket",
    )


def open_reader(recorded: Recorded) -> ExperimentReader:
    """The recorded experiment, through the AWS connection that its operator used."""
    from airflow_provider.hooks.experiment import open_experiment
    from airflow_provider.hooks.s3_clients import HASTY

    return ExperimentReader(
        open_experiment(
            recorded.experiment or "",
            aws_conn_id=recorded.aws_conn_id,
            patience=HASTY,
            team_name=recorded.team_name,
        )
    )
