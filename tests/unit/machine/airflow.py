"""A little Airflow: one task instance over its tries, with what people and the scheduler do to it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferred

from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.hooks.final_stop import JOB_RECORD_KEY, stop_for_good
from airflow_provider.operators.publication import LINEAGE_KEY
from airflow_provider.policies.retry import RayTrainRetryPolicy
from airflow_provider.triggers.ray_train import RayTrainTrigger
from airflow_provider.triggers.waiter import error_event
from tests.support.decisions import is_retried
from tests.support.fake_airflow import MARKER_KEY, RUN_ID, FakeDagRun
from tests.unit.machine.processes import Killed, Process
from tests.unit.machine.surroundings import LiveStateStore, LiveTaskInstance

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from airflow_provider.operators.ray_train import RayTrainOperator
    from tests.unit.machine.world import World

KEY = TaskInstanceKey("d", RUN_ID, "train")
RETRIES = 3
OVER = ("success", "failed")


@dataclass(eq=False)
class Clear:
    """A clear that no claim has answered yet. One that changed only `clear_number` is none to `on_clear="auto"`."""

    rank: tuple[int, int]
    """Of the newest attempt when it came."""
    was_published: bool


@dataclass(eq=False)
class TryRun:
    """One try: its process in a worker, later its trigger's row, later the process that resumes."""

    try_number: int
    max_tries: int
    clear_number: int
    clear: Clear | None
    """The unanswered clear that it started after."""
    operator: RayTrainOperator
    context: dict[str, Any] = field(default_factory=dict)
    process: Process | None = None
    row: dict[str, Any] | None = None
    """Of its trigger."""
    event: dict[str, Any] | None = None
    is_archived: bool = False
    is_weak: bool = False
    """Replaced after a stale event, with its task instance id left to it: its marker is still accepted."""
    confirmed: bool = True
    """Whether Airflow believed in it when it last took its marker."""
    is_marked: bool = False
    error: BaseException | None = None

    @property
    def name(self) -> str:
        return f"try {self.try_number}/{self.max_tries}/{self.clear_number}"


def driven(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that awaits nothing but calls of ours."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it awaits something else")


