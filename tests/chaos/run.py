"""One run of chaos: start a training, strike at a point, let the struck part come back, judge what is left."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.chaos.faults import NothingToStrike, Struck, Target, away, freeze, kill_raylet, refuse, slow, strike
from tests.chaos.kept import read_kept
from tests.chaos.observer import Observer
from tests.chaos.points import TRIGGERS, Point
from tests.chaos.report import Report
from tests.chaos.retention import pending_deletions
from tests.chaos.table import Pair, Way
from tests.chaos.verdict import Ended, judge
from tests.stack.gate import Hold, Seen, wait_for_hold
from tests.stack.process import StackError, wait_until
from tests.stack.ray_cluster import RayNode
from tests.support.training_run import TrainingRun, driver_processes, is_bit_equal

if TYPE_CHECKING:
    from tests.stack.airflow_client import AirflowClient
    from tests.stack.services import Stack

EPOCHS = 6
LIMIT_S = 300.0
_WAYS = {Way.KILL: strike, Way.FREEZE: freeze, Way.REFUSE: refuse, Way.SLOW: slow}
_LIVE = frozenset({"PENDING", "RUNNING"})


def unharmed_weights(stack: Stack, airflow: AirflowClient) -> dict[str, Any]:
    """The weights of the same training without a fault."""
    run = TrainingRun(stack, airflow, "chaos_deferred", airflow.run_dag("chaos_deferred", conf={"epochs": EPOCHS}))
    task = airflow.wait_for_task(*run.key, timeout_s=LIMIT_S)
    assert task["state"] == "success", run.log()[-4000:]
    return run.weights()


class ChaosRun:
    """One pair on a running stack whose gates are open."""

    def __init__(self, stack: Stack, airflow: AirflowClient, pair: Pair) -> None:
        """Nothing is started yet."""
        self.stack, self.airflow, self.pair = stack, airflow, pair
        self.observer = Observer(stack.s3, prefix=f"chaos/{pair.dag_id}/", is_watching_deletions=True)
        self._struck: Struck | None = None
        self._run: TrainingRun | None = None
        self._started = threading.Event()
        self._is_struck = threading.Event()
        self._is_thawed = threading.Event()
        """Until then the request that a frozen machine was about to send has not arrived."""
        self._node: RayNode | None = None

    def execute(self, weights: dict[str, Any]) -> Report:
        """Run it; `weights` are the unharmed run's. Raises AssertionError when the fault did not fire."""
        began = time.monotonic()
        trigger = TRIGGERS[self.pair.point]
        self.stack.gates["s3"].on_answer = self.observer
        hold = self.stack.gates[trigger.gate].hold(trigger.hold(self._at_point))
        try:
            self._run = self._start()
            self._started.set()
            self._wait_for_point(hold)
            if not trigger.is_held:
                self._strike()
            assert self._struck is not None
            self._recover(self._struck)
            return self._report(weights, began)
        finally:
            self._put_right()

    @property
    def run(self) -> TrainingRun:
        """The task instance under attack."""
        assert self._run is not None
        return self._run

    def _start(self) -> TrainingRun:
        if self.pair.target is Target.RAYLET:
            self._node = RayNode(self.stack.ray, "workers", num_cpus=1, resources={"slot": 1})
            self._node.start()
        run_id = self.airflow.run_dag(self.pair.dag_id, conf={"epochs": EPOCHS})
        return TrainingRun(self.stack, self.airflow, self.pair.dag_id, run_id)

    def _wait_for_point(self, hold: Hold) -> None:
        if not self.pair.is_freeze:
            wait_for_hold(hold, timeout_s=LIMIT_S)
            return
        # Its request may be held until the thaw, which comes later.
        wait_until(
            lambda: self._is_struck.is_set() or hold.done.is_set(),
            timeout_s=LIMIT_S,
            what=f"a request {self.pair.point.value}",
        )
        if hold.error is not None:
            raise hold.error

    def _at_point(self, _: Seen) -> None:
        assert self._started.wait(30)
        trigger = TRIGGERS[self.pair.point]
        if trigger.is_held:
            self._strike()
        self._is_struck.set()
        if self.pair.is_freeze and trigger.is_before:
            self._is_thawed.wait(3 * LIMIT_S)

    def _strike(self) -> None:
        if self.run.records() is None:
            raise NothingToStrike("the experiment is not known yet")
        if self._node is not None:
            self._struck = kill_raylet(self._node)
        else:
            self._struck = _WAYS[self.pair.way](self.pair.target, self.run)

    def _recover(self, struck: Struck) -> None:
        if not self.pair.is_freeze:
            away(struck)
            return
        try:
            if self.pair.target is Target.DRIVER:
                wait_until(
                    self._is_next_attempt_there,
                    timeout_s=2 * LIMIT_S,  # given up as silent, asked to stop, waited for, and only then restored
                    what="the next attempt",
                )
                if self.pair.point is Point.MANIFEST_WRITE and not pending_deletions(self.observer.events):
                    raise NothingToStrike("the frozen driver had nothing left to delete")
            else:
                wait_until(lambda: self.run.task()["try_number"] > 1, timeout_s=LIMIT_S, what="the next try")
                wait_until(lambda: len(self.run.lineage().tries) > 1, timeout_s=LIMIT_S, what="its owner record")
        finally:
            self._thaw(struck)

    def _is_next_attempt_there(self) -> bool:
        """It has committed, and so also deleted; where the zombie's own commit is still to come, it has only begun.

        Then its manifest lists what the zombie's list would have deleted.
        """
        if self.pair.point is Point.BEFORE_COMMIT:
            return (1, 2) in self.observer.ranks("manifest")
        return self.observer.num_commits((1, 2)) > 0

    def _thaw(self, struck: Struck) -> None:
        if struck.recover is not None:
            struck.recover()
        self._is_thawed.set()

    def _report(self, weights: dict[str, Any], began: float) -> Report:
        task = self.airflow.wait_for_task(*self.run.key, timeout_s=LIMIT_S)
        live = self._live_jobs()
        self.observer.look()
        verdict = judge(self.observer.events, self._ended(task, weights, live))
        assert self._struck is not None
        claims = set(self.observer.ranks("claim"))
        return Report(
            self.pair.name, self._struck.what, task["try_number"], len(claims), time.monotonic() - began, verdict
        )

    def _ended(self, task: dict[str, Any], weights: dict[str, Any], live: tuple[str, ...]) -> Ended:
        lineage = self.run.xcom("checkpoint_lineage") or {"attempts": [], "checkpoints": []}
        is_equal = bool(self.run.xcom()) and is_bit_equal(self.run.weights(), weights)
        checkpoints = {c["name"].partition("/")[2]: c for c in lineage["checkpoints"] if c["state"] != "uncommitted"}
        committed = frozenset(name for name, c in checkpoints.items() if c["state"] == "committed")
        records = self.run.records()
        assert records is not None
        return Ended(
            state=task["state"],
            epochs={name: c["metrics"]["epoch"] for name, c in checkpoints.items() if "epoch" in c["metrics"]},
            last_epoch=EPOCHS - 1,
            is_bit_equal=is_equal,
            lineage_attempts=frozenset(_rank(a["ref"]) for a in lineage["attempts"]),
            is_thawed=self.pair.is_frozen_writer,
            may_end_deletion=self.pair.is_frozen_writer and not TRIGGERS[self.pair.point].is_held,
            kept=read_kept(self.stack.s3, records, committed=committed),
            live_jobs=live,
        )

    def _live_jobs(self) -> tuple[str, ...]:
        """What is left of the run a minute after its end."""
        ray = self.stack.ray

        def alive() -> list[str]:
            jobs = json.loads(ray.get("/api/jobs/"))
            found = [j["submission_id"] for j in jobs if j["status"] in _LIVE and j["type"] == "SUBMISSION"]
            return found + [f"driver {p.pid}" for p in driver_processes(ray)]

        try:
            wait_until(lambda: not alive(), timeout_s=60, what="the end of all jobs")
        except StackError:
            return tuple(alive())
        return ()

    def _put_right(self) -> None:
        """Whatever happened, the next run finds every service up and every gate open."""
        if self._struck is not None and self.pair.is_freeze:
            self._thaw(self._struck)
        self._is_thawed.set()
        for gate in self.stack.gates.values():
            gate.release_all()
            gate.on_answer = None
        if self._node is not None:
            self._node.stop()
        for service in (self.stack.s3, self.stack.ray, *self.stack.airflow.components.values()):
            if not service.is_alive():
                service.start()
        self.stack.airflow.wait_until_healthy()
        if self._run is not None:
            self._end(self._run)

    def _end(self, run: TrainingRun) -> None:
        """A run that did not end by itself must not meet the next one's gates and observer."""
        if run.task()["state"] in {"success", "failed"}:
            return
        self.airflow.set_dag_run_state(run.dag_id, run.run_id, "failed")
        if live := self._live_jobs():
            raise StackError(f"{self.pair.name} left {', '.join(live)} behind: what comes next would meet it")


def _rank(ref: str) -> tuple[int, int]:
    generation, attempt = ref.split("/")
    return int(generation[1:]), int(attempt[1:])
