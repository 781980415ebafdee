"""Where stories begin: at the start, or at a moment that chance alone would take long to come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.machine.world import World


def nothing_yet(world: World) -> None:
    """The first try has begun."""


def training(world: World) -> None:
    """The task waits, its job has committed twice."""
    world.go(world.processes[0])
    (driver,) = world.drivers
    world.place(driver)
    world.go(driver.main, "train")
    for _ in range(2):
        world.order(driver.main, "commit")
        world.go(driver.main, "train")


def dead_driver(world: World) -> None:
    """The same, and the driver has been killed."""
    training(world)
    world.crash(world.drivers[0])


def restored(world: World) -> None:
    """The same, and the next attempt's job waits for a place."""
    dead_driver(world)
    _until_the_next_job(world)


def _until_the_next_job(world: World) -> None:
    """The waiting try ends, and a retry follows."""
    run = world.airflow.current
    for _ in range(6):
        if run.process is not None and not run.process.is_over:
            world.go(run.process)
        if run.event is not None:
            world.airflow.resume()
        if world.airflow.state == "up_for_retry":
            world.airflow.retry()
            run = world.airflow.current


def restoring(world: World) -> None:
    """The same, and its driver is about to read what the attempt before it left."""
    restored(world)
    driver = world.drivers[-1]
    world.place(driver)
    world.go(driver.main, "list attempts")


def going_on(world: World) -> None:
    """The same as restored, and the next attempt is about to train."""
    restored(world)
    driver = world.drivers[-1]
    world.place(driver)
    world.go(driver.main, "train")


def overlapping(world: World) -> None:
    """The cluster's address leads elsewhere: the first driver trains on, unseen, beside the next attempt's, which has restored."""
    training(world)
    world.replace_cluster(survives=True)
    _until_the_next_job(world)
    driver = world.drivers[-1]
    world.place(driver)
    world.go(driver.main, "train")


def finished(world: World) -> None:
    """The training's result is accepted and published."""
    training(world)
    run = world.airflow.current
    world.go(world.drivers[0].main)
    for _ in range(4):
        if run.process is not None and not run.process.is_over:
            world.go(run.process)
        if run.event is not None:
            world.airflow.resume()


def late_post(world: World) -> None:
    """The first try froze right before its POST; the second did not find the job, and has not read the records yet."""
    world.go(world.processes[0], "POST")
    world.airflow.retry()
    process = world.airflow.current.process
    assert process is not None
    world.go(process, "read alive")


STAGES = [nothing_yet, training, dead_driver, restored, restoring, overlapping, finished, late_post]
