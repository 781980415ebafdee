"""What a RayTrainSensor needs to start straight from the trigger, and what can't: found when the DAG is parsed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.triggers.base import StartTriggerArgs
from jinja2 import TemplateError, meta

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.experiment_wait import CHECKPOINT
from airflow_provider.core.spec import has_template
from airflow_provider.core.wait_parameters import NOW
from airflow_provider.triggers.ray_train_sensor import BACKSTOP
from airflow_provider.triggers.ray_train_sensor_start import RENDERED, RayTrainSensorStartTrigger, needs_memory

if TYPE_CHECKING:
    from jinja2 import Environment

    from airflow_provider.sensors.ray_train import RayTrainSensor

_DATES = {"logical_date", "ds", "ds_nodash", "ts", "ts_nodash", "ts_nodash_with_tz"}
_INTERVAL = {"data_interval_start", "data_interval_end"}
KNOWN_IN_TRIGGER = {"params", "run_id", "dag_run", "dag", "macros"} | _DATES | _INTERVAL
"""What a template may use: the rest asks Airflow, and its triggerer has no answer or waits for ever for one (an XCom, in 3.3.2)."""
_INSTEAD = "leave start_from_trigger out: execute defers by itself"


def start_args(sensor: RayTrainSensor, *, limit: timedelta) -> StartTriggerArgs:
    """What the scheduler makes the trigger of. Raises InvalidConfig for a wait that must begin in a worker."""
    _check_task(sensor, limit)
    if sensor.since == NOW or (sensor.until == CHECKPOINT and sensor.since is None):
        raise needs_memory()
    trigger = RayTrainSensorStartTrigger(
        **{name: getattr(sensor, name) for name in RENDERED},
        missing=sensor.missing,
        max_checkpoints_without_metric=sensor.max_checkpoints_without_metric,
        poke_interval=sensor.poke_interval,
        unreachable_timeout_s=None if sensor.silent_fail else sensor.unreachable_timeout_s,
        wait_s=limit.total_seconds(),
    )
    for name in RENDERED:
        _check_template(name, getattr(sensor, name), trigger.get_template_env(), is_native=_is_native(sensor))
    classpath, kwargs = trigger.serialize()
    return StartTriggerArgs(
        trigger_cls=classpath, trigger_kwargs=kwargs, next_method="execute_complete", timeout=limit + BACKSTOP
    )


def mapped_error() -> InvalidConfig:
    """A mapped task's trigger would start with arguments that are not expanded."""
    return InvalidConfig(
        "A mapped RayTrainSensor can't start from the trigger",
        known="Airflow 3.3.2 expands arguments on a worker only",
        change=_INSTEAD,
    )


def _check_task(sensor: RayTrainSensor, limit: timedelta) -> None:
    if sensor.get_needs_expansion():
        raise mapped_error()
    if not sensor.deferrable:
        raise InvalidConfig(
            "start_from_trigger with deferrable=False: only one of them can be",
            change="leave one of the two out",
        )
    if sensor.execution_timeout is not None and sensor.execution_timeout < limit + BACKSTOP:
        raise InvalidConfig(
            "execution_timeout is not for a start from the trigger",
            known=f"it is less than timeout and {BACKSTOP}, and would end the wait {BACKSTOP} before it has passed",
            change="use timeout= alone",
        )


def _is_native(sensor: RayTrainSensor) -> bool:
    """Whether a worker makes values of templates, where the triggerer makes texts: None would be the name `None`."""
    dag = sensor.get_dag()
    of_dag = dag is not None and dag.render_template_as_native_obj
    return of_dag if sensor.render_template_as_native_obj is None else sensor.render_template_as_native_obj


def _check_template(name: str, value: object, env: Environment, *, is_native: bool) -> None:
    """`env` is the triggerer's, which knows no macros and filters of the DAG's own."""
    if value is not None and not isinstance(value, (str, int)):
        what = "another task's output" if has_template(value) else f"a {type(value).__name__}"
        raise InvalidConfig(
            f"{name} is {what}, which a start from the trigger can't take",
            known="Airflow 3.3.2's triggerer reads no XCom",
            change=f"pass a text, or {_INSTEAD}",
        )
    if not isinstance(value, str) or not has_template(value):
        return
    if is_native:
        raise InvalidConfig(
            f"{name} is a native template, which a start from the trigger can't use",
            known="Airflow 3.3.2's triggerer makes a text of each template",
            change=f"pass render_template_as_native_obj=False to the sensor, or {_INSTEAD}",
        )
    try:
        env.from_string(value)
        unknown = sorted(meta.find_undeclared_variables(env.parse(value)) - KNOWN_IN_TRIGGER)
    except TemplateError as error:
        what = f"{name} is a template that the triggerer can't render: {error}"
        raise InvalidConfig(what, change=_INSTEAD) from None
    if unknown:
        raise InvalidConfig(
            f"{name} is a template with {', '.join(unknown)}, which a start from the trigger can't use",
            known=f"there are {', '.join(sorted(KNOWN_IN_TRIGGER))}; an XCom would hang there for ever",
            change=_INSTEAD,
        )
