"""One side of the benchmarks 5 and 6: Airflow's own triggerer, without a metadata database, with as many triggers as asked for.

`python -m benchmarks.triggerer_process PLAN` (JSON) runs in the side's own environment and prints one line of figures. Airflow's
supervisor and its runner are the real ones, in the two processes that they have in production, talking over their socket; only where
the supervisor would ask the database (which triggers, which connection, what to do with an event) it asks this file. Both processes are
measured: the runner runs the triggers, the supervisor, which is this process, writes each line of their task logs.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog
from airflow.executors.workloads.trigger import RunTrigger
from airflow.jobs.triggerer_job_runner import TriggerLoggingFactory, TriggerRunner, TriggerRunnerSupervisor
from airflow.models.trigger import Trigger
from airflow.sdk.api.datamodels._generated import ConnectionResponse

from benchmarks.loop_probe import Probe
from benchmarks.stand_in import RunningStandIn, counts

QUIET_S = 6.0
"""A log that neither grows nor is fetched for so long has been shown."""
A_WORD = 4096
"""So little may be written meanwhile: the peer's trigger says at each poll that the job runs."""
_TICKS = os.sysconf("SC_CLK_TCK")
PROBE = Probe()
"""Made before the runner's process is forked: both see it."""


@dataclass(frozen=True)
class Plan:
    """What one process measures."""

    url: str
    """The stand-in."""
    classpath: str
    kwargs: dict[str, Any]
    """Of each trigger; "{id}" becomes the job's id."""
    num_jobs: int
    window_s: float = 0.0
    """How long all jobs run, after each was polled once; 0 = until their logs have been shown."""
    spread_s: float = 30.0
    """Over how long their ends are spread."""
    limit_s: float = 120.0
    """How long the first poll of all, and their events, may take; what is missing then is said, not waited for."""
    settle_s: float = 0.0
    """Since the triggers were added, before a window begins: with it the window is a steady state at each size and for each side."""
    idle_s: float = 5.0
    """How long the empty triggerer is watched, and before that warms up."""
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """What a trigger said, and when."""

    at: float
    payload: Any

    def tells_end(self, ended_at: float) -> bool:
        """Whether it can be about the job's end. Ours says why it stopped waiting; the floor and the peer say nothing of that kind."""
        says = self.payload.get("end", "ended") if isinstance(self.payload, Mapping) else "ended"
        return self.at >= ended_at and says == "ended"


class MeasuredRunner(TriggerRunner):
    """Airflow's runner, its event loop timed."""

    async def arun(self) -> None:
        """Run with the probe on the loop."""
        PROBE.watch_running_loop()
        await super().arun()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped


class Supervisor(TriggerRunnerSupervisor):
    """Airflow's supervisor without its database."""

    def prepare(self, plan: Plan) -> None:
        """Before the first round."""
        self.plan, self.told, self.failed = plan, dict[int, Event](), list[str]()
        self.num_connections_read = 0

    def make_client(self) -> Any:
        """Connections only."""
        return SimpleNamespace(connections=SimpleNamespace(get=self._connection), base_url="")

    def _connection(self, conn_id: str) -> ConnectionResponse:
        self.num_connections_read += 1
        none = dict.fromkeys(("host", "schema", "login", "password", "port", "extra"))
        return ConnectionResponse.model_validate({"conn_id": conn_id} | none | self.plan.connections[conn_id])

    def heartbeat(self) -> None:
        """No database to tell."""

    def load_triggers(self) -> None:
        """They are queued by `add`."""

    def clean_unused(self) -> None:
        """No database to clean."""

    def emit_metrics(self) -> None:
        """Nobody listens."""

    def on_trigger_event(self, trigger_id: int, event: Any) -> None:
        """Where a real one resumes the task, at the first event."""
        self.told.setdefault(trigger_id, Event(time.time(), event.payload))

    def on_trigger_failure(self, trigger_id: int, exc: list[str] | None) -> None:  # noqa: ARG002 - as Airflow calls it
        """Where a real one fails the task."""
        self.failed.append((exc or ["no event"])[-1].strip())

    def add(self) -> None:
        """Queue all triggers, each with a task log."""
        for number in range(1, self.plan.num_jobs + 1):
            kwargs = {key: _with_id(value, number) for key, value in self.plan.kwargs.items()}
            factory = TriggerLoggingFactory(log_path=f"task_{number}.log", ti=None)  # type: ignore[arg-type]
            self.logger_cache[number] = factory
            row = RunTrigger(id=number, classpath=self.plan.classpath, encrypted_kwargs=Trigger.encrypt_kwargs(kwargs))
            self.creating_triggers.append(row)

    def until(self, is_done: Callable[[], bool], limit_s: float) -> bool:
        """Serve the runner until then; whether it came to that in time."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self.is_alive():
            self.run_once()
            if is_done():
                return True
        return False

    @classmethod
    def run_in_process(cls) -> None:
        """In the runner's process."""
        MeasuredRunner().run()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped


def job_id(number: int) -> str:
    """The submission id of a job."""
    return f"job-{number:05d}"


def measured(plan: Plan) -> dict[str, Any]:
    """Everything, from an empty triggerer to the last event."""
    cluster = RunningStandIn.at(plan.url)
    supervisor = Supervisor.start(capacity=plan.num_jobs, logger=structlog.get_logger("runner"))
    supervisor.prepare(plan)
    both, runner = (supervisor.pid, os.getpid()), supervisor.pid
    try:
        supervisor.until(lambda: False, plan.idle_s)
        empty, began = Usage.of(*both), time.monotonic()
        supervisor.until(lambda: False, plan.idle_s)
        idle = Usage.of(*both)
        figures = {"idle_cpu_pct": idle.cores_since(empty, time.monotonic() - began) * 100, "empty_mib": empty.rss_mib}
        PROBE.reset()
        figures |= all_begun(supervisor)
        cluster.begin()
        PROBE.reset()
        before, of_runner, began = Usage.of(*both), Usage.of(runner), time.monotonic()
        if plan.window_s:
            supervisor.until(lambda: False, plan.window_s)
        else:
            watch_logs(supervisor, plan.limit_s)
        after, window_s = Usage.of(*both), time.monotonic() - began
        figures |= {
            "cpu_pct": after.cores_since(before, window_s) * 100,
            "runner_cpu_pct": Usage.of(runner).cores_since(of_runner, window_s) * 100,
            # From before the first trigger: a log that is there already is fetched while all are polled for the first time.
            "cpu_s": after.cpu_s - idle.cpu_s,
            "block_ms": PROBE.worst_ms,
            "block_cpu_ms": PROBE.worst_cpu_ms,
            "collection_ms": PROBE.worst_collection_ms,
            "window_s": window_s,
            "connections_read": supervisor.num_connections_read,
        }
        figures |= asked_in_window(cluster.counts(), window_s)
        PROBE.reset()
        figures |= ends(supervisor, cluster)
        figures["collection_ms"] = max(figures["collection_ms"], PROBE.worst_collection_ms)
        figures |= {"end_block_ms": PROBE.worst_ms, "rss_mib": (peak := Usage.of(*both).peak_mib)}
        figures["grown_mib"] = peak - empty.rss_mib
        return figures | {f"asked_{key}": n for key, n in cluster.counts().items()}
    finally:
        supervisor.kill(signal.SIGKILL, force=True)


def all_begun(supervisor: Supervisor) -> dict[str, float]:
    """Add all triggers and serve until each job was polled and the start is over.

    Raises:
        SystemExit: A window was to begin, and not all were polled in time: it would be part of the start.
    """
    plan, began, num_polled = supervisor.plan, time.monotonic(), 0

    def are_polled() -> bool:
        nonlocal num_polled
        num_polled = counts(plan.url).get("jobs_asked", 0)
        return num_polled >= plan.num_jobs

    supervisor.add()
    all_polled = supervisor.until(each_second(are_polled), plan.limit_s)
    start_s = time.monotonic() - began
    if plan.window_s:
        if not all_polled:
            raise SystemExit(f"only {num_polled} of {plan.num_jobs} jobs were polled within {plan.limit_s:g} s")
        supervisor.until(lambda: False, began + plan.settle_s - time.monotonic())
    return {"start_s": start_s, "start_block_ms": PROBE.worst_ms, "all_polled": float(all_polled)}


