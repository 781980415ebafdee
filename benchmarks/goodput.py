"""The same training to the same last step under seeded faults: how near to what Ray's start-up and the checkpoints allow."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider.core.layout import MANIFEST
from benchmarks import recovery_cuts
from benchmarks.fault_plan import DRIVER, WORKER, planned
from benchmarks.faulty_life import Life, Plan, Struck, costs_of, live_through
from benchmarks.goodput_bound import bound
from benchmarks.goodput_report import Outcome, Setting, report
from benchmarks.machine import this_machine
from benchmarks.measure import MeasurementFailed, alternating
from benchmarks.options import Options
from benchmarks.recovery_cuts import cuts_of_new_attempt, cuts_of_retried_task
from benchmarks.report import Report
from benchmarks.shares import AIRFLOW, Cut, split
from benchmarks.step_marks import MarkFile, expected_number, num_repeated
from benchmarks.task_log import executed_at
from benchmarks.training_cluster import (
    OurTraining,
    TrainingCluster,
    our_driver,
    plain_driver,
    training_cluster,
    training_worker,
)
from tests.chaos.observer import Observer
from tests.chaos.points import is_write, path_of
from tests.chaos.verdict import Ended, Verdict, judge
from tests.stack.gate import Seen

NUM_WORKERS = 2
EVERY, STEP_S = 10, 0.25
"""A checkpoint every 2.5 s: Ray takes a report every 2 s at most."""
MINUTES = (0.5, 1.0, 5.0)
"""Mean time between failures, in minutes of training."""
STEPS, QUICK_STEPS = 240, 70
"""A minute of training: the nine runs of a round take about 20 minutes on two quiet cores."""
SEED = 3
"""The first one whose plans hold at least one fault in that minute at each rate."""
LIMIT_S = 420.0
"""When a training is given up that never comes to its end."""


def run(options: Options) -> Report:
    """Measure ours, plain Ray and a peer's retry in alternation under each rate of faults."""
    state, steps = this_machine(), options.choose(STEPS, QUICK_STEPS)
    rounds, minutes = options.num_repeats or options.choose(3, 1), options.choose(MINUTES, MINUTES[:1])
    outcomes: list[Outcome] = []
    plain_lives: list[Life] = []
    with training_cluster(is_gated=True) as cluster:
        for mtbf in minutes:
            sides = [side(cluster, mtbf, steps) for side in (Ours, Plain, Peer)]
            alternating({side.name: side.measure for side in sides}, rounds)
            outcomes += [outcome for side in sides for outcome in side.outcomes]
            plain_lives += [outcome.life for outcome in outcomes if outcome.side == Plain.name]
    costs = costs_of(plain_lives)
    bounds = {
        (mtbf, seed): bound(planned(seed=seed, mtbf_s=60 * mtbf, step_s=STEP_S), steps=steps, every=EVERY, costs=costs)
        for mtbf in minutes
        for seed in range(SEED, SEED + rounds)
    }
    setting = Setting(state, steps, rounds, is_quick=options.quick)
    return report(outcomes, bounds, costs, setting)


@dataclass
class Side(ABC):
    """Who keeps a training alive. Each round has the next seed."""

    cluster: TrainingCluster
    mtbf: float
    steps: int
    outcomes: list[Outcome] = field(default_factory=list)
    name = ""

    def measure(self) -> Mapping[str, float]:
        """One training."""
        seed = SEED + len(self.outcomes)
        outcome = self._lived(seed)
        self.outcomes.append(outcome)
        return {"wall_s": outcome.life.wall_s}

    @abstractmethod
    def _lived(self, seed: int) -> Outcome:
        """Train to the last step under the seed's faults."""

    def _loop(self) -> dict[str, Any]:
        return {"steps": self.steps, "every": EVERY, "step_s": STEP_S}

    def _through(
        self,
        life: Life,
        marks: MarkFile,
        seed: int,
        *,
        find_driver: Callable[[], Any],
        after_strike: Callable[[Struck], None],
    ) -> Life:
        plan = Plan(
            marks,
            planned(seed=seed, mtbf_s=60 * self.mtbf, step_s=STEP_S),
            steps=self.steps,
            find=lambda target: training_worker(marks) if target == WORKER else find_driver(),
            after_strike=after_strike,
            limit_s=LIMIT_S,
        )
        return live_through(life, plan)

    def _outcome(self, life: Life, seed: int, **more: Any) -> Outcome:
        last = next((m.number for m in life.marks if m.step == self.steps - 1), "")
        is_right = last == expected_number(self.steps)
        return Outcome(self.name, self.mtbf, seed, life, num_repeated(life.marks), is_right, **more)


