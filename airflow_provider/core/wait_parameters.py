"""Check a sensor's parameters when the DAG is parsed, and turn them into a wait once rendered. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, Field, ValidationError

from airflow_provider.core.condition import Condition
from airflow_provider.core.errors import InvalidCondition, InvalidConfig
from airflow_provider.core.experiment_wait import CHECKPOINT, END, Baseline, WaitSpec
from airflow_provider.core.field_types import shown_part
from airflow_provider.core.identity import TaskInstanceKey, checked_storage_path, experiment_uri
from airflow_provider.core.redaction import redact
from airflow_provider.core.spec import has_template

NOW = "now"
_INSIDE = re.compile(r"/g\d{6}(/|$)")
_EXTERNAL = ("external_dag_id", "external_run_id", "external_map_index")
_LONGEST_S = 10 * 365 * 86_400.0
Name = Annotated[str, Field(min_length=1, max_length=2_000, pattern=r"^[^\x00]*$")]


class WaitParameters(Protocol):
    """What says for what to wait: the sensor, or its trigger where that starts by itself."""

    experiment: Any
    storage_path: Any
    external_dag_id: Any
    external_run_id: Any
    external_task_id: Any
    external_map_index: Any
    until: Any
    since: Any
    missing: Any
    max_checkpoints_without_metric: Any


class _Types(BaseModel):
    """Types and bounds of the plain parameters, which are not rendered."""

    missing: Annotated[str, Field(pattern="^(wait|fail)$")]
    unreachable_timeout_s: Annotated[float, Field(gt=0, le=_LONGEST_S, strict=True)]
    max_checkpoints_without_metric: Annotated[int, Field(ge=1, strict=True)] | None
    deferrable: bool


def check_parameters(told: WaitParameters) -> None:
    """Find at parse time what can be found without rendering. Raises InvalidConfig."""
    _check_types(told)
    check_wait(told)


def check_wait(told: WaitParameters) -> None:
    """Check what says which experiment and for what of it, as far as it is rendered. Raises InvalidConfig."""
    _check_source(told)
    if not has_template(told.until):
        checked_until(told.until)
    if not has_template(told.experiment) and told.experiment is not None:
        experiment_path(told.experiment)
    if told.storage_path is not None and not has_template(told.storage_path):
        checked_storage_path(_text("storage_path", told.storage_path))
    _check_since(told)


def _check_types(told: WaitParameters) -> None:
    try:
        _Types.model_validate({name: getattr(told, name) for name in _Types.model_fields}, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = f"{shown_part(first['loc'][0])} is not valid: {first['msg']}"
        raise InvalidConfig(what, change="see RayTrainSensor's docstring; missing is 'wait' or 'fail'") from None


def _check_source(told: WaitParameters) -> None:
    """Exactly one way to say which experiment."""
    if (told.experiment is None) == (told.external_task_id is None):
        raise InvalidConfig(
            "Exactly one of experiment and external_task_id says what to wait for",
            known="both are given"
            if told.experiment is not None
            else "neither is given, or a template or XCom gave nothing",
            change="pass experiment= (a path, or an XCom of the training), or storage_path= and external_task_id=",
        )
    given = [name for name in _EXTERNAL if getattr(told, name) is not None]
    if told.external_task_id is None and given:
        raise InvalidConfig(f"{', '.join(given)} without external_task_id", change="name the training's task too")
    if told.external_task_id is not None and told.storage_path is None:
        raise InvalidConfig(
            "external_task_id needs storage_path", change="pass the storage_path that the training's operator has"
        )


def checked_until(value: object) -> str:
    """`end`, `checkpoint`, or a condition that parses. Raises InvalidConfig; InvalidCondition with the column."""
    text = _text("until", value).strip()
    if text in (END, CHECKPOINT):
        return text
    try:
        Condition.parse(text)
    except InvalidCondition as error:
        change = f"{error.change}; or 'end' or 'checkpoint'"
        raise InvalidCondition(f"until: {error.what}", known=error.known, change=change, column=error.column) from None
    return text


def _check_since(told: WaitParameters) -> None:
    since = told.since
    if since is None or has_template(since):
        return
    if since != NOW and told.until == END:
        raise InvalidConfig(
            "since names a checkpoint, but until='end' waits for no checkpoint",
            change="use since='now' to wait for the next end, or until='checkpoint'",
        )
    if isinstance(since, str) and since != NOW:
        checkpoint_name(since)


def experiment_path(value: object) -> str:
    """The experiment's path out of a path or an XCom of the training. Raises InvalidConfig."""
    if isinstance(value, Mapping):
        if not isinstance(value.get("experiment"), str):
            keys = ", ".join(shown_part(str(key)) for key in list(value)[:10]) or "nothing"
            raise InvalidConfig(
                "The XCom given as experiment has no 'experiment'",
                known=f"it holds {keys}",
                change="pass the output of a RayTrainOperator or RayTrainSensor, or a path",
            )
        value = value["experiment"]
    if isinstance(value, Sequence) and not isinstance(value, str):
        raise InvalidConfig(
            f"experiment is a list of {len(value)} values",
            known="the output of a mapped task has one for each of its indexes",
            change="map the sensor too: RayTrainSensor.partial(...).expand(experiment=train.output)",
        )
    text = _text("experiment", value).removeprefix("file://")
    if text.startswith("{"):
        raise InvalidConfig(
            "experiment is the text of a whole XCom",
            known="a template turns a dict into text",
            change="pass experiment=train.output, or take ['experiment'] inside the template",
        )
    if _INSIDE.search(text):
        raise InvalidConfig(
            f"experiment {redact(text)[:120]!r} is a folder inside an experiment",
            change="leave out what follows /g00...",
        )
    try:
        return checked_storage_path(text)
    except InvalidConfig as error:
        what = error.what.replace("storage_path", "experiment", 1)
        raise InvalidConfig(what, known=error.known, change="pass s3://bucket/path or an absolute path") from None


