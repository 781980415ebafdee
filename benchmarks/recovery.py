"""From SIGKILL to the first new training step, for whatever dies, and what of that was whose."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.machine import this_machine
from benchmarks.measure import Sample, alternating, complete_rounds
from benchmarks.options import Options
from benchmarks.recovery_cuts import (
    Seen,
    cuts_of_attaching,
    cuts_of_new_attempt,
    cuts_of_new_triggerer,
    cuts_of_plain,
    cuts_of_restarted_workers,
    cuts_of_retried_task,
)
from benchmarks.recovery_report import DRIVER_DEFAULT, report
from benchmarks.report import Report
from benchmarks.shares import Cut, split
from benchmarks.step_marks import MarkFile, first_new_ground, training_lost_s
from benchmarks.training_cluster import (
    OurTraining,
    TrainingCluster,
    our_driver,
    plain_driver,
    reported_after,
    strike,
    training_cluster,
    training_worker,
)
from tests.chaos.faults import DOWN_S
from tests.stack.process import wait_until
from tests.support.idle_training import task_process

LOOP = {"steps": 100_000, "every": 15, "step_s": 0.2}
"""A checkpoint every 3 s: Ray takes a report every 2 s at most, so a step is a step and not a wait for it."""
NUM_WORKERS = 2
NUM_COMMITS = 2
"""Reports before each fault, so that there is something to restore."""


def run(options: Options) -> Report:
    """Measure ours, Ray's floor and a peer's retry in alternation on one cluster."""
    state = this_machine()
    rounds = options.num_repeats or options.choose(3, 1)
    with training_cluster() as cluster:
        sides = {"ours": Ours(cluster).measure, "floor": Floor(cluster).measure, "peer": Peer(cluster).measure}
        samples = alternating(sides, rounds)
    return report(samples, state=state, rounds=complete_rounds(samples), is_quick=options.quick)


@dataclass
class Ours:
    """Three trainings: a deferred one meets three faults, one with the default poll its driver's death, one that blocks its worker two."""

    cluster: TrainingCluster

    def measure(self) -> Sample:
        """One round."""
        found: dict[str, float] = {}
        with self.cluster.training("stepping_deferred", LOOP, num_workers=NUM_WORKERS) as training:
            found |= self._worker(training)
            found |= self._triggerer(training)
            found |= self._driver(training, "driver")
        with self.cluster.training("stepping_default", LOOP, num_workers=NUM_WORKERS) as training:
            found |= self._driver(training, DRIVER_DEFAULT)
        with self.cluster.training("stepping_blocking", LOOP, num_workers=NUM_WORKERS) as training:
            found |= self._airflow_worker(training)
            found |= self._head(training)
        return found

    def _worker(self, training: OurTraining) -> dict[str, float]:
        killed_at = _strike_after_commits(training.marks, lambda: training_worker(training.marks))
        _wait_for_ground(training.marks, killed_at)
        _wait_for_report(training.marks, killed_at)
        seen = Seen(killed_at, training.marks.read(), phases=training.phases())
        return figures("training worker", seen, cuts_of_restarted_workers(seen))

    def _triggerer(self, training: OurTraining) -> dict[str, float]:
        _wait_for_report(training.marks, time.time())
        killed_at = time.time()
        service = self.cluster.stack.airflow.triggerer
        service.kill()
        time.sleep(DOWN_S)
        service.start()
        wait_until(
            lambda: cuts_of_new_triggerer(Seen(killed_at, (), after=training.log(1)))[-1].at is not None,
            timeout_s=180,
            what="the trigger on the new triggerer",
            every_s=1,
        )
        _wait_for_report(training.marks, time.time())
        seen = Seen(killed_at, training.marks.read(), after=training.log(1))
        return figures("triggerer", seen, cuts_of_new_triggerer(seen))

    def _driver(self, training: OurTraining, name: str) -> dict[str, float]:
        killed_at = _strike_after_commits(training.marks, lambda: our_driver(self.cluster.stack))
        seen = self._new_attempt(training, killed_at, try_number=2)
        return figures(name, seen, cuts_of_new_attempt(seen))

    def _airflow_worker(self, training: OurTraining) -> dict[str, float]:
        killed_at = _strike_after_commits(training.marks, lambda: [task_process(training.run)])
        training.wait_for_try(2)
        wait_until(
            lambda: cuts_of_attaching(Seen(killed_at, (), after=training.log(2)))[-1].at is not None,
            timeout_s=180,
            what="the next try to attach",
            every_s=1,
        )
        _wait_for_report(training.marks, time.time())
        seen = Seen(killed_at, training.marks.read(), after=training.log(2))
        return figures("Airflow worker", seen, cuts_of_attaching(seen))

    def _head(self, training: OurTraining) -> dict[str, float]:
        killed_at, back_at = _replace_head(self.cluster, training.marks)
        seen = replace(self._new_attempt(training, killed_at, try_number=3), back_at=back_at)
        return figures("head", seen, cuts_of_new_attempt(seen))

    def _new_attempt(self, training: OurTraining, killed_at: float, *, try_number: int) -> Seen:
        _wait_for_ground(training.marks, killed_at)
        _wait_for_report(training.marks, killed_at)
        return Seen(
            killed_at,
            training.marks.read(),
            before=training.log(try_number - 1),
            after=training.log(try_number),
            phases=training.phases(),
            posted_at=training.posted_at(),
        )


