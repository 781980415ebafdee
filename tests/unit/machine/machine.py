"""The state machine: what processes, people, clusters and buckets may do, in any order; after each step nothing is broken.

The product's code runs between fakes: operator, session, try, `on_kill`, trigger and waiter, listener, records, and the
driver with its claim watch, restore, fit loop, records and outcome. Each call to the bucket, the cluster or Airflow is a
place where a process may freeze, die, fail, or lose the answer. What really happened is kept beside it (`truth.py`):

- G1 (also: a replaced process publishes nothing), G2, G3, G5, G6, G8, G9, G10, G12: where the effect happens;
- G4: stops where they are recorded; orphans at the end, when whatever would end a job has had its turn;
- G7: at the end, from the bucket alone;
- G11: at each write to the bucket; XComs, state store, trigger rows and jobs at the end. The logs are not looked at here.

Not here is what needs a real Ray: the fence in its filesystem (`tests/unit/runtime/test_fencing.py`).
"""

from __future__ import annotations

from typing import Any

from airflow.sdk.exceptions import AirflowTaskTimeout
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_provider.core.errors import ClusterUnreachable, RayTrainError
from tests.unit.machine import damage
from tests.unit.machine.airflow import OVER, RETRIES, TryRun
from tests.unit.machine.drivers import DriverProcess
from tests.unit.machine.ending import finish
from tests.unit.machine.processes import DIE_AFTER, FAIL, LOSE, POINTS, Process
from tests.unit.machine.stages import STAGES
from tests.unit.machine.world import World

MAX_TRIES = 6
KINDS = frozenset({"faults", "around", "breaks", "tears", "airflow", "people"})
WHICH = st.integers(0, 3)
UNTIL = st.sampled_from(["end", "end", "end", *POINTS])
NEXT = st.sampled_from(["next"] * 8 + POINTS)


def pick(items: list[Any], which: int) -> Any:
    """One of them, the newest for 0."""
    return items[::-1][which % len(items)]


