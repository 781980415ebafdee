"""Check the operator's parameters when the DAG is parsed, and turn them into a request once rendered."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel, Field, ValidationError

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.field_types import shown_part
from airflow_provider.core.identity import TaskInstanceKey, checked_storage_path, experiment_uri
from airflow_provider.core.job import OnClear, TrainingKind, TrainVersion, meaning_of_clear
from airflow_provider.core.json_input import MAX_NESTING, is_shallow
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.core.spec import (
    CheckpointConfig,
    FailureConfig,
    ScalingConfig,
    StorageConfig,
    has_template,
    invalid,
)
from airflow_provider.core.warm_start import WarmStart, read_source

if TYPE_CHECKING:
    from airflow_provider.core.job_spec import TrainingSpec
    from airflow_provider.operators.ray_train import RayTrainOperator
    from airflow_provider.operators.request import TrainingRequest

_IMPORT_PATH = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
_TRAVELLING = (
    "train_loop_config",
    "runtime_env",
    "restore",
    "entrypoint_resources",
    "scaling_config",
    "failure_config",
    "checkpoint_config",
    "storage_config",
    "warm_start",
)
_RESERVED_RUNTIME_ENV = frozenset({"working_dir", "py_modules"})


_LONGEST_S = 10 * 365 * 86_400.0
"""Ten years: beyond it dates overflow, and infinity is what None says."""
_LEAST_SILENCE_S = 45.0
"""Three signs of life of a driver."""
Seconds = Annotated[float, Field(gt=0, le=_LONGEST_S, strict=True)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=100_000, pattern=r"^[^\x00]*$")]
"""Longer arguments no operating system takes, nor any with a NUL."""
ConnectionId = Annotated[Name, Field(max_length=250)]


class ParameterTypes(BaseModel):
    """Types and bounds of the operator's plain parameters; texts may hold templates."""

    storage_path: Name
    conn_id: ConnectionId
    aws_conn_id: ConnectionId | None
    experiment_name: Name | None
    train_loop: Name | None
    trainer: Name | None
    entrypoint: Name | None
    train_loop_config: dict[str, Any] | None
    datasets: Name | None
    working_dir: Name | None
    runtime_env: dict[str, Any] | None
    progress_metric: Name | None
    restore: Name | dict[str, Any]
    on_corrupt: Name
    on_clear: Name
    train_version: Name
    python: Name
    timeout_s: Seconds | None
    stall_timeout_s: Seconds | None
    resource_timeout_s: Seconds | None
    pending_timeout_s: Seconds | None
    unreachable_timeout_s: Seconds
    silent_driver_timeout_s: Annotated[float, Field(ge=_LEAST_SILENCE_S, le=_LONGEST_S, strict=True)] | None
    lost_after_s: Seconds
    poll_interval_s: Seconds
    entrypoint_num_cpus: Amount | None
    entrypoint_num_gpus: Amount | None
    entrypoint_resources: dict[str, Amount] | None
    require_new_checkpoint: bool
    stream_logs: bool
    stop_on_kill: bool
    deferrable: bool


def _check_types(operator: RayTrainOperator) -> None:
    values = {name: getattr(operator, name) for name in ParameterTypes.model_fields}
    try:
        ParameterTypes.model_validate(values, strict=True)
    except ValidationError as error:
        # A reference to another task's output has its type only when it is rendered.
        wrong = [e for e in error.errors(include_url=False, include_input=False) if not _is_reference(values, e["loc"])]
        if not wrong:
            return
        first = wrong[0]
        # The names of a union's arms say nothing to a reader.
        path = ".".join(shown_part(p) for p in first["loc"][:2] if not str(p).startswith(("constrained-", "dict[")))
        change = "see RayTrainOperator's docstring for the type"
        if path in ("train_loop", "trainer", "datasets") and callable(values[path]):
            change = "pass its import path on the cluster, 'package.module:function', or use @task.ray_train"
        raise InvalidConfig(f"{path} is not valid: {first['msg']}", change=change) from None


def _is_reference(values: dict[str, Any], loc: tuple[int | str, ...]) -> bool:
    value = values.get(str(loc[0]))
    return not isinstance(value, str) and has_template(value)


