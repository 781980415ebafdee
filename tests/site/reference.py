"""The reference's pages, written from the code by `make docs`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_provider.assets.model import GatedAsset
from airflow_provider.core import errors as core_errors
from airflow_provider.core.errors import RayJobFailed, RayTrainError
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.core.spec import CheckpointConfig, FailureConfig, ScalingConfig, StorageConfig
from airflow_provider.core.warm_start import WarmStart
from airflow_provider.decorators.ray_train import TRAINED_BY_FUNCTION, RayTrainDecoratedOperator
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.policies.retry import RayTrainRetryPolicy
from airflow_provider.provider_info import get_provider_info
from airflow_provider.sensors import errors as sensor_errors
from airflow_provider.sensors.ray_train import RayTrainSensor
from tests.site import xcom_keys
from tests.site.code_facts import Item, fields, members, parameters, summary

_MADE = "Written from the code by `make docs`."
_CONFIGS = (
    (ScalingConfig, "scaling_config"),
    (FailureConfig, "failure_config"),
    (CheckpointConfig, "checkpoint_config"),
    (StorageConfig, "storage_config"),
    (RestorePolicy, "restore"),
    (WarmStart, "warm_start"),
)


def reference_pages() -> dict[str, str]:
    """Text of each page, by its path below docs/."""
    pages = {
        "operator": operator_page(),
        "decorator": decorator_page(),
        "sensor": sensor_page(),
        "config": config_page(),
        "assets": assets_page(),
        "connection": connection_page(),
        "xcom": xcom_page(),
        "errors": errors_page(),
    }
    titles = {name: text.splitlines()[0].removeprefix("# ") for name, text in pages.items()}
    index = "\n".join(f"* [{title}]({name}.md)" for name, title in titles.items())
    pages["index"] = (
        f"# Reference\n\nWritten from the code by `make docs`, so it says what this release takes.\n\n{index}\n"
    )
    return {f"reference/{name}.md": text for name, text in pages.items()}


def operator_page() -> str:
    """All parameters of the operator."""
    items = parameters(RayTrainOperator.__init__, doc=RayTrainOperator.__doc__ or "")
    return _page(
        "RayTrainOperator",
        _import_line(RayTrainOperator),
        summary(RayTrainOperator),
        "All parameters are given by name. Besides them it takes those of every Airflow operator (`pool`, `retry_delay`, "
        "`execution_timeout`, `outlets`, ...).",
        _parameter_table(items, templated=RayTrainOperator.template_fields),
        "A templated parameter takes Jinja at any depth; one with a type other than text has to render to that type, for which "
        "the DAG needs `render_template_as_native_obj=True`.",
        "## Retry policy",
        f"`{RayTrainRetryPolicy.__module__}.{RayTrainRetryPolicy.__name__}`: {summary(RayTrainRetryPolicy)}",
    )


def decorator_page() -> str:
    """What the decorator takes."""
    items = parameters(RayTrainOperator.__init__, doc=RayTrainOperator.__doc__ or "", leave_out=TRAINED_BY_FUNCTION)
    left_out = ", ".join(f"`{name}`" for name in TRAINED_BY_FUNCTION)
    return _page(
        "@task.ray_train",
        "`task.ray_train`, or with type hints for editors `from airflow_provider.decorators.ray_train import ray_train_task`. "
        "[TaskFlow](../taskflow.md) says how it is used.",
        summary(RayTrainDecoratedOperator),
        f"It takes [RayTrainOperator](operator.md)'s parameters without {left_out}, `multiple_outputs`, and those of every Airflow "
        "task:",
        _names_in_lines([item.name for item in items]),
    )


def sensor_page() -> str:
    """All parameters of the sensor."""
    items = parameters(RayTrainSensor.__init__, doc=RayTrainSensor.__doc__ or "")
    return _page(
        "RayTrainSensor",
        _import_line(RayTrainSensor),
        "[The sensor's page](../sensor.md) says how it is used.",
        summary(RayTrainSensor),
        _parameter_table(items, templated=RayTrainSensor.template_fields),
    )


def config_page() -> str:
    """The configuration models."""
    parts = []
    for model, parameter in _CONFIGS:
        rows = [(f"`{i.name}`", f"`{i.type}`", i.default, i.meaning) for i in fields(model)]
        parts += [
            f"## {model.__name__}",
            f"For the parameter `{parameter}`{_where(model)}.",
            summary(model),
            _table(("field", "type", "default", "meaning"), rows),
        ]
    how = (
        "Each may be given as the model or as a dict with its fields; `restore` takes the dict or the mode alone. They are checked when "
        "the DAG is parsed and again once rendered; an unknown field is an error. Each field takes a Jinja template."
    )
    return _page("Configuration", how, *parts)


def assets_page() -> str:
    """The gated asset, and what an event holds."""
    items = parameters(GatedAsset.__init__, doc=GatedAsset.__doc__ or "")
    return _page(
        "GatedAsset",
        f"`from {GatedAsset.__module__} import GatedAsset, newest_model`. [Assets](../assets.md) says how it is used.",
        summary(GatedAsset),
        _parameter_table(items, templated=()),
        "## The event's extra",
        "An `Asset` or a `GatedAsset` in a training's `outlets` gets these fields:",
        _table(("field", "meaning"), [(f"`{n}`", text) for n, text in xcom_keys.EVENT.items()]),
    )


def connection_page() -> str:
    """The connection's form."""
    (connection,) = get_provider_info()["connection-types"]
    labels = connection["ui-field-behaviour"]["relabeling"]
    placeholders = connection["ui-field-behaviour"]["placeholders"]
    plain = [(f"`{name}`", label, placeholders[name]) for name, label in labels.items()]
    plain += [
        ("`port`", "Port", "where it doesn't stand in the host; 8265 for a bare host"),
        (
            "`schema`",
            "-",
            "`http` or `https`, for a connection that is given as JSON or URI; the form takes it in the host",
        ),
    ]
    extras = [
        (f"`{name}`", field["label"], f"{field['description']} Default: `{field['schema']['default']!r}`.")
        for name, field in connection["conn-fields"].items()
    ]
    return _page(
        "Connection",
        f"Connection type `{connection['connection-type']}`, default id `ray_default`: where the dashboard is, and how Airflow identifies "
        "itself. The bucket has a connection of its own, of Airflow's type `aws` (`aws_conn_id`).",
        _table(("field", "in the form", "meaning"), plain),
        "Extras; any other is refused, since who may edit connections must not reach into the client:",
        _table(("extra", "in the form", "meaning"), extras),
        "The form's Test button asks the dashboard for its version. It needs `[core] test_connection = Enabled`, as all of Airflow's.",
    )


