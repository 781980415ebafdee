"""What `on_kill` does inside a signal handler: a few reads side by side, each with no more time than there is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_provider.core.kill import KillFacts, KillVerdict, decide_kill
from airflow_provider.core.records import ClaimRecord
from airflow_provider.hooks.task_state import find_state
from airflow_provider.operators.training_try import Submitted, TrainingTry

READ_S = 2.0
"""Airflow gives on_kill 5 s: what can't be read in 2, all reads together, is treated as unknown."""
STOP_S = 2.0
"""How long the stop may take; it goes on in its thread."""
UNKNOWN = object()
"""Result of a read that failed or took too long."""


def read_together(reads: Sequence[Callable[[], Any]], *, within_s: float) -> list[Any]:
    """Results of all reads, UNKNOWN for those that failed or did not answer in time.

    Each has a daemon thread: Airflow's connection to its supervisor may be held by the thread that the signal
    interrupted, and a read that never returns must not keep the process alive either.
    """
    results: list[Any] = [UNKNOWN] * len(reads)

    def run(number: int, read: Callable[[], Any]) -> None:
        with suppress(Exception):
            results[number] = read()

    threads = [
        threading.Thread(target=run, args=(number, read), name="ray-train-kill", daemon=True)
        for number, read in enumerate(reads)
    ]
    end = time.monotonic() + within_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return list(results)


def read_state(ti: Any) -> str | None:
    """Airflow's present word on the task. Raises whatever Airflow's API raises."""
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index)
    return find_state(states, run_id=ti.run_id, task_id=ti.task_id)


def state_or_none(ti: Any) -> str | None:
    """The same, None where Airflow gives none: the bucket's own rules hold all the same."""
    try:
        return read_state(ti)
    except Exception:  # noqa: BLE001 - Airflow's API may be away, and says so in many ways
        return None


@dataclass(frozen=True)
class KillSwitch:
    """Stops what a try answers for, or leaves it. `stop` takes a job and the verdict, and never raises."""

    attempt: TrainingTry
    read_state: Callable[[], str | None]
    stop: Callable[[Submitted, KillVerdict], None]
    is_enabled: bool
    log: Callable[[str], None]

    def kill(self, *, is_timed_out: bool, is_deadline: bool) -> None:
        """Inside a signal handler, 5 s: read in threads, then stop or leave. `is_deadline`: a time-out is not tried again.

        Without a job of this try there may be one of the try before: it would have attached to it, so it stops it.
        """
        records, k, step = self.attempt.records, self.attempt.k, self.attempt.current
        state, newer, claim = read_together(
            [self.read_state, lambda: records.owner(k + 1), records.newest_claim if step is None else lambda: None],
            within_s=READ_S,
        )
        is_ended = is_timed_out or state not in (UNKNOWN, None, "running")
        if is_ended:
            # Whoever owns: a POST that is still to come must not be sent. The main thread goes on until SIGKILL.
            self.attempt.forbidden = "execution_timeout" if is_timed_out else f"the task is {state}"
            self.log(f"no job will be submitted: {self.attempt.forbidden}")
        if step is None and isinstance(claim, ClaimRecord):
            step = Submitted(claim.ref, claim.submission_id, claim.session_name, claim.deadline, claim.intent)
        if step is None:
            return
        verdict = decide_kill(
            KillFacts(step.ref, k, newest=None if newer is UNKNOWN else k if newer is None else newer.record.k),
            task_state=None if state is UNKNOWN else state,
            is_timed_out=is_timed_out,
            is_deadline=is_deadline,
            is_enabled=self.is_enabled,
        )
        self.log(verdict.reason)
        if verdict.is_stop:
            read_together([lambda: self.stop(step, verdict)], within_s=STOP_S)