def check_parameters(operator: RayTrainOperator) -> None:
    """Find at parse time what can be found without rendering. Raises InvalidConfig."""
    _check_types(operator)
    for name in _TRAVELLING:
        check_json(name, getattr(operator, name))
    _check_kind_fits(operator, _training_kind(operator))
    for name in ("train_loop", "trainer", "datasets"):
        _check_import_path(name, getattr(operator, name))
    if not has_template(operator.storage_path):
        checked_storage_path(operator.storage_path)
    if not has_template(operator.experiment_name):
        path = "/unknown" if has_template(operator.storage_path) else operator.storage_path
        experiment_uri(path, TaskInstanceKey("dag", "run", operator.task_id), experiment_name=operator.experiment_name)
    if operator.on_clear not in get_args(OnClear):
        raise InvalidConfig(f"on_clear is {operator.on_clear!r}", change="use 'auto', 'restore' or 'fresh'")
    if operator.train_version not in [v.value for v in TrainVersion]:
        raise InvalidConfig(f"train_version is {operator.train_version!r}", change="use 'v2' or 'v1'")
    _check_runtime_env(operator.runtime_env)
    if not _has_template_inside(operator.restore):
        restore_policy(operator)
    if operator.warm_start is not None and not _has_template_inside(operator.warm_start):
        warm_start(operator)
    if not operator.retries:
        operator.log.warning(
            "retries=0: a finished training can fail on a stale scheduler event, and nothing restores a failed one"
        )


def _training_kind(operator: RayTrainOperator) -> TrainingKind:
    given = [
        kind
        for kind, value in (
            (TrainingKind.TRAIN_LOOP, operator.train_loop),
            (TrainingKind.TRAINER, operator.trainer),
            (TrainingKind.ENTRYPOINT, operator.entrypoint),
        )
        if value is not None
    ]
    if len(given) != 1:
        raise InvalidConfig(
            "Exactly one of train_loop, trainer and entrypoint says what to train",
            known=f"given: {', '.join(k.value for k in given) or 'none'}",
            change="keep one of the three" if given else "pass one of the three",
        )
    return given[0]


def _check_kind_fits(operator: RayTrainOperator, kind: TrainingKind) -> None:
    """A parameter that the chosen kind would ignore is an error, not silence."""
    ignored = {
        "scaling_config": kind is not TrainingKind.TRAIN_LOOP
        and operator.scaling_config != ScalingConfig().model_dump(),
        "datasets": kind is not TrainingKind.TRAIN_LOOP and operator.datasets is not None,
        "train_loop_config": kind is TrainingKind.ENTRYPOINT and operator.train_loop_config is not None,
    }
    for name, is_ignored in ignored.items():
        if is_ignored:
            where = "the factory" if kind is TrainingKind.TRAINER else "the script, or pass it on its command line"
            raise InvalidConfig(f"{name} has no effect with {kind.value}", change=f"set it in {where}")


def _check_import_path(name: str, value: str | None) -> None:
    if value is not None and not has_template(value) and not _IMPORT_PATH.match(value):
        raise InvalidConfig(
            f"{name} {value[:120]!r} is not an import path", change="write package.module:function, as on the cluster"
        )


