"""The same training to the same last step under seeded faults: how near to what Ray's start-up and the checkpoints allow."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider.core.layout import MANIFEST
from benchmarks import recovery_cuts
from benchmarks.fault_plan import DRIVER, WORKER, planned, seeds_with_lost_driver
from benchmarks.faulty_life import Life, Plan, Struck, costs_of, live_through
from benchmarks.goodput_bound import Costs, bound
from benchmarks.goodput_report import Bounds, Outcome, Setting, report
from benchmarks.machine import this_machine
from benchmarks.measure import MeasurementFailed, alternating, complete_rounds
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
STEPS = {0.5: 240, 1.0: 240, 5.0: 720}
"""By the mean time between failures, in minutes of training: one minute, or three where a minute would hardly meet a fault."""
QUICK_STEPS = 70
LIMIT_S, LIMIT_STEPS = 420.0, 240
"""When a training of so many steps is given up that never comes to its end; a longer one has more time."""


def run(options: Options) -> Report:
    """Measure ours, plain Ray and a peer's retry in alternation under each rate of faults."""
    state, steps = this_machine(), options.choose(STEPS, {min(STEPS): QUICK_STEPS})
    rounds = options.num_repeats or options.choose(3, 1)
    outcomes: list[Outcome] = []
    complete: dict[float, int] = {}
    with training_cluster(is_gated=True) as cluster:
        for mtbf, num_steps in steps.items():
            seeds = seeds_with_lost_driver(rounds, mtbf_s=60 * mtbf, step_s=STEP_S, steps=num_steps)
            sides = [side(cluster, mtbf, num_steps, seeds) for side in (Ours, Plain, Peer)]
            samples = alternating({side.name: side.measure for side in sides}, rounds)
            complete[mtbf] = complete_rounds(samples)
            # A side keeps what it measured in a round that another one did not end; the bounds want whole rounds.
            outcomes += [outcome for side in sides for outcome in side.outcomes[: complete[mtbf]]]
    costs = costs_of([outcome.life for outcome in outcomes if outcome.side == Plain.name])
    setting = Setting(state, steps, complete, is_quick=options.quick)
    return report(outcomes, bounds_of(outcomes, steps, costs), costs, setting)


def bounds_of(outcomes: Sequence[Outcome], steps: Mapping[float, int], costs: Costs) -> Bounds:
    """One for each plan that was lived through."""
    return {
        (mtbf, seed): bound(
            planned(seed=seed, mtbf_s=60 * mtbf, step_s=STEP_S), steps=steps[mtbf], every=EVERY, costs=costs
        )
        for mtbf, seed in {(outcome.mtbf, outcome.seed) for outcome in outcomes}
    }


@dataclass
class Side(ABC):
    """Who keeps a training alive."""

    cluster: TrainingCluster
    mtbf: float
    steps: int
    seeds: Sequence[int]
    """Of each round."""
    outcomes: list[Outcome] = field(default_factory=list)
    name = ""

    def measure(self) -> Mapping[str, float]:
        """One training."""
        outcome = self._lived(self.seeds[len(self.outcomes)])
        self.outcomes.append(outcome)
        return {"wall_s": outcome.life.wall_s}

    @property
    def limit_s(self) -> float:
        """When a training of so many steps is given up."""
        return LIMIT_S * max(1.0, self.steps / LIMIT_STEPS)

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
            limit_s=self.limit_s,
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
            self.cluster.airflow.wait_for_task(*training.run.key, timeout_s=self.limit_s)
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
    """Airflow's share of all recoveries from a lost driver, where each of them ended a try."""
    deaths = [struck.at for struck in life.struck if struck.target == DRIVER]
    # The n-th lost driver is looked for in the logs of try n and the one after. If a try ended for another reason, or none did, the
    # logs would be those of other moments: nothing is taken off then, which can't flatter.
    if training.run.task()["try_number"] != len(deaths) + 1:
        return 0.0
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
