"""How each story ends: faults stop, everybody has a turn, and then no job may be left without a task that waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.core import layout
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.lineage import project
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.operators.collecting import read_experiment
from tests.unit.machine import damage
from tests.unit.machine.airflow import OVER, kind_of
from tests.unit.machine.drivers import DriverProcess
from tests.unit.machine.surroundings import AWS_KEY, TOKEN

if TYPE_CHECKING:
    from tests.unit.machine.processes import Process
    from tests.unit.machine.world import World

_ROUNDS = 60


def finish(world: World) -> None:
    """Let everything come to its end, and look at what is left."""
    damage.repair(world)
    world.cluster.silence = None
    world.clocks.airflow_off_s = world.clocks.driver_off_s = 0.0
    _end_others(world)
    clears = 0
    for number in range(_ROUNDS):
        turn_of_drivers(world, trains=number >= _ROUNDS // 3)
        if world.truth.violations:
            return
        if world.airflow.state not in OVER:
            turn_of_airflow(world)
        elif not _going_on(world):
            break
        elif not world.airflow.current.is_marked and clears < 2:
            # A task that failed for good beside a live job: the next try of a person's clear sees to it.
            clears += 1
            world.airflow.clear_task(is_visible=True, is_killed=True)
        else:
            break
    _judge(world)


def _judge(world: World) -> None:
    state, left = world.airflow.state, [d.name for d in _going_on(world)]
    if state not in OVER:
        world.truth.broken(f"liveness: the task is {state} after {_ROUNDS} rounds without a fault: {_where(world)}")
    elif left and not _is_refused(world):
        world.truth.broken(f"G4 {left} go on although the task is {state}, and nothing ends them")
    _check_lineage(world)
    _check_secrets(world)


def _is_refused(world: World) -> bool:
    """Known limit: without a checkpoint to restore nothing is claimed, so a driver that no cluster shows is not fenced."""
    refused = kind_of(world.airflow.current.error) is FailureKind.CHECKPOINT
    return refused and all(driver.is_unseen for driver in _going_on(world))


def _where(world: World) -> str:
    processes = [f"{p.name} at {p.at}" for p in world.processes if not p.is_over]
    return ", ".join([*processes, *(f"{d.name} {d.status}" for d in world.drivers)])


def _going_on(world: World) -> list[DriverProcess]:
    return [d for d in world.drivers if d.is_live]


def _end_others(world: World) -> None:
    """Listeners and on_kills come to their end; so do zombies, unless they wait for a job."""
    for process in list(world.processes):
        is_current = process is world.airflow.current.process
        if is_current or process.is_over or isinstance(process.about, DriverProcess):
            continue
        for _ in range(3):
            _go(world, process)
        if not process.is_over:
            process.kill()
    world.settle_ends()


def _go(world: World, process: Process | None) -> None:
    if process is not None and not process.is_over:
        world.go(process)


def turn_of_drivers(world: World, *, trains: bool) -> None:
    for driver in list(world.drivers):
        if driver.is_live and driver.status == "PENDING":
            world.place(driver)
        for thread in [t for t in driver.threads if not t.is_over]:
            point = thread.at.point if thread.at is not None else ""
            if not thread.is_over and point != "parked" and (trains or point != "train"):
                world.go(thread, "end" if trains else "train")
        if driver.is_standing:
            world.go(driver.poll())


def turn_of_airflow(world: World) -> None:
    airflow, run = world.airflow, world.airflow.current
    if airflow.state == "up_for_retry":
        airflow.retry()
    elif airflow.state == "deferred" and run.event is not None:
        airflow.resume()
    elif airflow.state == "deferred" and (run.process is None or run.process.is_over):
        airflow.start_trigger()
    elif run.process is not None and run.process.is_over:
        if run.try_number <= run.max_tries:
            airflow.retry()
        else:
            airflow.state = "failed"
    _go(world, airflow.current.process)


def _check_lineage(world: World) -> None:
    """G7: every claim, and every committed checkpoint that a manifest still lists, from the bucket alone."""
    if not world.truth.attempts:
        return
    try:
        lineage = project(read_experiment(world.records))
    except RayTrainError as error:
        world.truth.broken(f"G7 the lineage can't be read: {error}")
        return
    refs = {str(attempt.claim.ref) for attempt in world.truth.attempts.values()}
    if refs != {attempt.ref for attempt in lineage.attempts}:
        world.truth.broken(f"G7 attempts {sorted(refs)} are {[a.ref for a in lineage.attempts]} in the lineage")
    known = {checkpoint.name for checkpoint in lineage.checkpoints}
    for rank in world.truth.attempts:
        body = world.bucket.body(layout.manifest(*rank))
        for name in parse_manifest(body, key="manifest").names if body else ():
            if f"{layout.generation(rank[0])}/{name}" not in known:
                world.truth.broken(f"G7 {name} of generation {rank[0]} is committed and not in the lineage")


def _check_secrets(world: World) -> None:
    """G11: what left the process otherwise than into the bucket."""
    said = [str(value) for value in world.airflow.said]
    said += [str((r.metadata, r.runtime_env, r.entrypoint)) for r in world.cluster.requests]
    for text in said:
        if TOKEN in text or AWS_KEY in text:
            world.truth.broken(f"G11 a secret stands in {text[:300]}")