class TrainingMachine(RuleBasedStateMachine):
    """One task instance and all that can happen to it."""

    mistake: Any = None
    """A seeded mistake, called with the world."""
    stages: Any = STAGES
    kinds: Any = KINDS
    """What may happen beside the course of things."""
    world: World = None  # type: ignore[assignment]

    @initialize(deferrable=st.booleans(), lags=st.booleans(), stage=st.integers(0, len(STAGES) - 1))
    def begin(self, deferrable: bool, lags: bool, stage: int) -> None:
        self.world = World(deferrable=deferrable, lags=lags)
        if self.mistake is not None:
            self.mistake(self.world)
        self.world.airflow.start_try(1, RETRIES, 0)
        self.stages[stage % len(self.stages)](self.world)

    # --- processes ---------------------------------------------------------------------------------------------------

    def runnable(self) -> list[Process]:
        found = [p for p in self.world.processes if not p.is_over]
        return [p for p in found if p.at is None or p.at.point != "parked"]

    @rule(which=WHICH, until=UNTIL)
    def goes_on(self, which: int, until: str) -> None:
        found = self.runnable()
        if found:
            self.world.go(pick(found, which), until)

    @rule(newest_first=st.booleans())
    def all_go_on(self, newest_first: bool) -> None:
        """The quiet course of things: jobs get a place, processes go on, events resume the task."""
        for driver in self.drivers("PENDING"):
            self.world.place(driver)
        for process in self.runnable()[:: -1 if newest_first else 1]:
            if not process.is_over and (process.at is None or process.at.point != "train"):
                self.world.go(process, "train")
        if self.world.airflow.state == "deferred":
            self._resume()

    @precondition(lambda self: "faults" in self.kinds)
    @rule(which=WHICH, until=NEXT, how=st.sampled_from([FAIL, LOSE, DIE_AFTER, "die"]))
    def fails_at(self, which: int, until: str, how: str) -> None:
        """The next call of a process, or the next of a kind, fails or is its last."""
        found = self.runnable()
        if not found:
            return
        process = pick(found, which)
        if until != "next":
            self.world.go(process, until)
        is_outside = process.at is not None and process.at.room in ("bucket", "cluster", "airflow")
        if process.is_over or not is_outside or process.about == "listener":
            return
        process.had_fault = True
        if how != "die":
            self.world.order(process, how)
        if how in ("die", DIE_AFTER):
            self._dies(process)

    def _dies(self, process: Process) -> None:
        process.kill()
        if isinstance(process.about, DriverProcess):
            self.world.crash(process.about)
        self.world.settle_ends()

    # --- jobs --------------------------------------------------------------------------------------------------------

    def drivers(self, *statuses: str) -> list[DriverProcess]:
        return [d for d in self.world.drivers if d.is_live and d.status in statuses]

    @precondition(lambda self: self.drivers("PENDING"))
    @rule(which=WHICH, until=UNTIL)
    def job_gets_a_place(self, which: int, until: str) -> None:
        driver = pick(self.drivers("PENDING"), which)
        self.world.place(driver)
        self.world.go(driver.main, until if until != "end" else "train")

    @precondition(lambda self: self.drivers("RUNNING"))
    @rule(
        which=WHICH,
        what=st.sampled_from(["commit", "commit", "commit", "finish", "node", "error", "poison", "begin again"]),
        until=st.sampled_from(["train", "train", "manifest", "delete", "outcome", "restored", "end"]),
    )
    def training_goes_on(self, which: int, what: str, until: str) -> None:
        main = pick(self.drivers("RUNNING"), which).main
        if main.at is not None and main.at.point == "train":
            self.world.order(main, what)
        if not main.is_over:
            self.world.go(main, until)

    @precondition(lambda self: self.drivers("RUNNING"))
    @rule(which=WHICH, does=st.sampled_from(["poll", "poll", "alive", "crash"]))
    def driver_does(self, which: int, does: str) -> None:
        driver = pick(self.drivers("RUNNING"), which)
        if does == "crash":
            self.world.crash(driver)
        elif driver.is_standing:
            thread = driver.poll() if does == "poll" else driver.sign_of_life()
            self.world.go(thread)

    # --- the surroundings --------------------------------------------------------------------------------------------

    @precondition(lambda self: "around" in self.kinds)
    @rule(
        what=st.sampled_from(["replaced", "moved", "silent", "answers", "pass", "jump", "outside stop"]), data=st.data()
    )
    def around_it(self, what: str, data: st.DataObject) -> None:
        """The cluster is replaced or falls silent, time passes, a clock jumps, somebody stops a job past Airflow."""
        world = self.world
        if what in ("replaced", "moved"):
            world.replace_cluster(survives=what == "moved")
        elif what == "silent":
            world.cluster.silence = ClusterUnreachable("The dashboard gives no answer")
        elif what == "answers":
            world.cluster.silence = None
        elif what == "pass":
            world.clocks.passed_s += data.draw(st.sampled_from([20.0, 100.0, 2_000.0, 40_000.0]))
        elif what == "jump":
            jump_s = data.draw(st.sampled_from([-3_600.0, -60.0, 60.0, 3_600.0]))
            world.clocks.airflow_off_s, world.clocks.driver_off_s = data.draw(
                st.sampled_from([(jump_s, 0.0), (0.0, jump_s)])
            )
        elif self.drivers("RUNNING"):
            world.has_outside_stop = True
            world.stop_job(pick(self.drivers("RUNNING"), data.draw(WHICH)).job_id)

    @precondition(lambda self: "breaks" in self.kinds and damage.breakable(self.world))
    @rule(which=WHICH, how=st.sampled_from(damage.OF_CHECKPOINTS))
    def checkpoint_breaks(self, which: int, how: str) -> None:
        damage.break_checkpoint(self.world, pick(damage.breakable(self.world), which), how)

    @precondition(lambda self: "tears" in self.kinds and self.world.truth.attempts)
    @rule(which=st.integers(0, 8), how=st.sampled_from([b"", b'{"schema_version": 1, "k"']))
    def record_is_torn_or_restored(self, which: int, how: bytes) -> None:
        if self.world.torn:
            damage.repair(self.world)
        else:
            damage.tear(self.world, pick(damage.tearable(self.world), which), how)

    # --- Airflow and people ------------------------------------------------------------------------------------------

    @property
    def run(self) -> TryRun:
        return self.world.airflow.current

    @property
    def has_tries(self) -> bool:
        return self.world.airflow.num_tries < MAX_TRIES

    @precondition(lambda self: "airflow" in self.kinds)
    @rule(what=st.sampled_from(["retry", "retry", "lost heartbeat", "stale event", "time-out"]))
    def airflow_does(self, what: str) -> None:
        """The next try begins or a deferred task resumes; or a try is replaced whose process may live on; or it times out."""
        airflow, run = self.world.airflow, self.run
        if airflow.state == "deferred":
            self._resume()
        elif what == "time-out" and airflow.state == "running":
            self._time_out()
        elif airflow.state == "up_for_retry" and self.has_tries:
            airflow.retry()
        elif what == "stale event" and airflow.has_result and self.has_tries:
            airflow.retry(keeps_id=True)
        elif what != "retry" and airflow.state == "running" and self.has_tries and run.try_number <= run.max_tries:
            airflow.retry(keeps_id=what == "stale event")

    def _resume(self) -> None:
        """The event arrived; or the triggerer died, and another takes the row."""
        if self.run.event is not None:
            self.world.airflow.resume()
        elif self.run.process is not None and self.run.process.is_over:
            self.world.airflow.start_trigger()

    def _time_out(self) -> None:
        """execution_timeout: raised where the worker stands, then on_kill while the state is still running."""
        process = self.run.process
        if process is None or process.is_over or process.at is None:
            return
        process.had_fault = True
        process.interrupt(AirflowTaskTimeout())
        if process.is_over and isinstance(process.error, AirflowTaskTimeout):
            kill = self.world.spawn(f"on_kill of {self.run.name}", self.run.operator.on_kill, about=self.run)
            self.world.go(kill)
        self.world.settle_ends()

    @precondition(lambda self: "people" in self.kinds)
    @rule(
        what=st.sampled_from(["clear", "clear", "unseen clear", "failed", "success", "made again"]),
        is_killed=st.booleans(),
    )
    def person_does(self, what: str, is_killed: bool) -> None:
        """Clears, marks, or deletes the DAG run and makes it again; on_kill may come to what runs."""
        airflow = self.world.airflow
        if what in OVER:
            if airflow.state not in OVER:
                airflow.mark(what, is_killed=is_killed)
        elif not self.has_tries:
            return
        elif what == "made again":
            airflow.recreate()
        else:
            airflow.clear_task(is_visible=what == "clear", is_killed=is_killed)

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_broken(self) -> None:
        if self.world is not None:
            assert not self.world.truth.violations, self.world.truth.violations[0]

    @invariant()
    def g1_of_all_drivers_one_may_go_on(self) -> None:
        standing = [] if self.world is None else [d.name for d in self.world.drivers if d.is_standing and may_go_on(d)]
        if len(standing) > 1:
            self.world.truth.broken(f"G1 {standing} all go on, and nothing ends either")
        assert len(standing) <= 1, f"G1 {standing} all go on, and nothing ends either"

    def teardown(self) -> None:
        if self.world is None:
            return
        try:
            if not self.world.truth.violations:
                finish(self.world)
                self.nothing_is_broken()
        finally:
            note("calls:\n  " + "\n  ".join(self.world.scheduler.journal))
            self.world.close()


def may_go_on(driver: DriverProcess) -> bool:
    """Whether its next look finds nothing."""
    try:
        return driver.look() is None
    except RayTrainError:
        return False  # not known: a record is torn