def asked_in_window(asked: Mapping[str, int], window_s: float) -> dict[str, float]:
    """What the stand-in was asked since `begin`."""
    per_s = {"requests_per_s": "status", "bucket_per_s": "bucket", "log_bytes_per_s": "log_bytes"}
    found = {name: asked.get(key, 0) / window_s for name, key in per_s.items()}
    if not asked["num_gaps"]:
        # A trigger that asks once has no pauses, and one of 0 s would look like the best.
        return found
    mean_s = asked["gaps_ms"] / asked["num_gaps"] / 1000
    return found | {
        "num_gaps": asked["num_gaps"],
        "mean_gap_s": mean_s,
        "longest_gap_s": asked["longest_gap_ms"] / 1000,
    }


def ends(supervisor: Supervisor, cluster: RunningStandIn) -> dict[str, Any]:
    """Let all jobs end, spread over a while; how late the tasks would resume."""
    plan, now = supervisor.plan, time.time() + 1
    when = {number: now + plan.spread_s * number / plan.num_jobs for number in range(1, plan.num_jobs + 1)}
    cluster.set_ends({job_id(number): at for number, at in when.items()})
    supervisor.until(lambda: len(supervisor.told) + len(supervisor.failed) >= plan.num_jobs, plan.limit_s)
    if supervisor.failed and not supervisor.told:
        raise SystemExit(f"all triggers failed: {supervisor.failed[0]}")
    return resumes(supervisor.told, when) | {"failed": len(supervisor.failed)}


def resumes(events: Mapping[int, Event], when: Mapping[int, float]) -> dict[str, Any]:
    """How many tasks resumed since their jobs had ended, and how late; an event about anything else is early, whenever it came."""
    delays = sorted(event.at - when[number] for number, event in events.items() if event.tells_end(when[number]))
    early = [event for number, event in events.items() if not event.tells_end(when[number])]
    late = {"resume_s": delays[len(delays) // 2], "resume_worst_s": delays[-1]} if delays else {}
    told = {"first_early": repr(min(early, key=lambda event: event.at).payload)[:300]} if early else {}
    return {**late, **told, "resumed": len(delays), "early": len(early)}


def each_second(look: Callable[[], bool]) -> Callable[[], bool]:
    """Look once a second at most: what asks over the network, on each turn of the supervisor, would be a load of its own."""
    looked = float("-inf")

    def is_done() -> bool:
        nonlocal looked
        if time.monotonic() - looked < 1:
            return False
        looked = time.monotonic()
        return look()

    return is_done


def watch_logs(supervisor: Supervisor, limit_s: float) -> None:
    """Serve until no task log grows any more and nothing is fetched: a replay fetches for a while what was shown before."""
    folder = Path(os.environ["AIRFLOW__LOGGING__BASE_LOG_FOLDER"])
    last, since = (-1, -1), time.monotonic()

    def is_shown() -> bool:
        nonlocal last, since
        size = sum(path.stat().st_size for path in folder.glob("task_*.log"))
        fetched = counts(supervisor.plan.url)["log_bytes_ever"]
        if fetched != last[1] or size > last[0] + A_WORD:
            last, since = (size, fetched), time.monotonic()
        return time.monotonic() - since > QUIET_S

    supervisor.until(each_second(is_shown), limit_s)


@dataclass(frozen=True)
class Usage:
    """What processes have used, all of them together."""

    cpu_s: float
    rss_mib: float
    peak_mib: float
    """Since its start."""

    @classmethod
    def of(cls, *pids: int) -> Usage:
        """As of now. The peaks of several are added up, also where they did not come at the same moment."""
        parts = [cls._of_one(pid) for pid in pids]
        return cls(sum(p.cpu_s for p in parts), sum(p.rss_mib for p in parts), sum(p.peak_mib for p in parts))

    @classmethod
    def _of_one(cls, pid: int) -> Usage:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        lines = dict(line.split(":", 1) for line in status.splitlines())
        rss, peak = (int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        return cls((int(stat[11]) + int(stat[12])) / _TICKS, rss, peak)

    def cores_since(self, before: Usage, seconds: float) -> float:
        """Cores in use since then."""
        return (self.cpu_s - before.cpu_s) / seconds


def _with_id(value: Any, number: int) -> Any:
    return value.replace("{id}", job_id(number)) if isinstance(value, str) else value


def main() -> None:
    """Measure one plan."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # a file for each task log, as in a real triggerer
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16384)), hard))
    figures = measured(Plan(**json.loads(sys.argv[1])))
    sys.stdout.write(f"\nbenchmark-answer:{json.dumps(figures)}\n")


if __name__ == "__main__":
    main()