class Ours(Side):
    """The operator, with everything that Airflow does in between."""

    name = "ours"

    def _lived(self, seed: int) -> Outcome:
        stack = self.cluster.stack
        observer = Observer(stack.s3, prefix="benchmarks/stepping_deferred/")
        stack.gates["s3"].on_answer = observer
        try:
            with self.cluster.training("stepping_deferred", self._loop(), num_workers=NUM_WORKERS) as training:
                return self._followed(training, seed, observer)
        finally:
            stack.gates["s3"].on_answer = None

    def _followed(self, training: OurTraining, seed: int, observer: Observer) -> Outcome:
        stack, marks = self.cluster.stack, training.marks
        life = Life(time.time())
        self._through(life, marks, seed, find_driver=lambda: our_driver(stack), after_strike=lambda _: None)
        if life.is_finished:
            self.cluster.airflow.wait_for_task(*training.run.key, timeout_s=LIMIT_S)
        # Until the operator was called it was Airflow's time, and no fault had to do with it.
        life.began_at = called_at(training, after=life.began_at)
        result = training.run.xcom() or {}
        return self._outcome(
            life,
            seed,
            verdict=self._judged(training, observer, training.run.task()["state"]),
            airflow_s=airflow_s(training, life, cuts_of_new_attempt),
            own_goodput=(result.get("goodput") or {}).get("fraction"),
        )

    def _judged(self, training: OurTraining, observer: Observer, state: str) -> Verdict:
        """By what the bucket was told, in order, as the chaos runs are."""
        lineage = training.run.lineage()
        committed = {c.name.partition("/")[2]: int(c.metrics["step"]) for c in lineage.checkpoints if c.metrics}
        final = max(lineage.checkpoints, key=lambda c: c.metrics.get("step", -1), default=None)
        is_equal = final is not None and final.metrics.get("number") == expected_number(self.steps)
        return judge(
            observer.events,
            Ended(
                state=state,
                epochs=committed,
                last_epoch=self.steps - 1,
                is_bit_equal=is_equal,
                lineage_attempts=frozenset(observer.ranks("claim")),
            ),
        )


def called_at(training: OurTraining, *, after: float) -> float:
    """When Airflow called the operator for the first time."""
    begun = executed_at(training.log(1), after=after)
    if begun is None:
        raise MeasurementFailed("the first try's log does not say when the operator was called")
    return begun


def airflow_s(training: OurTraining, life: Life, cuts: Callable[[recovery_cuts.Seen], list[Cut]]) -> float:
    """Airflow's share of all recoveries from a lost driver; each ended a try."""
    deaths = [struck.at for struck in life.struck if struck.target == DRIVER]
    logs = [training.log(number + 1) for number in range(len(deaths) + 1)]
    return sum(
        split(cuts(recovery_cuts.Seen(at, (), before=logs[n], after=logs[n + 1])), begin=at)[AIRFLOW]
        for n, at in enumerate(deaths)
    )


class Plain(Side):
    """Ray alone with `max_failures`, and for a lost driver somebody who posts the same job again at that very moment."""

    name = "plain"

    def _lived(self, seed: int) -> Outcome:
        run_name, marks = f"goodput-{uuid.uuid4().hex[:8]}", self.cluster.mark_file()

        def post() -> float:
            loop = {**self._loop(), "marks": str(marks.path)}
            return self.cluster.plain.post(loop, name=run_name, num_workers=NUM_WORKERS, max_failures=100)

        def again(struck: Struck) -> None:
            if struck.target == DRIVER:
                post()

        commits: list[float] = []
        gate = self.cluster.stack.gates["s3"]
        gate.on_answer = lambda seen: commits.append(time.time()) if _is_manifest(seen) else None
        try:
            with self.cluster.plain.ending_all():
                life = Life(post(), commits=commits)
                find = lambda: plain_driver(self.cluster.stack)  # noqa: E731 a name for what is found anew each time
                return self._outcome(self._through(life, marks, seed, find_driver=find, after_strike=again), seed)
        finally:
            gate.on_answer = None


def _is_manifest(seen: Seen) -> bool:
    return is_write(seen) and seen.status // 100 == 2 and path_of(seen).endswith(f"/{MANIFEST}")


class Peer(Side):
    """Ray's own client in a Python task: Airflow's retry submits another job, which begins from scratch."""

    name = "peer"

    def _lived(self, seed: int) -> Outcome:
        loop = {**self._loop(), "max_failures": 100}
        with self.cluster.training("plain_task", loop, num_workers=NUM_WORKERS) as training:
            life = Life(time.time())
            find = lambda: plain_driver(self.cluster.stack)  # noqa: E731 as above
            self._through(life, training.marks, seed, find_driver=find, after_strike=lambda _: None)
            life.began_at = called_at(training, after=life.began_at)
            return self._outcome(life, seed, airflow_s=airflow_s(training, life, cuts_of_retried_task))
