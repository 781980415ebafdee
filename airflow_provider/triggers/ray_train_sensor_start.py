"""The trigger that a RayTrainSensor with `start_from_trigger` begins in: no worker has run anything before."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.wait_parameters import check_wait, resolved_experiment, wait_spec
from airflow_provider.triggers.experiment_waiter import ExperimentWaiter, WatchedExperiment, root_of
from airflow_provider.triggers.ray_train_sensor import BACKSTOP, RayTrainSensorTrigger

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from jinja2 import Environment


RENDERED = (
    "experiment",
    "storage_path",
    "external_dag_id",
    "external_run_id",
    "external_task_id",
    "external_map_index",
    "until",
    "since",
    "aws_conn_id",
)
"""Template fields of the sensor, which a subclass may have more of."""


class RayTrainSensorStartTrigger(RayTrainSensorTrigger):
    """Does what the sensor's `execute` does, then waits as RayTrainSensorTrigger.

    Airflow makes the row when the scheduler finds the task ready, from what the parsed DAG says: so it holds the sensor's own
    parameters, templates among them, under the sensor's names. Airflow's triggerer renders those in place before `run`, each time it
    loads the row.
    """

    def __init__(
        self,
        *,
        experiment: str | None,
        storage_path: str | None,
        external_dag_id: str | None,
        external_run_id: str | None,
        external_task_id: str | None,
        external_map_index: int | str | None,
        until: str,
        since: str | None,
        aws_conn_id: str | None,
        missing: str,
        max_checkpoints_without_metric: int | None,
        poke_interval: float,
        unreachable_timeout_s: float | None,
        wait_s: float,
    ) -> None:
        super().__init__(
            experiment_uri="",
            aws_conn_id=aws_conn_id,
            storage_path=storage_path,
            spec={},
            deadline=None,
            poke_interval=poke_interval,
            unreachable_timeout_s=unreachable_timeout_s,
        )
        self.experiment = experiment
        self.external_dag_id = external_dag_id
        self.external_run_id = external_run_id
        self.external_task_id = external_task_id
        self.external_map_index = external_map_index
        self.until = until
        self.since = since
        self.missing = missing
        self.max_checkpoints_without_metric = max_checkpoints_without_metric
        self.wait_s = wait_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The row that Airflow keeps."""
        plain = "missing max_checkpoints_without_metric poke_interval unreachable_timeout_s wait_s"
        row = {name: getattr(self, name) for name in (*RENDERED, *plain.split())}
        return f"{type(self).__module__}.{type(self).__qualname__}", row

    def get_template_env(self, dag: DAG | None = None) -> Environment:
        """As strict as a worker's: Airflow's own for a trigger leaves out what isn't there, and the wait is for another path."""
        env = super().get_template_env(dag)
        env.undefined = StrictUndefined
        return env

    def _read_row(self) -> tuple[ExperimentWaiter, datetime | None]:
        check_wait(self)
        ti = self.task_instance
        if ti is None:
            raise InvalidConfig("The trigger belongs to no task instance", known="Airflow's triggerer sets it")
        uri = resolved_experiment(self, TaskInstanceKey(ti.dag_id, ti.run_id, ti.task_id))
        spec = wait_spec(self, uri=uri)
        if spec.needs_baseline:
            raise needs_memory()
        waiter = ExperimentWaiter(
            WatchedExperiment(uri, self.aws_conn_id, self.storage_path or root_of(uri)),
            spec,
            unreachable_timeout_s=self.unreachable_timeout_s,
            say=self.log.info,
            warn=self.log.warning,
        )
        return waiter, self._deadline()

    def _deadline(self) -> datetime:
        """The absolute one, which Airflow keeps with the task instance over triggerers: its own, less the backstop."""
        ends: datetime | None = getattr(self, "timeout_after", None)
        if ends is None:
            return datetime.now(timezone.utc) + timedelta(seconds=self.wait_s)
        return (ends if ends.tzinfo else ends.replace(tzinfo=timezone.utc)) - BACKSTOP


def needs_memory() -> InvalidConfig:
    """The error of a wait that only a worker can begin."""
    return InvalidConfig(
        "This wait can't start from the trigger: it compares with what was there when it began",
        known="Airflow 3.3.2 gives a trigger nothing to remember that in, so another triggerer would begin anew",
        change="leave start_from_trigger out, or name the checkpoint that counts as old with since=",
    )
