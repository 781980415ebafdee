"""One wait of one task instance: wires Airflow's context to the looks, and ends with a result or a typed error."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.experiment_wait import WaitFailure
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.redaction import redact
from airflow_provider.core.sensor_event import SensorEnd, SensorEvent
from airflow_provider.core.wait_parameters import check_parameters, resolved_experiment, wait_spec
from airflow_provider.sensors.errors import (
    ConditionNotMet,
    ExperimentMissing,
    ExperimentNeverCame,
    MetricMissing,
    TrainingFailed,
    WaitTimedOut,
)
from airflow_provider.sensors.memory import WaitMemory
from airflow_provider.triggers.experiment_waiter import ExperimentWaiter, WatchedExperiment, root_of
from airflow_provider.triggers.ray_train_sensor import BACKSTOP, RayTrainSensorTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider.sensors.ray_train import RayTrainSensor

WAIT_KEY = "ray_train_wait"
"""XCom of a wait without success: `end`, `reason`, `experiment`."""
_ENDS: dict[type[BaseException], str] = {
    TrainingFailed: WaitFailure.TRAINING_FAILED.value,
    ExperimentMissing: WaitFailure.MISSING.value,
    MetricMissing: WaitFailure.NO_METRIC.value,
    ConditionNotMet: WaitFailure.NOT_MET.value,
    ExperimentNeverCame: "never_came",
    WaitTimedOut: SensorEnd.TIMEOUT.value,
}
_LONGEST_S = 10 * 365 * 86_400.0
"""A time-out beyond this would give a deadline that no date reaches."""


@dataclass
class SensorWait:
    """Everything one run of the sensor works with."""

    sensor: RayTrainSensor
    context: Context
    experiment: WatchedExperiment
    waiter: ExperimentWaiter
    memory: WaitMemory | None
    """None where nothing has to be remembered."""

    @classmethod
    def open(cls, sensor: RayTrainSensor, context: Context) -> Self:
        """Check what was rendered and find the experiment. Raises typed errors; nothing is read yet."""
        check_parameters(sensor)
        ti = context["ti"]
        own = TaskInstanceKey(ti.dag_id, ti.run_id, ti.task_id, ti.map_index if ti.map_index is not None else -1)
        uri = resolved_experiment(sensor, own)
        experiment = WatchedExperiment(uri, sensor.aws_conn_id, sensor.storage_path or root_of(uri))
        spec = wait_spec(sensor, uri=uri)
        is_kept = spec.needs_baseline or sensor.is_rescheduled
        memory = WaitMemory.load(context, experiment=uri) if is_kept else None
        if memory is not None and memory.baseline is not None:
            spec = spec.model_copy(update={"baseline": memory.baseline})
        waiter = ExperimentWaiter(
            experiment,
            spec,
            unreachable_timeout_s=None if sensor.silent_fail else sensor.unreachable_timeout_s,
            say=sensor.log.info,
            warn=sensor.log.warning,
        )
        waiter.trouble = memory.trouble if memory is not None and sensor.is_rescheduled else None
        return cls(sensor, context, experiment, waiter, memory)

    def look(self) -> dict[str, Any] | None:
        """One look: the result, or None to wait on. Raises the typed error that ends the wait."""
        event = self.waiter.step(_now())
        if self.memory is not None:
            trouble = self.waiter.trouble if self.sensor.is_rescheduled else None
            self.memory.keep(self.context, baseline=self.waiter.spec.baseline, trouble=trouble)
        return self.conclude(event) if event is not None else None

    def defer(self) -> None:
        """Hand the wait to the triggerer. Raises TaskDeferred."""
        sensor, (limit, _) = self.sensor, wait_limit(self.sensor)
        sensor.defer(
            trigger=RayTrainSensorTrigger(
                experiment_uri=self.experiment.uri,
                aws_conn_id=self.experiment.aws_conn_id,
                storage_path=self.experiment.storage_path,
                spec=self.waiter.spec.model_dump(mode="json"),
                deadline=(_now() + limit).isoformat(),
                poke_interval=sensor.poke_interval,
                unreachable_timeout_s=None if sensor.silent_fail else sensor.unreachable_timeout_s,
            ),
            method_name="execute_complete",
            timeout=limit + BACKSTOP,
        )

    def conclude(self, event: SensorEvent) -> dict[str, Any]:
        """The result of an ended wait. Raises the typed error of any other end."""
        if event.end is SensorEnd.DONE and event.result is not None:
            self.sensor.log.info("done: %s", event.reason)
            return event.result
        if event.end is SensorEnd.ERROR and event.error is not None:
            raise event.error.rebuilt()
        if event.end is SensorEnd.TIMEOUT:
            raise self.timed_out(event)
        raise self._failed(event)

    def timed_out(self, event: SensorEvent | None = None) -> WaitTimedOut:
        """The error of a wait whose time is up."""
        event = event or self.waiter.timed_out()
        cls = ExperimentNeverCame if event.is_absent else WaitTimedOut
        limit, name = wait_limit(self.sensor)
        what = f"{self._waited_for} within {limit.total_seconds():g} s ({name})"
        return cls(
            what,
            known=f"last seen: {event.reason}",
            change="check the path, or that the training starts at all"
            if event.is_absent
            else f"give more time ({name})",
            experiment=self.experiment.uri,
        )

    def _failed(self, event: SensorEvent) -> RayTrainError:
        uri, reason = self.experiment.uri, event.reason
        if event.why is WaitFailure.TRAINING_FAILED and event.failure is not None:
            return TrainingFailed(
                f"The training that this sensor waits for failed: {reason}",
                known=f"{event.failure.kind.value}; experiment {uri}",
                change="see the training's own task log",
                failure=event.failure,
                experiment=uri,
            )
        if event.why is WaitFailure.MISSING:
            change = "start the training first, correct the path, or use missing='wait'"
            return ExperimentMissing(reason, known="missing='fail'", change=change, experiment=uri)
        cls, change = ConditionNotMet, "relax the condition, or train on"
        if event.why is WaitFailure.NO_METRIC:
            cls, change = MetricMissing, "correct the name, and report the metric together with a checkpoint"
        return cls(f"{self._waited_for}: {reason}", known=f"experiment {uri}", change=change, experiment=uri)

    @property
    def _waited_for(self) -> str:
        return f"until={self.waiter.spec.until!r} was not reached"

    def publish_failure(self, error: RayTrainError) -> None:
        """Which end it was, where other tasks can read it: an exception's type is shown in the log only."""
        end = next((name for cls, name in _ENDS.items() if isinstance(error, cls)), SensorEnd.ERROR.value)
        value = {"end": end, "reason": redact(f"{error.what}. {error.known}")[:2000], "experiment": self.experiment.uri}
        self.context["ti"].xcom_push(key=WAIT_KEY, value=value)

    @staticmethod
    def forget_earlier_try(context: Context) -> None:
        """Delete what an earlier try told.

        Airflow does that when a try begins in a worker, but not where it resumes there: a start from the trigger only resumes.
        """
        from airflow.sdk.execution_time.xcom import XCom

        from airflow_provider.operators.publication import FAILURE_KEY

        ti = context["ti"]
        for key in ("return_value", WAIT_KEY, FAILURE_KEY):
            XCom.delete(key, ti.task_id, ti.dag_id, ti.run_id, ti.map_index)


def wait_limit(sensor: RayTrainSensor) -> tuple[timedelta, str]:
    """How long a wait may last, and the parameter that says so."""
    limit = timedelta(seconds=min(sensor.timeout, _LONGEST_S))
    # Airflow keeps execution_timeout in a worker itself, but not while a task is deferred.
    if sensor.deferrable and sensor.execution_timeout is not None and sensor.execution_timeout < limit:
        return sensor.execution_timeout, "execution_timeout"
    return limit, "timeout"


def _now() -> datetime:
    return datetime.now(timezone.utc)