@dataclass
class Floor:
    """Plain Ray: `max_failures` for a worker, and else a job of the same name, posted at the very moment at which it can be."""

    cluster: TrainingCluster

    def measure(self) -> Sample:
        """One round."""
        name, marks = f"floor-{uuid.uuid4().hex[:8]}", self.cluster.mark_file()
        found: dict[str, float] = {}
        with self.cluster.plain.ending_all():
            self._post(marks, name)
            killed_at = _strike_after_commits(marks, lambda: training_worker(marks))
            found |= self._found("training worker", Seen(killed_at, ()), marks)
            killed_at = _strike_after_commits(marks, lambda: plain_driver(self.cluster.stack))
            posted = self._post(marks, name)
            found |= self._found("driver", Seen(killed_at, (), posted_at=posted), marks)
            killed_at, back_at = _replace_head(self.cluster, marks)
            posted = self._post(marks, name)
            found |= self._found("head", Seen(killed_at, (), back_at=back_at, posted_at=posted), marks)
        return found

    def _post(self, marks: MarkFile, name: str) -> float:
        loop = {**LOOP, "marks": str(marks.path)}
        return self.cluster.plain.post(loop, name=name, num_workers=NUM_WORKERS, max_failures=20)

    def _found(self, fault: str, seen: Seen, marks: MarkFile) -> dict[str, float]:
        _wait_for_ground(marks, seen.killed_at)
        _wait_for_report(marks, seen.killed_at)
        seen = replace(seen, marks=marks.read())
        return figures(fault, seen, cuts_of_plain(seen))


@dataclass
class Peer:
    """Ray's own client in a Python task: Airflow's retry submits another job, which begins from scratch."""

    cluster: TrainingCluster

    def measure(self) -> Sample:
        """One round."""
        loop = {**LOOP, "max_failures": 0}
        with self.cluster.training("plain_task", loop, num_workers=NUM_WORKERS) as training:
            killed_at = _strike_after_commits(training.marks, lambda: plain_driver(self.cluster.stack))
            _wait_for_ground(training.marks, killed_at)
            seen = Seen(
                killed_at,
                training.marks.read(),
                before=training.log(1),
                after=training.log(2),
                posted_at=self.cluster.plain.newest_posted_at(),
            )
            return figures("driver", seen, cuts_of_retried_task(seen))


def figures(fault: str, seen: Seen, cuts: Sequence[Cut]) -> dict[str, float]:
    """All figures of one recovery, by `fault.figure`."""
    shares = split(cuts, begin=seen.killed_at)
    found: Mapping[str, float] = {
        **shares,
        "total": sum(shares.values()),
        "lost": training_lost_s(seen.marks, killed_at=seen.killed_at),
    }
    return {f"{fault}.{name}": value for name, value in found.items()}


def _strike_after_commits(marks: MarkFile, find: Callable[[], Sequence[Any]]) -> float:
    marks.wait_for(reported_after(time.time(), num=NUM_COMMITS), what="reports before the fault", timeout_s=300)
    return strike(find())


def _replace_head(cluster: TrainingCluster, marks: MarkFile) -> tuple[float, float]:
    """Kill all of the cluster and start another at the same address; when it died and when it answered again."""
    marks.wait_for(reported_after(time.time(), num=NUM_COMMITS), what="reports before the fault", timeout_s=300)
    killed_at = time.time()
    cluster.stack.ray.kill_head()
    cluster.stack.ray.start()
    return killed_at, time.time()


def _wait_for_ground(marks: MarkFile, killed_at: float) -> None:
    marks.wait_for(lambda told: first_new_ground(told, killed_at=killed_at), what="new ground", timeout_s=400)


def _wait_for_report(marks: MarkFile, at: float) -> None:
    marks.wait_for(reported_after(at), what="a report", timeout_s=300)
