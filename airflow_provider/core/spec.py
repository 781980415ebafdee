"""What a DAG author configures: frozen models with Ray's names, checked when the DAG is parsed, templated at any depth.

A string that holds a Jinja expression is accepted for any field while the DAG is parsed and checked again, strictly,
once Airflow has rendered it (`rendered(...)`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from typing_extensions import Self

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.field_types import shown_part

_TEMPLATE = re.compile(r"\{\{|\{%|\{#")
T = TypeVar("T")
C = TypeVar("C", bound="Config")


def has_template(value: object) -> bool:
    """Whether Airflow still has to render a value: a Jinja expression, or a reference to another task's output.

    A reference (XComArg) is known by its `iter_references`, since core knows no Airflow.
    """
    if isinstance(value, str):
        return _TEMPLATE.search(value) is not None
    return callable(getattr(value, "iter_references", None))


def _template_or(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    is_rendered = bool(info.context and info.context.get("rendered"))
    if has_template(value) and not is_rendered:
        return value
    return handler(value)


Templated = Annotated[T, WrapValidator(_template_or)]
"""A field that may hold a Jinja expression until Airflow has rendered it."""


Count = Annotated[int, Field(le=10**9)]
"""Beyond it somebody means "unlimited", which has a value of its own."""
Quantity = Annotated[float, Field(allow_inf_nan=False)]


class Config(BaseModel):
    """Base of the configuration models: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)

    @model_validator(mode="wrap")
    @classmethod
    def _say_it_our_way(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Pydantic's error as ours, with the known fields, also for `ScalingConfig(...)` written in a DAG file."""
        parameter, fields = str((info.context or {}).get("parameter") or cls.__name__), tuple(cls.model_fields)
        try:
            found = handler(data)
            found.check_whole()
        except ValidationError as error:
            raise invalid(error, parameter=parameter, fields=fields) from None
        except ValueError as error:
            raise InvalidConfig(
                f"{parameter} is not valid: {error}", change=f"known fields are {', '.join(fields)}"
            ) from None
        return found

    def check_whole(self) -> None:
        """What fields must hold together; raises ValueError. Not an after-validator of pydantic's: those run outside the one above."""

    @classmethod
    def parsed(cls, value: Self | Mapping[str, Any] | None, *, parameter: str) -> dict[str, Any]:
        """Check a parameter at DAG parse and return it as a dict that Airflow can template. Raises InvalidConfig."""
        # Template strings sit in typed fields until rendered: pydantic would warn about each.
        return cls._checked(value, parameter=parameter, is_rendered=False).model_dump(warnings=False)

    @classmethod
    def rendered(cls, value: Self | Mapping[str, Any] | None, *, parameter: str) -> Self:
        """Check a parameter strictly, after rendering. Raises InvalidConfig."""
        return cls._checked(value, parameter=parameter, is_rendered=True)

    @classmethod
    def _checked(cls, value: Self | Mapping[str, Any] | None, *, parameter: str, is_rendered: bool) -> Self:
        data = value.model_dump(warnings=False) if isinstance(value, BaseModel) else value
        if data is None:
            data = {}
        if not isinstance(data, Mapping):
            raise InvalidConfig(
                f"{parameter} is a {type(data).__name__}",
                known=f"it takes {cls.__name__}(...) or a dict",
                change=f"pass {parameter}={cls.__name__}(...)",
            )
        try:
            return cls.model_validate(dict(data), context={"rendered": is_rendered, "parameter": parameter})
        except ValidationError as error:  # what the subclasses' own checks say comes outside the wrapper above
            raise invalid(error, parameter=parameter, fields=tuple(cls.model_fields)) from None


def invalid(error: ValidationError, *, parameter: str, fields: tuple[str, ...]) -> InvalidConfig:
    """A pydantic error as ours: each field once, without echoing input values (they may be secret)."""
    seen: dict[str, str] = {}
    for item in error.errors(include_url=False, include_input=False):
        # Names of pydantic's own wrappers and union arms say nothing to a reader.
        path = ".".join([parameter, *(shown_part(p) for p in item["loc"] if not _is_wrapper(p))])
        seen.setdefault(path, item["msg"].removeprefix("Value error, "))
    return InvalidConfig(
        f"{parameter} is not valid: {'; '.join(f'{path}: {why}' for path, why in seen.items())}",
        change=f"known fields are {', '.join(fields)}",
    )


def _is_wrapper(part: int | str) -> bool:
    return isinstance(part, str) and part.startswith(("function-", "tuple[", "nullable["))


class ScalingConfig(Config):
    """How many workers train, and on what. Names and meanings are Ray's."""

    num_workers: Templated[Count] | tuple[Templated[Count], Templated[Count]] = 1
    """Workers, or `(min, max)` for an elastic run (Ray 2.60 and later)."""
    use_gpu: Templated[bool] = False
    """Whether each worker gets a GPU."""
    resources_per_worker: Templated[dict[str, Templated[Quantity]]] | None = None
    """For example `{"CPU": 4, "GPU": 1}`; Ray's default is 1 CPU, or 1 GPU with `use_gpu`."""
    placement_strategy: Templated[str] = "PACK"
    """Ray's placement group strategy: `PACK`, `SPREAD`, `STRICT_PACK`, `STRICT_SPREAD`."""
    elastic_resize_monitor_interval_s: Templated[float] = 60.0
    """Seconds between two looks whether an elastic run can grow."""
    accelerator_type: Templated[str] | None = None
    """Ray's name of the accelerator that workers need, for example `A100`."""

    def check_whole(self) -> None:
        """Counts from 1, elastic ones in order, resources that Ray accepts."""
        counts = self.num_workers if isinstance(self.num_workers, tuple) else (self.num_workers,)
        numbers = [c for c in counts if not has_template(c)]
        if any(c < 1 for c in numbers):
            raise ValueError("num_workers must be at least 1")
        if len(numbers) == 2 and numbers[0] > numbers[1]:
            raise ValueError(f"elastic num_workers is (min, max), got {numbers[0]} > {numbers[1]}")
        interval = self.elastic_resize_monitor_interval_s
        if not has_template(interval) and interval < 0:
            raise ValueError("elastic_resize_monitor_interval_s must not be negative")
        resources = self.resources_per_worker
        # A template of the whole dict is still a string.
        amounts = resources.values() if isinstance(resources, Mapping) else ()
        if any(not has_template(v) and float(v) < 0 for v in amounts):
            raise ValueError("resources_per_worker must not be negative")

    @property
    def least_workers(self) -> int:
        """The number without which nothing can train; parameters must be rendered."""
        return int(self.num_workers[0] if isinstance(self.num_workers, tuple) else self.num_workers)

    @property
    def worker_resources(self) -> dict[str, float]:
        """What one worker takes of a node, as Ray Train counts: one GPU with `use_gpu`, else one CPU, where nothing else is said."""
        wanted = {name: float(amount) for name, amount in (self.resources_per_worker or {}).items()}
        if self.use_gpu:
            return {"GPU": 1.0, **wanted}
        return wanted or {"CPU": 1.0}

    @property
    def wanted_workers(self) -> str:
        """`2`, or `1-4` for an elastic run."""
        if isinstance(self.num_workers, tuple):
            return f"{self.num_workers[0]}-{self.num_workers[1]}"
        return str(self.num_workers)


class FailureConfig(Config):
    """How often Ray recovers inside one attempt. `-1` means unlimited, as in Ray; our defaults are generous."""

    max_failures: Templated[Count] = Field(default=20, ge=-1)
    """Worker-group failures per fit (Ray's default is 0: the first lost node ends the run)."""
    controller_failure_limit: Templated[Count] = Field(default=-1, ge=-1)
    """Failed starts of the worker group, one per 60 s without capacity; bounded by `resource_timeout_s`."""
    max_preemption_failures: Templated[Count] = Field(default=-1, ge=-1)
    """Preemptions (Ray 2.58 and later)."""
    no_progress_failures: Templated[Count] = Field(default=3, ge=1)
    """Worker-group failures without a new commit that end the attempt (infrastructure and preemption not counted)."""
    max_refits: Templated[Count] = Field(default=10, ge=0)
    """Times the driver fits again inside one job after an infrastructure failure that Ray gives no retry."""


class CheckpointConfig(Config):
    """Which checkpoints Ray keeps. Names and meanings are Ray's."""

    num_to_keep: Templated[Annotated[Count, Field(ge=1)]] | None = None
    """How many committed checkpoints stay; the default keeps all."""
    checkpoint_score_attribute: Templated[str] | None = None
    """Metric that says which checkpoint is best; without it there is no best one, and the oldest goes first."""
    checkpoint_score_order: Templated[str] = "max"
    """`max` or `min`: whether more or less of that metric is better."""

    def check_whole(self) -> None:
        """Words that Ray takes."""
        if not has_template(self.checkpoint_score_order) and self.checkpoint_score_order not in ("max", "min"):
            raise ValueError("checkpoint_score_order is 'max' or 'min'")


class StorageConfig(Config):
    """How the *cluster* reaches the bucket. It uses its own S3 identity; credentials never travel from here.

    Left empty, endpoint and region are those of the Airflow AWS connection.
    """

    endpoint_url: Templated[str] | None = None
    """For example `http://seaweedfs.storage:8333`, where the cluster needs another address than Airflow."""
    region: Templated[str] | None = None
    """The bucket's region."""
    force_virtual_addressing: Templated[bool] = False
    """Bucket in the host name instead of the path (pyarrow's option of that name)."""

    def check_whole(self) -> None:
        """A plain endpoint, without credentials."""
        url = self.endpoint_url
        if url and not has_template(url) and not re.fullmatch(r"https?://[^/@?#\s]+/?", url):
            raise ValueError("endpoint_url is http(s)://host[:port] without path, query or credentials")