def check_json(name: str, value: object) -> None:
    """Raise InvalidConfig unless the value reaches the cluster as it is: it travels as JSON in UTF-8."""
    if not is_shallow(value):
        raise InvalidConfig(f"{name} nests deeper than {MAX_NESTING} levels, or holds itself", change="flatten it")
    try:
        json.dumps(value, allow_nan=False, default=_rendered_later, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidConfig(f"{name} holds half of a character (a lone surrogate)", change="correct the text") from None
    except (TypeError, ValueError) as error:
        raise InvalidConfig(f"{name} is not JSON: {error}", change="pass numbers, texts, lists and dicts") from None
    if not _has_text_keys(value):
        raise InvalidConfig(f"{name} has a key that is no text, which JSON would make one", change="quote the key")


def plain_json(value: Any) -> Any:
    """Lists and dicts for Airflow's lazy sequences (all outputs of a mapped task) and mappings (params)."""
    if isinstance(value, Mapping):
        return {name: plain_json(part) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [plain_json(part) for part in value]
    return value


def _rendered_later(value: object) -> str:
    if has_template(value):
        return "reference"
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _has_text_keys(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) and _has_text_keys(v) for k, v in value.items())
    return not isinstance(value, (list, tuple)) or all(_has_text_keys(v) for v in value)


def _check_runtime_env(runtime_env: dict[str, Any] | None) -> None:
    if runtime_env is None or has_template(runtime_env):
        return
    clash = sorted(_RESERVED_RUNTIME_ENV & set(runtime_env))
    if clash:
        raise InvalidConfig(f"runtime_env sets {', '.join(clash)}", change="use the operator's working_dir")
    env_vars = runtime_env.get("env_vars") or {}
    if not isinstance(env_vars, dict) or not all(isinstance(v, str) or has_template(v) for v in env_vars.values()):
        raise InvalidConfig("runtime_env.env_vars must map names to texts", change="quote the numbers")


def _has_template_inside(value: object) -> bool:
    if isinstance(value, dict):
        return any(_has_template_inside(v) for v in value.values())
    return has_template(value)


def restore_policy(operator: RayTrainOperator) -> RestorePolicy:
    """The restore parameter as a policy. Raises InvalidConfig."""
    given = operator.restore
    data: dict[str, Any] = {"mode": given} if isinstance(given, str) else dict(given)
    data.setdefault("on_corrupt", operator.on_corrupt)
    if data.get("mode") == "best":
        data.setdefault("metric", operator.checkpoint_config.get("checkpoint_score_attribute"))
        data.setdefault("order", operator.checkpoint_config.get("checkpoint_score_order"))
        if not data["metric"]:
            raise InvalidConfig(
                "restore='best' needs a metric", change="set checkpoint_config's checkpoint_score_attribute"
            )
    if data.get("mode") == "explicit" and not data.get("checkpoint"):
        raise InvalidConfig("restore mode 'explicit' needs a checkpoint", change="name one from the lineage")
    if data.get("mode") == "explicit" and operator.on_clear == "fresh":
        raise InvalidConfig(
            "restore names a checkpoint, and on_clear='fresh' would begin without one",
            change="drop one of them; to begin a new training from a checkpoint use warm_start",
        )
    try:
        return RestorePolicy.model_validate(data)
    except ValidationError as error:
        raise invalid(error, parameter="restore", fields=tuple(RestorePolicy.model_fields)) from None


def warm_start(operator: RayTrainOperator) -> WarmStart | None:
    """The rendered warm_start, with the checkpoint config's score for `best`. Raises InvalidConfig."""
    if operator.warm_start is None:
        return None
    source = operator.warm_start.get("source")
    if isinstance(source, list):
        raise InvalidConfig(
            f"warm_start got a list of {len(source)} values",
            known="the output of a mapped task has one for each of its indexes",
            change="choose one in a task between the two, or take one: {{ ti.xcom_pull('train', map_indexes=0) }}",
        )
    given = WarmStart.rendered(operator.warm_start, parameter="warm_start")
    scores = operator.checkpoint_config
    metric = given.metric or scores.get("checkpoint_score_attribute")
    order = given.order or (None if given.metric else scores.get("checkpoint_score_order"))
    wanted = given.model_copy(update={"metric": metric, "order": order})
    read_source(wanted)
    _ = wanted.policy
    return wanted


def build_request(operator: RayTrainOperator, key: TaskInstanceKey) -> TrainingRequest:
    """The rendered parameters as a request. Raises InvalidConfig for what rendering made wrong."""
    from airflow_provider.core.job_spec import Timings
    from airflow_provider.hooks.experiment import cluster_storage
    from airflow_provider.operators.request import TrainingRequest

    for name in _TRAVELLING:
        value = getattr(operator, name)
        if is_shallow(value):  # what holds itself is refused below
            setattr(operator, name, plain_json(value))
    check_parameters(operator)
    uri = experiment_uri(operator.storage_path, key, experiment_name=operator.experiment_name)
    storage = StorageConfig.rendered(operator.storage_config, parameter="storage_config")
    timeout = operator.execution_timeout.total_seconds() if operator.execution_timeout else None
    policy = restore_policy(operator)
    return TrainingRequest(
        key=key,
        uri=uri,
        conn_id=operator.conn_id,
        aws_conn_id=operator.aws_conn_id,
        training=_training_spec(operator),
        storage=cluster_storage(storage, uri=uri, aws_conn_id=operator.aws_conn_id),
        restore=policy,
        storage_path=operator.storage_path,
        warm_start=warm_start(operator),
        on_clear=meaning_of_clear(operator.on_clear, policy),
        timings=Timings(stall_timeout_s=operator.stall_timeout_s, resource_timeout_s=operator.resource_timeout_s),
        dag_folder=_dag_folder(operator),
        function_files=operator.function_module.files if operator.function_module else {},
        working_dir=operator.working_dir,
        runtime_env=operator.runtime_env or {},
        entrypoint_num_cpus=operator.entrypoint_num_cpus,
        entrypoint_num_gpus=operator.entrypoint_num_gpus,
        entrypoint_resources=operator.entrypoint_resources,
        python=operator.python,
        require_new_checkpoint=operator.require_new_checkpoint,
        timeout_s=operator.timeout_s or timeout,
    )


def _training_spec(operator: RayTrainOperator) -> TrainingSpec:
    from airflow_provider.core.job_spec import TrainingSpec

    return TrainingSpec(
        kind=_training_kind(operator),
        target=operator.train_loop or operator.trainer,
        command=operator.entrypoint,
        train_loop_config=operator.train_loop_config,
        datasets=operator.datasets,
        scaling=ScalingConfig.rendered(operator.scaling_config, parameter="scaling_config"),
        failure=FailureConfig.rendered(operator.failure_config, parameter="failure_config"),
        checkpoint=CheckpointConfig.rendered(operator.checkpoint_config, parameter="checkpoint_config"),
        train_version=TrainVersion(operator.train_version),
        progress_metric=operator.progress_metric,
    )


def _dag_folder(operator: RayTrainOperator) -> Path:
    has_dag: bool = operator.has_dag()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped
    location = operator.dag.fileloc if has_dag else ""
    return Path(location).parent if location else Path.cwd()
