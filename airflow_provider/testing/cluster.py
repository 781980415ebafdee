"""The fake cluster and bucket that a DAG author's tests run tasks on: the object behind the fixture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.testing.clock import SkippingClock
from airflow_provider.testing.driver import FakeDriver, spec_in
from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import Fault
from airflow_provider.testing.memory_store import MemoryBucket
from airflow_provider.testing.outcomes import Outcome, Succeeds, Unreachable
from airflow_provider.testing.runs import EmittedEvent, Submission, TaskRun, submission_of
from airflow_provider.testing.supervisor import NotInTestMode, Supervisor
from airflow_provider.testing.task_instance import DagRunOf, TaskInstanceRunner

if TYPE_CHECKING:
    import pytest
    from typing_extensions import Self

    from airflow_provider.core.decision import Decision
    from airflow_provider.testing.jobs_api_parts import FakeJob
    from airflow_provider.testing.memory_store import MemoryStore

_TOKEN = "test-mode"  # noqa: S105 - of the fake
_ENDLESS_S = 366 * 86_400.0


class UnusedOutcomes(InvalidConfig):
    """A test gave more outcomes than jobs were submitted: it does not show what it says."""


class RayTrainCluster:
    """Runs tasks of a DAG as Airflow's own task runner does, against a fake cluster and a bucket in memory.

    Everything between is the provider's real code: rendering, decisions, packages, HTTP, records, trigger, retry policy, XComs
    and asset events. Only what the training does is said by the test.
    """

    def __init__(self) -> None:
        self.clock = SkippingClock()
        self.bucket = MemoryBucket(clock=self.clock.now)
        self.jobs_api = FakeJobsServer(token=_TOKEN)
        """The Jobs API, for faults of one's own: `jobs_api.add(Fault("answer", "POST", status=503))`."""
        self.airflow = Supervisor(now=self.clock.now)
        """What Airflow keeps: `airflow.variables`, `airflow.connections`, asset events."""
        self._outcomes: list[Outcome] = []
        self._drivers: list[FakeDriver] = []
        self._decisions: list[str] = []
        self._outage: Fault | None = None
        self._stuck: NotInTestMode | None = None
        self._runs: dict[tuple[str, str, str, int], list[TaskRun]] = {}
        self._dag_runs: dict[tuple[str, str], DagRunOf] = {}
        self._num_runs = 0

    # --- what a test calls -------------------------------------------------------------------------------------------

    def run(  # noqa: PLR0913 - a test names the few that it is about
        self,
        task: Any,
        *,
        outcomes: Sequence[Outcome] = (),
        conf: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        map_index: int = -1,
        xcoms: Mapping[str, Any] | None = None,
        triggered_by: Sequence[EmittedEvent] = (),
    ) -> TaskRun:
        """Run a task of a DAG with all its retries. The same task in the same `run_id` again is a cleared task.

        :param task: from a parsed DAG: `dag.get_task("train")`.
        :param outcomes: one for each job, in order; jobs without one succeed with one checkpoint.
        :param conf: the DAG run's configuration, which overrides params.
        :param run_id: default: a new DAG run. Tasks of one DAG run see each other's XComs and experiments; its conf, its date
            and what triggered it stay as they were given last.
        :param logical_date: default: none, as for a manual run.
        :param map_index: of a mapped task.
        :param xcoms: results of earlier tasks by task id, of all map indexes together for a mapped one (a list).
        :param triggered_by: asset events that started the DAG run, as another run's `asset_events`.
        """
        if not task.has_dag():
            raise InvalidConfig("The task belongs to no DAG", change="run one from a parsed DAG: dag.get_task('train')")
        _check_index(task, map_index)
        if logical_date is not None and logical_date.tzinfo is None:
            raise InvalidConfig("logical_date has no time zone", change="write datetime(..., tzinfo=timezone.utc)")
        self._num_runs += run_id is None
        run_id = run_id or f"test__{self._num_runs}"
        result = TaskRun(task.dag_id, run_id, task.task_id, map_index)
        dag_run = self._dag_run(task.dag_id, run_id, conf, logical_date, tuple(triggered_by))
        for task_id, value in (xcoms or {}).items():
            self.airflow.put_result((task.dag_id, run_id, task_id), value, is_mapped=_is_mapped(task.dag, task_id))
        earlier = self._runs.setdefault((task.dag_id, run_id, task.task_id, map_index), [])
        self._outcomes = list(outcomes)
        TaskInstanceRunner(self, task, dag_run, result).run_all(num_before=sum(len(run.tries) for run in earlier))
        earlier.append(result)
        if self._outcomes:
            raise UnusedOutcomes(
                f"{len(self._outcomes)} of {len(outcomes)} outcomes were not used: {self._outcomes}",
                known=f"{len(result.submissions)} jobs were submitted; the task is {result.state}: {result.error}",
                change="give one outcome for each job that you expect",
            )
        return result

    def _dag_run(
        self,
        dag_id: str,
        run_id: str,
        conf: Mapping[str, Any] | None,
        logical_date: datetime | None,
        triggered_by: tuple[EmittedEvent, ...],
    ) -> DagRunOf:
        """A DAG run is made once: a task of it that runs later, or again, finds it as it was."""
        before = self._dag_runs.get((dag_id, run_id)) or DagRunOf(run_id, {}, None, (), began=self.clock.now())
        made = replace(
            before,
            conf=before.conf if conf is None else dict(conf),
            logical_date=logical_date or before.logical_date,
            triggered_by=triggered_by or before.triggered_by,
        )
        self._dag_runs[dag_id, run_id] = made
        return made

    def experiment(self, uri: str) -> MemoryStore:
        """What lies below an experiment's path, or below any other."""
        return self.bucket.at(uri)

    # --- used while a task runs --------------------------------------------------------------------------------------

    def begin_try(self) -> None:
        """The cluster can be reached again. What follows the outage follows later: the try shall find a job that runs."""
        if self._outage is not None:
            self.jobs_api.faults.remove(self._outage)
            self._outage = None

    def take(self) -> tuple[list[str], list[Submission]]:
        """Decisions and jobs since the last time."""
        decisions, self._decisions = self._decisions, []
        new = [driver for driver in self._drivers if not driver.is_shown]
        for driver in new:
            driver.is_shown = True
        return decisions, [submission_of(driver, self.jobs_api.packages) for driver in new]

    def check_stuck(self) -> None:
        """Raise what a trigger or a task has swallowed."""
        if self._stuck is not None:
            stuck, self._stuck = self._stuck, None
            raise stuck

    # --- inside ------------------------------------------------------------------------------------------------------

    def _accept(self, job: FakeJob) -> None:
        """A job was posted: its driver begins, and does what the test says."""
        spec = spec_in(self.jobs_api.packages, job.request["runtime_env"])
        driver = FakeDriver(job, spec, self.bucket, self.clock)
        self._drivers.append(driver)
        driver.begin()
        outcome = self._outcomes.pop(0) if self._outcomes else Succeeds()
        driver.play(outcome)
        if isinstance(outcome, Unreachable):
            # The POST itself is answered; from now on nothing is.
            self._outage = self.jobs_api.add(Fault("refuse"))

    def _pass_time(self) -> None:
        for driver in self._drivers:
            if self._outage is None:
                driver.reach_again()
            driver.tick()
        if self.clock.waited_s > _ENDLESS_S:
            self._stuck = NotInTestMode(
                "The wait did not end in a year of skipped time",
                change="give the training a timeout_s, or the sensor a timeout and an experiment that reaches its condition",
            )
            raise self._stuck

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Take the place of cluster, bucket, supervisor and clock until the test ends."""
        from airflow.sdk import Connection

        from airflow_provider.hooks.ray import RayHook
        from airflow_provider.operators.training_try import TrainingTry

        self.jobs_api.driver, self.clock.on_skip = self._accept, self._pass_time
        self.clock.install(monkeypatch)

        def connection(conn_id: str) -> Connection:
            return Connection(conn_id=conn_id, conn_type="ray", host=self.jobs_api.url, password=_TOKEN)

        async def aconnection(conn_id: str) -> Connection:
            return connection(conn_id)

        decide = TrainingTry.decide

        def noted(attempt: TrainingTry, newest: Any) -> Decision:
            decision = decide(attempt, newest)
            self._decisions.append(getattr(decision, "reason", None) or decision.failure.reason)  # type: ignore[union-attr]
            return decision

        nowhere = SimpleNamespace(get_service_endpoint_url=lambda _: None)
        monkeypatch.setattr(TrainingTry, "decide", noted)
        monkeypatch.setattr(RayHook, "get_connection", staticmethod(connection))
        monkeypatch.setattr(RayHook, "aget_connection", staticmethod(aconnection))
        monkeypatch.setattr(
            "airflow_provider.storage.object_store.open_object_store",
            lambda uri, **_: self.bucket.at(uri.removeprefix("file://")),
        )
        monkeypatch.setattr(
            "airflow_provider.hooks.experiment.s3_hook",
            lambda _: SimpleNamespace(conn_config=nowhere, region_name=None),
        )
        self._be_airflow(monkeypatch)
        return self

    def _be_airflow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Answer a task's process; a secrets backend of the author's own configuration is not asked."""
        from airflow.sdk.execution_time.secrets.execution_api import ExecutionAPISecretsBackend
        from airflow.secrets.environment_variables import EnvironmentVariablesBackend

        backends = [EnvironmentVariablesBackend(), ExecutionAPISecretsBackend()]
        runner, supervisor = (f"airflow.sdk.execution_time.{name}" for name in ("task_runner", "supervisor"))
        monkeypatch.setattr(f"{runner}.SUPERVISOR_COMMS", self.airflow, raising=False)
        monkeypatch.setattr(f"{supervisor}.ensure_secrets_backend_loaded", lambda: backends)


def _check_index(task: Any, map_index: int) -> None:
    if not task.is_mapped:
        return
    if map_index < 0:
        raise InvalidConfig(f"{task.task_id} is a mapped task", change="say which of its instances: map_index=0")
    count = _count_in_file(task)
    if count is not None and map_index >= count:
        # Airflow's own rendering would take the index modulo the count.
        raise InvalidConfig(f"{task.task_id} has {count} instances", change=f"map_index is at most {count - 1}")


def _count_in_file(task: Any) -> int | None:
    """How many instances a mapped task has; None where other tasks' results say that."""
    value = task._get_specified_expand_input().value  # noqa: SLF001 - Airflow tells it to its scheduler only
    if isinstance(value, (list, tuple)):
        return len(value)
    parts = list(value.values()) if isinstance(value, Mapping) else [value]
    known = [len(part) for part in parts if isinstance(part, (list, tuple, dict))]
    return math.prod(known) if len(known) == len(parts) else None


def _is_mapped(dag: Any, task_id: str) -> bool:
    return bool(dag.has_task(task_id) and dag.get_task(task_id).is_mapped)