def xcom_page() -> str:
    """Keys of the XComs."""
    parts: list[str] = []
    for title, text, rows in (
        ("Keys of a training", "What `RayTrainOperator` and `@task.ray_train` push:", xcom_keys.TRAINING),
        ("return_value of a training", "Strict JSON, at most 48 kB:", xcom_keys.RESULT),
        (
            "checkpoint_lineage",
            "Strict JSON, at most 48 kB; the oldest checkpoints are left out first:",
            xcom_keys.LINEAGE,
        ),
        ("Keys of a sensor", "What `RayTrainSensor` pushes:", xcom_keys.SENSOR),
        ("return_value of a sensor", "", xcom_keys.SENSOR_RESULT),
    ):
        table = _table(("key", "meaning"), [(f"`{name}`", meaning) for name, meaning in rows.items()])
        parts += [f"## {title}", *([text] if text else []), table]
    return _page("XComs", "[Lineage and XCom](../guides/lineage.md) says how they are used.", *parts)


def errors_page() -> str:
    """Errors and failure kinds."""
    kinds = members(FailureKind)
    kind_rows = [(f"`{kind}`", "yes" if FailureKind(kind).is_retryable else "no", text) for kind, text in kinds.items()]
    return _page(
        "Errors",
        "Every error is an `airflow_provider.core.errors.RayTrainError`. Its message has what happened, what is known, and what to do; "
        "the same are its attributes `what`, `known`, `change`. Its kind decides whether Airflow tries again. "
        "[Troubleshooting](../operations/troubleshooting.md) goes by message.",
        "## Errors by class",
        f"From `{core_errors.__name__}`:",
        _error_table(core_errors),
        f"From `{sensor_errors.__name__}`; they end a wait and are never retried, whatever the kind:",
        _error_table(sensor_errors),
        "## Kinds of failure",
        f"`{FailureKind.__module__}.FailureKind`: {summary(FailureKind)}",
        _table(("kind", "retried", "meaning"), kind_rows),
    )


def _error_table(module: Any) -> str:
    rows = []
    for name, cls in vars(module).items():
        if inspect.isclass(cls) and issubclass(cls, RayTrainError) and cls.__module__ == module.__name__:
            kind = "the training's" if issubclass(cls, RayJobFailed) else f"`{cls.kind.value}`"
            rows.append((f"`{name}`", kind, " ".join(summary(cls).split())))
    return _table(("class", "kind", "meaning"), rows)


def _parameter_table(items: Iterable[Item], *, templated: Sequence[str]) -> str:
    rows = [
        (f"`{i.name}`", f"`{i.type}`", i.default, f"{i.meaning}{' (templated)' if i.name in templated else ''}")
        for i in items
    ]
    return _table(("parameter", "type", "default", "meaning"), rows)


def _import_line(cls: type[Any]) -> str:
    return f"`from {cls.__module__} import {cls.__name__}`"


def _where(model: type[Any]) -> str:
    return "" if model is RestorePolicy else f": `from {model.__module__} import {model.__name__}`"


def _names_in_lines(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) + "."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *parts, _MADE]) + "\n"
