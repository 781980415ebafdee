"""What is struck, and how it comes back: one process, one service, or the network before one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import psutil

from tests.support.training_run import driver_processes, worker_processes

if TYPE_CHECKING:
    from tests.stack.gate import Gate
    from tests.stack.process import Service
    from tests.stack.ray_cluster import RayNode
    from tests.support.training_run import TrainingRun

DOWN_S = 5.0
"""How long a service or a network stays away."""
DELAY_S, SLOW_S = 3.0, 30.0
"""What a slow network adds to each request, and for how long."""


class Target(str, Enum):
    """What is struck."""

    TRAINING_WORKER = "training worker"
    CONTROLLER = "controller"
    DRIVER = "driver"
    RAYLET = "raylet"
    HEAD = "head"
    AIRFLOW_WORKER = "Airflow worker"
    SUPERVISOR = "its supervisor"
    TRIGGERER = "triggerer"
    SCHEDULER = "scheduler"
    API_SERVER = "API server"
    OBJECT_STORE = "object store"
    STORE_NETWORK = "network to the store"
    DASHBOARD_NETWORK = "network to the dashboard"


@dataclass
class Struck:
    """Proof that a fault fired, and how the struck part comes back."""

    what: str
    """What was there to strike: pids, or the service."""
    recover: Callable[[], None] | None = None
    lasts_s: float = DOWN_S


class NothingToStrike(AssertionError):
    """The target did not exist at this point: the run proves nothing."""


def strike(target: Target, run: TrainingRun) -> Struck:
    """SIGKILL a process, kill a service or cut a network. Raises NothingToStrike."""
    stack = run.stack
    if target is Target.HEAD:
        session = stack.ray.session_name()
        stack.ray.kill_head()
        return Struck(f"session {session}", stack.ray.start)
    if target in _SERVICES:
        return _kill_service(_SERVICES[target](run))
    if target in (Target.STORE_NETWORK, Target.DASHBOARD_NETWORK):
        gate = _gate(target, run)
        gate.cut()
        return Struck("connections", gate.open)
    return Struck(f"pids {_signal(_processes(target, run), signal.SIGKILL)}")


def refuse(target: Target, run: TrainingRun) -> Struck:
    """Close the port behind which a service lies: connections are refused, as while a load balancer has no target."""
    gate = _gate(target, run)
    gate.refuse()
    return Struck("the port", gate.open)


def slow(target: Target, run: TrainingRun) -> Struck:
    """Every request takes some seconds more, for as long as an outage of that kind lasts."""
    gate = _gate(target, run)
    before, gate.delay_s = gate.num_delayed, DELAY_S

    def hurry() -> None:
        gate.open()
        if gate.num_delayed == before:
            raise NothingToStrike("no request came while the network was slow")

    return Struck(f"requests, by {DELAY_S:g} s each", hurry, lasts_s=SLOW_S)


def _gate(target: Target, run: TrainingRun) -> Gate:
    return run.stack.gates["s3" if target is Target.STORE_NETWORK else "ray"]


def kill_raylet(node: RayNode) -> Struck:
    """SIGKILL the raylet of the node where the training workers run, and nothing else there; a repaired node joins later."""
    pids = _signal(_named(node.processes(), "/raylet/raylet"), signal.SIGKILL)

    def repair() -> None:
        node.kill()
        node.start()

    return Struck(f"pids {pids}", repair)


def freeze(target: Target, run: TrainingRun) -> Struck:
    """SIGSTOP, as a machine that stands still; `recover` lets it go on with what it was doing.

    An Airflow worker with its supervisor: alone, that one would go on to tell Airflow that the task is well.
    """
    found = _job_processes(run) if target is Target.DRIVER else _processes(target, run)
    if target is Target.AIRFLOW_WORKER:
        found = [*_processes(Target.SUPERVISOR, run), *found]
    _signal(found, signal.SIGSTOP)

    def thaw() -> None:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)

    return Struck(f"pids {[p.pid for p in found]}", thaw)


def away(struck: Struck) -> None:
    """Wait as long as an outage lasts, then let the part come back. A killed process has nobody who starts it again."""
    if struck.recover is not None:
        time.sleep(struck.lasts_s)
        struck.recover()


def _kill_service(service: Service) -> Struck:
    if not service.is_alive():
        raise NothingToStrike(f"{service.name} does not run")
    service.kill()
    return Struck(service.name, service.start)


_SERVICES: dict[Target, Callable[[TrainingRun], Service]] = {
    Target.TRIGGERER: lambda run: run.stack.airflow.triggerer,
    Target.SCHEDULER: lambda run: run.stack.airflow.scheduler,
    Target.API_SERVER: lambda run: run.stack.airflow.api_server,
    Target.OBJECT_STORE: lambda run: run.stack.s3,
}


def _processes(target: Target, run: TrainingRun) -> list[psutil.Process]:
    ray = run.stack.ray
    if target is Target.TRAINING_WORKER:
        return worker_processes(ray)[:1]
    if target is Target.CONTROLLER:
        return _named(ray.processes(), "ray::TrainController")
    if target is Target.DRIVER:
        return driver_processes(ray)
    task = _named(run.stack.airflow.scheduler.processes(), f"airflow worker -- {run.task()['id']}")
    if target is Target.AIRFLOW_WORKER:
        return task
    return [parent for process in task if (parent := process.parent()) is not None]


def _job_processes(run: TrainingRun) -> list[psutil.Process]:
    """All of a job with what would stop it: as if its machine stood still."""
    found = run.stack.ray.processes()
    names = ("ray::JobSupervisor", "ray::TrainController", "ray::RayTrainWorker", "airflow_provider.runtime.driver")
    return [process for name in names for process in _named(found, name)]


def _named(processes: list[psutil.Process], text: str) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if text in " ".join(process.cmdline()):
                found.append(process)
    return found


def _signal(processes: list[psutil.Process], number: int) -> list[int]:
    """Signal; the answer is who was there."""
    pids = []
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
            pids.append(process.pid)
    if not pids:
        raise NothingToStrike("no such process at this point")
    return pids
