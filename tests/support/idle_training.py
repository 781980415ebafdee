"""What tests ask about trainings that idle behind a gate: which jobs live, which processes of Airflow are theirs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import psutil

from tests.stack.process import wait_until

if TYPE_CHECKING:
    from airflow_provider.core.records import OwnerRecord
    from tests.support.training_run import TrainingRun

LIMIT_S = 240.0
_LIVE = frozenset({"PENDING", "RUNNING"})


def live_jobs(run: TrainingRun) -> list[str]:
    """Jobs of this task instance that Ray has not ended."""
    jobs = json.loads(run.stack.ray.get("/api/jobs/"))
    mine = {"airflow_run_id": run.run_id, "airflow_task_id": run.task_id}
    return sorted(
        job["submission_id"]
        for job in jobs
        if job["status"] in _LIVE and mine.items() <= (job.get("metadata") or {}).items()
    )


def wait_for_no_job(run: TrainingRun, *, timeout_s: float = 60.0) -> None:
    """Wait until nothing of this task instance is left on the cluster."""
    wait_until(lambda: not live_jobs(run), timeout_s=timeout_s, what=f"the end of all jobs of {run.task_id}")


def owners(run: TrainingRun) -> dict[int, OwnerRecord]:
    """Owner records by number; none before the try has said where they are."""
    records = run.records()
    return records.owners() if records is not None else {}


def wait_for_owner(run: TrainingRun, k: int) -> OwnerRecord:
    """Wait until owner `k` has attached to an attempt, or claimed one."""

    def has_acted() -> bool:
        return run.records() is not None and any(t.k == k and t.acted_on for t in run.lineage().tries)

    wait_until(has_acted, timeout_s=LIMIT_S, what=f"owner {k} of {run.run_id} to act", every_s=0.3)
    return owners(run)[k]


def wait_for_log(run: TrainingRun, text: str, *, try_number: int = 1, timeout_s: float = 60.0) -> None:
    """Wait until a try's log says something."""
    wait_until(
        lambda: text in run.log(try_number), timeout_s=timeout_s, what=f"{text!r} in the log of try {try_number}"
    )


def task_process(run: TrainingRun) -> psutil.Process:
    """The process that runs the task now; its parent supervises it."""
    title = f"airflow worker -- {run.task()['id']}"
    [found] = [p for p in run.stack.airflow.scheduler.processes() if title in command(p)]
    return found


def command(process: psutil.Process) -> str:
    """A process's command line, empty once it is gone."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def lose_worker(run: TrainingRun) -> None:
    """SIGKILL the task's process and its supervisor, as when a machine or pod is gone."""
    process = task_process(run)
    supervisor = process.parent()
    assert supervisor is not None
    for one in (supervisor, process):
        os.kill(one.pid, signal.SIGKILL)


def send(processes: list[psutil.Process], number: int) -> None:
    """Signal all that are still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def freeze_at_deferral(run: TrainingRun) -> psutil.Process:
    """Freeze a task's supervisor between the deferral and the executor's word on it, which then comes as late as one likes.

    Airflow's database is looked at without pause: the task's process needs a moment to end.
    """
    import psycopg2

    supervisor = _supervisor(run)
    query = "SELECT state FROM task_instance WHERE run_id = %s AND task_id = %s"
    with contextlib.closing(psycopg2.connect(run.stack.postgres.url("postgresql"))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            end = time.monotonic() + LIMIT_S
            while _state(cursor, query, run) != "deferred":
                assert time.monotonic() < end, "the task did not defer"
                time.sleep(0.002)
    os.kill(supervisor.pid, signal.SIGSTOP)
    assert "<idle>" not in command(supervisor), "too late: the executor knows already"
    return supervisor


def _supervisor(run: TrainingRun) -> psutil.Process:
    found: list[psutil.Process] = []

    def is_there() -> bool:
        with contextlib.suppress(ValueError, psutil.Error):
            parent = task_process(run).parent()
            found[:] = [parent] if parent is not None else []
        return bool(found)

    wait_until(is_there, timeout_s=LIMIT_S, what="the task's process", every_s=0.05)
    return found[0]


def _state(cursor: Any, query: str, run: TrainingRun) -> str | None:
    cursor.execute(query, (run.run_id, run.task_id))
    row = cursor.fetchone()
    return row[0] if row else None