class Airflow:
    """Scheduler, state store, XComs and API server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = "none"
        self.kept: dict[str, Any] = {}
        self.xcoms: dict[str, Any] = {}
        self.said: list[Any] = []
        """All that was ever kept outside the bucket, for G11."""
        self.current: TryRun = None  # type: ignore[assignment]
        self.replaced: list[TryRun] = []
        self.num_tries, self.num_runs = 0, 1
        self.clear: Clear | None = None
        self.has_result = False

    # --- tries -------------------------------------------------------------------------------------------------------

    def start_try(self, try_number: int, max_tries: int, clear_number: int, *, keeps_id: bool = False) -> TryRun:
        """Airflow archives the try before and deletes the task's XComs; its processes may live on."""
        if self.current is not None:
            self.current.is_archived, self.current.is_weak = True, True
            self.replaced.append(self.current)
        if not keeps_id:
            for replaced in self.replaced:
                replaced.is_weak = False
        self.xcoms, self.has_result = {}, False
        self.num_tries += 1
        run = TryRun(try_number, max_tries, clear_number, self.clear, self.world.operator())
        ti = LiveTaskInstance(
            try_number=try_number, max_tries=max_tries, airflow=self, run=run, dag_id=KEY.dag_id, task_id=KEY.task_id
        )
        store = LiveStateStore(self.kept, airflow=self, run=run)
        run.context = {"ti": ti, "task_state_store": store, "dag_run": FakeDagRun(clear_number)}
        self.current, self.state = run, "running"
        self._execute(run, lambda: run.operator.execute(run.context))  # type: ignore[arg-type]
        return run

    def retry(self, *, keeps_id: bool = False) -> None:
        run = self.current
        self.start_try(run.try_number + 1, run.max_tries, run.clear_number, keeps_id=keeps_id)

    def _execute(self, run: TryRun, target: Any) -> None:
        run.process = self.world.spawn(f"worker of {run.name}", target, about=run)

    def resume(self) -> None:
        """The event starts a new process of the same try."""
        run, event = self.current, self.current.event
        run.operator, run.event, self.state = self.world.operator(), None, "running"
        self._execute(run, lambda: run.operator.execute_complete(run.context, event))  # type: ignore[arg-type]

    def ended(self, process: Process, run: TryRun) -> None:
        """A worker's process is over: what Airflow makes of it."""
        if process is not run.process or isinstance(process.error, Killed):
            return
        run.error = process.error
        is_current = run is self.current and self.state == "running"
        if isinstance(process.error, TaskDeferred):
            trigger = process.error.trigger
            following = trigger._following()
            self.world.truth.waits(run.name, following.ref, following.deadline)
            if is_current:
                run.row = json.loads(json.dumps(trigger.serialize()[1]))
                self.said.append(run.row)
                self.state = "deferred"
                self.start_trigger()
            return
        if process.error is None:
            self.world.truth.published(run, process.result)
            if is_current:
                self.said.append(process.result)
                self.state, self.has_result = "success", True
            return
        will_retry = self._is_retried(process.error) and run.try_number <= run.max_tries
        self.world.truth.failed(run, process, is_current=is_current, is_retried=self._is_retried(process.error))
        if is_current:
            self.state = "up_for_retry" if will_retry else "failed"

    def _is_retried(self, error: BaseException) -> bool:
        if isinstance(error, RayTrainError):
            return is_retried(error)
        return RayTrainRetryPolicy().evaluate(error, 1, RETRIES).action.name != "FAIL"

    def push(self, run: TryRun, key: str, value: Any) -> None:
        self.said.append(value)
        if key == LINEAGE_KEY:
            self.world.truth.pushed(run, key)
        self.xcoms[key] = value

    # --- triggers ----------------------------------------------------------------------------------------------------

    def start_trigger(self) -> None:
        """A triggerer takes the row; another one may have had it before."""
        run = self.current
        assert run.row is not None
        trigger = RayTrainTrigger(**run.row)

        def wait() -> dict[str, Any]:
            event: dict[str, Any] = driven(trigger._wait()) | trigger._identity()
            return json.loads(json.dumps(event))  # type: ignore[no-any-return]

        run.process = self.world.spawn(f"trigger of {run.name}", wait, about=run)
        run.process.seen["trigger"] = trigger

    def fired(self, process: Process, run: TryRun) -> None:
        """The trigger's event, or its error as an event."""
        is_gone = isinstance(process.error, Killed)
        if run is not self.current or self.state != "deferred" or process is not run.process or is_gone:
            return
        if process.error is not None:
            process.result = error_event(process.error) | process.seen["trigger"]._identity()
        run.event = process.result

    # --- people ------------------------------------------------------------------------------------------------------

    def kill(self, run: TryRun) -> Process | None:
        """on_kill comes to a worker's process or a trigger; the worker's main thread goes on until SIGKILL."""
        process = run.process
        if process is None or process.is_over:
            return None
        if "trigger" in process.seen:
            trigger = process.seen["trigger"]
            trigger.task_instance = None
            process.kill()
            return self.world.spawn(f"on_kill of trigger of {run.name}", lambda: driven(trigger.on_kill()), about=run)
        if process.at is None:
            return None
        return self.world.spawn(f"on_kill of {run.name}", run.operator.on_kill, about=run)

    def clear_task(self, *, is_visible: bool, is_killed: bool) -> None:
        """A person clears the task: what runs is killed, or dies unheard."""
        run = self.current
        if is_visible:
            self.clear = self._clear()
        self.state = "restarting"
        if is_killed:
            self.kill(run)
        self.start_try(run.try_number + 1, run.max_tries + int(is_visible), run.clear_number + 1)

    def _clear(self) -> Clear:
        newest = self.world.truth.newest()
        return Clear(newest.rank, newest.is_published) if newest else Clear((0, 0), was_published=False)

    def recreate(self) -> None:
        """The DAG run is deleted and made again under the same id: its state store is gone."""
        if MARKER_KEY not in self.kept or self.num_runs > 1:
            # A process of a run that nobody owned in may be taken for one of a later run: its owner record comes first.
            for process in self.world.processes:
                if isinstance(process.about, TryRun):
                    process.kill()
        self.num_runs += 1
        self.clear = self._clear()
        self.kept = {}
        self.start_try(1, RETRIES, 0)

    def mark(self, state: str, *, is_killed: bool) -> None:
        """A person marks the task: the listener in the API server stops the training for good."""
        run = self.current
        run.is_marked = True
        self.state = state
        if is_killed:
            self.kill(run)
        elif run.process is not None and "trigger" in run.process.seen:
            run.process.kill()  # its row is deleted
        job = self.kept.get(JOB_RECORD_KEY) or self.xcoms.get(JOB_RECORD_KEY)
        if job is None:
            # No record yet, and that of a DAG run before is deleted with it: what still runs ends at its deadline, or by
            # the next try.
            run.is_marked = False
            return
        counters = {"try_number": run.try_number, "max_tries": run.max_tries, "clear_number": run.clear_number}
        listener = self.world.spawn(
            f"listener for {run.name}",
            lambda: stop_for_good(job, task=KEY, counters=counters, how=f"marked {state}"),
            about="listener",
        )
        listener.seen["listener"] = run


def kind_of(error: BaseException | None) -> FailureKind | None:
    """The failure kind of one of our errors."""
    return error.failure.kind if isinstance(error, RayTrainError) else None
