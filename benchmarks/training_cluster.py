"""The local cluster of the recovery and goodput benchmarks: our trainings through Airflow and plain ones on the same Ray."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from airflow_provider.core.lineage import AttemptRecords
from airflow_provider.core.records import Phase
from airflow_provider.operators.collecting import read_experiment
from benchmarks.measure import MeasurementFailed
from benchmarks.plain_jobs import PlainJobs, command_of, open_client, stop_all
from benchmarks.step_marks import Mark, MarkFile
from benchmarks.task_log import Line, parse_log
from tests.stack.airflow_client import AirflowClient
from tests.stack.process import wait_until
from tests.stack.services import Stack
from tests.support.training_run import TrainingRun, driver_processes

DAGS = Path(__file__).resolve().parent / "dags"


@dataclass
class TrainingCluster:
    """A running stack, and a folder for what trainings tell of themselves."""

    stack: Stack
    airflow: AirflowClient
    folder: Path
    _num_files: int = 0

    @property
    def plain(self) -> PlainJobs:
        """Trainings on Ray alone."""
        return PlainJobs(self.stack.ray)

    def mark_file(self) -> MarkFile:
        """A file that nobody wrote to yet."""
        self._num_files += 1
        return MarkFile(self.folder / f"marks-{self._num_files}.jsonl")

    @contextmanager
    def training(self, dag_id: str, loop: Mapping[str, Any], *, num_workers: int) -> Iterator[OurTraining]:
        """One of ours; when the block is left its task is marked failed and nothing of it runs on."""
        marks = self.mark_file()
        conf = {**loop, "marks": str(marks.path), "num_workers": num_workers}
        run = TrainingRun(self.stack, self.airflow, dag_id, self.airflow.run_dag(dag_id, conf=conf))
        try:
            yield OurTraining(run, marks)
        finally:
            self.airflow.set_task_state(*run.key, "failed")
            stop_all(self.stack.ray)


@dataclass
class OurTraining:
    """One task instance with what it left behind."""

    run: TrainingRun
    marks: MarkFile

    def log(self, try_number: int) -> list[Line]:
        """A try's log."""
        return parse_log(self.run.log(try_number))

    def attempts(self) -> Sequence[AttemptRecords]:
        """By their records in the bucket."""
        records = self.run.records()
        return read_experiment(records).attempts if records is not None else ()

    def phases(self) -> list[tuple[Phase, float]]:
        """Of the newest attempt."""
        newest = self.attempts()[-1]
        return sorted(((p.phase, p.at.timestamp()) for s in newest.segments for p in s.phases), key=lambda p: p[1])

    def posted_at(self) -> float:
        """When Ray took the newest attempt's job."""
        job_id = self.attempts()[-1].claim.submission_id
        with open_client(self.run.stack.ray) as client:
            job = client.get_job(job_id)
        if job is None or job.start_time is None:
            raise MeasurementFailed(f"Ray does not know when it took {job_id}")
        return job.start_time.timestamp()

    def wait_for_try(self, number: int, *, timeout_s: float = 180.0) -> None:
        """Until Airflow has begun this try."""
        wait_until(lambda: self.run.task()["try_number"] >= number, timeout_s=timeout_s, what=f"try {number}")


def reported_after(at: float, *, num: int = 1) -> Any:
    """A probe for the mark of the `num`-th report after a moment."""

    def probe(marks: list[Mark]) -> Mark | None:
        found = [m for m in marks if m.what == "reported" and m.at > at]
        return found[num - 1] if len(found) >= num else None

    return probe


def strike(processes: Sequence[psutil.Process]) -> float:
    """SIGKILL them all; the moment before the first. Raises MeasurementFailed when nobody was there."""
    at, num_struck = time.time(), 0
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        num_struck += 1
    if not num_struck:
        raise MeasurementFailed("nobody was there to be killed")
    return at


def training_worker(marks: MarkFile) -> list[psutil.Process]:
    """The worker that told the last step."""
    pid = next(m.pid for m in reversed(marks.read()) if m.what == "step")
    return [psutil.Process(pid)] if psutil.pid_exists(pid) else []


def our_driver(stack: Stack) -> list[psutil.Process]:
    """The driver with the shells around it."""
    return driver_processes(stack.ray)


def plain_driver(stack: Stack) -> list[psutil.Process]:
    """The same of a plain script."""
    return [process for process in stack.ray.processes() if "plain.py" in command_of(process)]


@contextmanager
def training_cluster(*, is_gated: bool = False) -> Iterator[TrainingCluster]:
    """Start S3, Ray and Airflow; all end with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="rt-bench-") as folder,
        Stack(dags=[DAGS], is_gated=is_gated) as stack,
        stack.airflow.client() as airflow,
    ):
        stack.s3.create_bucket("models")
        yield TrainingCluster(stack, airflow, Path(folder))
