"""Looks at an experiment until the wait is over: the same looks in the triggerer and in the worker.

Reads the bucket only: no cluster is asked, nothing is owned, claimed or written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider.core.condition import Condition
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.experiment_sight import ExperimentSight, Stage, training_stage
from airflow_provider.core.experiment_wait import (
    CHECKPOINT,
    END,
    KeepWaiting,
    WaitDone,
    WaitFailed,
    WaitSpec,
    baseline_of,
    judge_look,
    wait_result,
)
from airflow_provider.core.sensor_event import ReadTrouble, SensorEnd, SensorEvent, next_trouble
from airflow_provider.hooks.experiment import open_experiment
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.experiment_view import ExperimentView


@dataclass(frozen=True)
class WatchedExperiment:
    """Where the experiment lies, and how it is read."""

    uri: str
    aws_conn_id: str | None
    storage_path: str | None = None
    """The directory that must exist on a local or shared disk."""

    def view(self) -> ExperimentView:
        """A new view. Credentials are fetched at use."""
        store = open_experiment(self.uri, aws_conn_id=self.aws_conn_id, storage_path=self.storage_path)
        return ExperimentView(ExperimentRecords(store))


def root_of(uri: str) -> str | None:
    """On a disk, an experiment that will come has no folder yet; the first part of its path must be there (a mount)."""
    if uri.startswith("s3://"):
        return None
    return "/" + uri.strip("/").split("/", maxsplit=1)[0]


class ExperimentWaiter:
    """One wait. `step` blocks on the store: the triggerer calls it in a thread."""

    def __init__(
        self,
        experiment: WatchedExperiment,
        spec: WaitSpec,
        *,
        unreachable_timeout_s: float | None,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        """Raises InvalidCondition. `unreachable_timeout_s=None` bears a store that can't be read until the wait's own end."""
        self.spec = spec
        self.trouble: ReadTrouble | None = None
        self.reason = "nothing was read yet"
        """Of the last look: what a time-out tells."""
        self.is_absent = False
        self._condition = None if spec.until in (END, CHECKPOINT) else Condition.parse(spec.until)
        self._experiment = experiment
        self._limit_s = unreachable_timeout_s
        self._say, self._warn = say, warn
        self._told: set[str] = set()
        self._view: ExperimentView | None = None

    def step(self, now: datetime, *, deadline: datetime | None = None) -> SensorEvent | None:
        """Look once: the end of the wait, or None to look again. Raises the typed error that ends it."""
        try:
            self._view = self._view or self._experiment.view()
            sight = self._view.look()
        except (RayTrainError, AirflowRuntimeError, OSError) as error:
            self._bear(error, now)
        else:
            if self.trouble is not None:
                self._say(f"the store can be read again after {self.trouble.looks} looks")
            self.trouble = None
            event = self._judge(sight)
            if event is not None:
                return event
        return self.timed_out() if deadline is not None and now >= deadline else None

    def _judge(self, sight: ExperimentSight) -> SensorEvent | None:
        if self.spec.needs_baseline:
            self.spec = self.spec.model_copy(update={"baseline": baseline_of(sight)})
        verdict = judge_look(sight, self.spec, self._condition)
        self.is_absent = training_stage(sight).stage is Stage.ABSENT
        if isinstance(verdict, WaitDone):
            return SensorEvent.of(verdict, result=wait_result(sight, verdict, self.spec))
        if isinstance(verdict, WaitFailed):
            return SensorEvent.of(verdict)
        self._tell(verdict)
        return None

    def _tell(self, waiting: KeepWaiting) -> None:
        """Changes only: a wait of days must not fill the log."""
        if waiting.reason != self.reason:
            self.reason = waiting.reason
            self._say(f"waiting: {waiting.reason}")
        if waiting.warning is not None and "metric" not in self._told:
            self._told.add("metric")
            self._warn(waiting.warning)

    def _bear(self, error: Exception, now: datetime) -> None:
        trouble = next_trouble(self.trouble, error, now=now, limit_s=self._limit_s)
        # What was cached may be half of what changed meanwhile; clients and connections are made anew too.
        self._view = None
        if trouble is None:
            raise error
        if self.trouble is None or self.trouble.what != trouble.what:
            self._say(f"the store can't be read, trying again: {trouble.what}")
        self.trouble = trouble

    def timed_out(self) -> SensorEvent:
        """The end by time, with what the wait saw last."""
        if self.trouble is not None:
            reason = f"the store could not be read in the last {self.trouble.looks} looks: {self.trouble.what}; before: {self.reason}"
            return SensorEvent(end=SensorEnd.TIMEOUT, reason=reason)
        return SensorEvent(end=SensorEnd.TIMEOUT, reason=self.reason, is_absent=self.is_absent)