def resolved_experiment(told: WaitParameters, own: TaskInstanceKey) -> str:
    """The experiment's URI, after rendering. Another DAG's run has our own run id unless another one is given.

    Raises InvalidConfig.
    """
    if told.external_task_id is None:
        return experiment_path(told.experiment)
    index = told.external_map_index
    key = TaskInstanceKey(
        dag_id=_identifier("external_dag_id", told.external_dag_id, own.dag_id),
        run_id=_identifier("external_run_id", told.external_run_id, own.run_id),
        task_id=_identifier("external_task_id", told.external_task_id, None),
        map_index=-1 if index is None else _index(index),
    )
    return experiment_uri(_text("storage_path", told.storage_path), key)


def wait_spec(told: WaitParameters, *, uri: str) -> WaitSpec:
    """What is waited for at the experiment `uri`, after rendering. Raises InvalidConfig and InvalidCondition."""
    until = checked_until(told.until)
    _check_since(told)
    baseline = None if told.since in (None, NOW) else _named_baseline(told.since, uri)
    return WaitSpec(
        until=until,
        missing=told.missing,
        is_since_now=told.since == NOW,
        baseline=baseline,
        max_checkpoints_without_metric=told.max_checkpoints_without_metric,
    )


def _named_baseline(since: object, uri: str) -> Baseline:
    named: object = since
    if isinstance(since, Mapping):
        found = since.get("checkpoint") or since.get("latest_checkpoint") or since
        named = (found.get("uri") or found.get("name")) if isinstance(found, Mapping) else found
    name = checkpoint_name(named)
    is_uri = isinstance(named, str) and named != name
    if is_uri and str(named).removeprefix("file://") != f"{uri}/{name}":
        raise InvalidConfig(
            "since is a checkpoint of another experiment",
            known=f"{redact(str(named))[:300]} does not lie in {uri}",
            change="which of two experiments is newer has no meaning: leave since out, or pass one of this experiment",
        )
    return Baseline.of_checkpoint(name)


def checkpoint_name(value: object) -> str:
    """A checkpoint's name relative to its experiment, out of a name or URI. Raises InvalidConfig."""
    text = value if isinstance(value, str) else ""
    match = re.search(r"(?:^|/)(g\d{6}/\S+)$", text)
    if match is None or len(text) > 2_000 or ".." in text.split("/"):
        raise InvalidConfig(
            "since names no checkpoint",
            known=f"it is {redact(text)[:120]!r}" if text else f"it is a {type(value).__name__}",
            change="pass 'now', a checkpoint's uri or name (g000001/attempts/...), or the result of a training or sensor",
        )
    return match[1]


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        known = "the XCom or template gave nothing" if value is None else "a text is needed"
        raise InvalidConfig(f"{name} is {'empty' if value == '' else f'a {type(value).__name__}'}", known=known)
    return value


def _identifier(name: str, value: object, default: str | None) -> str:
    """Native templates make numbers of texts that look like one."""
    if value is None and default is not None:
        return default
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(name, value)


def _index(value: Any) -> int:
    try:
        if isinstance(value, (int, str)) and not isinstance(value, bool) and -1 <= int(value) < 10**9:
            return int(value)
    except ValueError:
        pass
    raise InvalidConfig("external_map_index is no map index", change="pass 0, 1, ... or leave it out")
