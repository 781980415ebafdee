"""RayTrainSensor: waits for a training's end, its next checkpoint or a metric, by the records in the bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSensorTimeout, AirflowSkipException

from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.experiment_wait import END
from airflow_provider.core.wait_parameters import check_parameters
from airflow_provider.policies.retry import RayTrainRetryPolicy

if TYPE_CHECKING:
    from typing import Literal

    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial
    from airflow.sdk.definitions.retry_policy import RetryPolicy
    from airflow.triggers.base import StartTriggerArgs

    from airflow_provider.sensors.wait import SensorWait


class RayTrainSensor(BaseSensorOperator):
    """Wait for an experiment of RayTrainOperator: its end, its next committed checkpoint, or a condition on its metrics.

    It reads the bucket only, so it works while the cluster is down, and from another DAG or another Airflow; it owns, claims and
    writes nothing there. Returns a dict with the names of the operator's result (`experiment`, `generation`, `latest_checkpoint`,
    ...) and `checkpoint`, the one that ended the wait. `timeout`, `poke_interval`, `mode`, `soft_fail`, `never_fail` and `silent_fail`
    are Airflow's own; `mode`, `exponential_backoff` and `max_wait` hold with `deferrable=False`.

    Only the newest generation counts: after a clear that trains again, what the training before it reached is history. An end that is
    there counts, whatever a person clears afterwards; `since="now"` waits for the next one instead.

    `retries` are for lost workers and a store that is away; none of the wait's own ends is tried again. A retry goes on with what was
    old when the wait began; a clear begins a new wait.

    A failed attempt ends the wait only when no retry of the training can follow: until then its next try restores, and the wait
    goes on. A success counts once the training's task has accepted it.

    With `start_from_trigger` no worker runs before the wait: the triggerer takes the first look. Results and ends are the same. Not for
    mapped tasks, for XComs, nor for waits that compare with what was there when they began (`since="now"`, and `until="checkpoint"`
    without `since`); all these are found when the DAG is parsed.

    :param experiment: the experiment's path, or an XCom of the training (`train.output`, or a text inside it).
    :param storage_path: the training's `storage_path`; with the next four, the same path as the operator derives.
    :param external_dag_id: the training's DAG; default: this one.
    :param external_run_id: its DAG run; default: the own run id (two DAGs on one schedule share their run ids).
    :param external_task_id: its task.
    :param external_map_index: its map index, if it is mapped.
    :param until: `end`, `checkpoint`, or a condition: `val_loss < 0.3 and epoch >= 5`, `plateau(val_loss, patience=5)`.
    :param since: `now`, or a checkpoint (name, URI, or the result of a training or sensor): what is older does not count.
        Default: nothing is old, but for `until="checkpoint"`, which waits for one that is not there yet.
    :param missing: `wait` for an experiment that is not there yet, or `fail`.
    :param max_checkpoints_without_metric: so many checkpoints without a metric of the condition end the wait; None: only the training's end.
    :param unreachable_timeout_s: how long the store may fail to answer in a row; a refusal ends the wait at once.
    :param aws_conn_id: Airflow AWS connection for the bucket; None takes boto3's default chain.
    :param deferrable: wait in the triggerer (default) or block a worker.
    :param start_from_trigger: begin in the triggerer too, without a worker slot for the first second; None: as the class says (no).
    :param retries: Airflow's, with a default of 3.
    :param retry_policy: default: retries by failure kind, as RayTrainOperator's.
    """

    template_fields = (
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
    template_fields_renderers: ClassVar[dict[str, str]] = dict.fromkeys(("experiment", "since"), "json")
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        experiment: str | Mapping[str, Any] | None = None,
        storage_path: str | None = None,
        external_dag_id: str | None = None,
        external_run_id: str | None = None,
        external_task_id: str | None = None,
        external_map_index: int | str | None = None,
        until: str = END,
        since: str | Mapping[str, Any] | None = None,
        missing: Literal["wait", "fail"] = "wait",
        max_checkpoints_without_metric: int | None = 100,
        unreachable_timeout_s: float = 1800.0,
        aws_conn_id: str | None = "aws_default",
        deferrable: bool = True,
        start_from_trigger: bool | None = None,
        retries: int | None = 3,
        retry_policy: RetryPolicy | None = RayTrainRetryPolicy(),  # noqa: B008 - a default set in the body is lost when mapped
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_policy=retry_policy, **kwargs)
        self.experiment = experiment
        self.storage_path = storage_path
        self.external_dag_id = external_dag_id
        self.external_run_id = external_run_id
        self.external_task_id = external_task_id
        self.external_map_index = external_map_index
        self.until = until
        self.since = since
        self.missing = missing
        self.max_checkpoints_without_metric = max_checkpoints_without_metric
        self.unreachable_timeout_s = unreachable_timeout_s
        self.aws_conn_id = aws_conn_id
        self.deferrable = deferrable
        check_parameters(self)
        self._wait: SensorWait | None = None
        self.start_from_trigger = type(self).start_from_trigger if start_from_trigger is None else start_from_trigger
        if self.start_from_trigger:
            self.start_trigger_args = self._start_args()

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Map the sensor, as with any operator."""
        told = kwargs.get("start_from_trigger")
        if cls.start_from_trigger if told is None else told:
            from airflow_provider.sensors.start_from_trigger import mapped_error

            raise mapped_error()
        # Said, so that neither default_args nor expand() sets it for an index: that would show on a worker only.
        return super().partial(**{**kwargs, "start_from_trigger": False})

    @property
    def is_rescheduled(self) -> bool:
        """Whether each look is a process of its own."""
        return bool(self.reschedule) and not self.deferrable

    def execute(self, context: Context) -> dict[str, Any]:
        """Look once; defer (default), or look again in this process or in the next poke.

        Returns the result. Raises the errors of `sensors.errors`; what can't be read or was refused raises the store's own.
        """
        with self._typed_ends(context):
            wait = self._open(context)
            if not self.deferrable:
                return self._block(wait, context)
            found = wait.look()
            if found is None:
                wait.defer()
            return found or {}

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on where the trigger ended, with an event or without one."""
        if self.start_from_trigger:
            from airflow_provider.sensors.wait import SensorWait

            SensorWait.forget_earlier_try(context)
        return super().resume_execution(next_method, next_kwargs, context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return or raise what the trigger saw."""
        from airflow_provider.core.sensor_event import SensorEvent

        with self._typed_ends(context):
            return self._open(context).conclude(SensorEvent.parse(event))

    def poke(self, context: Context) -> PokeReturnValue:
        """One look."""
        wait = self._wait or self._open(context)
        found = wait.look()
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def _start_args(self) -> StartTriggerArgs:
        from airflow_provider.sensors.start_from_trigger import start_args
        from airflow_provider.sensors.wait import wait_limit

        return start_args(self, limit=wait_limit(self)[0])

    def _open(self, context: Context) -> SensorWait:
        from airflow_provider.sensors.wait import SensorWait

        self._wait = SensorWait.open(self, context)
        return self._wait

    def _block(self, wait: SensorWait, context: Context) -> dict[str, Any]:
        """Airflow's own loop over `poke`, which knows modes and time-outs; its time-out with what was seen last."""
        try:
            result: dict[str, Any] = super().execute(context)
        except AirflowSensorTimeout as error:
            raise (error if isinstance(error, RayTrainError) else wait.timed_out()) from None
        return result

    @contextmanager
    def _typed_ends(self, context: Context) -> Iterator[None]:
        """Say a failure where a person can read it; then Airflow's meaning of `soft_fail` and `never_fail`, the same in every mode.

        `soft_fail` skips on the wait's own ends (time-out, failed training, ...), `never_fail` on everything.
        """
        from airflow_provider.sensors.errors import ENDS

        try:
            yield
        except AirflowRescheduleException:
            raise  # no end: the next poke comes later
        except AirflowSkipException as skip:
            # Airflow's own loop has made a skip of it: only the cause, or else the passed time, says why.
            cause = skip.__cause__ or (self._wait.timed_out() if self._wait is not None else None)
            self._say(cause, context)
            raise
        except Exception as error:
            self._say(error, context)
            if self.never_fail or (self.soft_fail and isinstance(error, ENDS)):
                option = "never_fail" if self.never_fail else "soft_fail"
                raise AirflowSkipException(f"Skipping ({option}): {error}") from error
            raise

    def _say(self, error: BaseException | None, context: Context) -> None:
        from airflow_provider.operators.publication import Publication

        if not isinstance(error, RayTrainError):
            return
        Publication(context["ti"], self.log, store=context["task_state_store"]).error(error)
        if self._wait is not None:
            self._wait.publish_failure(error)
