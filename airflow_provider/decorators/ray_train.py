"""`@task.ray_train`: a function of the DAG file is the training loop on every Ray worker."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk import BaseOperator, XComArg

# Private: the factory gives no way to say what Airflow's scheduler must know of a mapped task (see `_expand`).
from airflow.sdk.bases.decorator import DecoratedOperator, _TaskDecorator
from airflow.sdk.definitions._internal.expandinput import ExpandInput

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.decorators.arguments import bound_arguments, check_arguments, check_signature
from airflow_provider.decorators.shipping import function_module, plain_function
from airflow_provider.operators.ray_train import RayTrainOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider.decorators.signature import RayTrainTaskDecorator

TRAINED_BY_FUNCTION = ("train_loop", "trainer", "entrypoint", "train_loop_config")
"""The operator's parameters that the function and its arguments stand for."""
_PARAMETERS = frozenset(inspect.signature(RayTrainOperator.__init__).parameters) - {"self", "kwargs"}
_KNOWN = (
    _PARAMETERS.difference(TRAINED_BY_FUNCTION)
    | frozenset(inspect.signature(BaseOperator.__init__).parameters)
    | {"dag", "task_group", "default_args", "params", "on_failure_fail_dagrun", "multiple_outputs"}
) - {"self", "kwargs"}


class RayTrainDecoratedOperator(DecoratedOperator, RayTrainOperator):
    """Train with a function of the DAG file as the training loop; all else is RayTrainOperator.

    The function travels as source, with what it uses of its file, and is called on each Ray worker with the rendered
    arguments. What it returns is ignored, as Ray ignores it: the task's XCom `return_value` is RayTrainOperator's.
    """

    template_fields = (  # type: ignore[assignment]  # the base's type is the tuple of its own names
        *(name for name in RayTrainOperator.template_fields if name not in TRAINED_BY_FUNCTION),
        "op_args",
        "op_kwargs",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **{k: v for k, v in RayTrainOperator.template_fields_renderers.items() if k not in TRAINED_BY_FUNCTION},
        **DecoratedOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.ray_train"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _check_parameters(kwargs)
        check_arguments(python_callable, list(op_args or ()), op_kwargs or {})
        module = function_module(python_callable)
        super().__init__(
            python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, train_loop=module.target, **kwargs
        )
        self.function_module = module

    def execute(self, context: Context) -> Any:
        """Train with the rendered arguments."""
        self._bind(context)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Collect after the trigger fired: a retry within it needs the arguments, too."""
        self._bind(context)
        return super().execute_complete(context, event)

    def _bind(self, context: Context) -> None:
        self.train_loop_config = bound_arguments(
            self.python_callable, list(self.op_args), self.op_kwargs, context=context
        )


def _check_parameters(kwargs: Mapping[str, Any]) -> None:
    for name in kwargs:
        if name in TRAINED_BY_FUNCTION:
            raise InvalidConfig(
                f"@task.ray_train takes no {name}",
                known="the decorated function is the training loop, and its arguments are the config",
                change=f"leave {name} out, or use RayTrainOperator",
            )
        if name not in _KNOWN and not name.startswith("_"):
            near = difflib.get_close_matches(name, sorted(_KNOWN), n=1)
            raise InvalidConfig(
                f"@task.ray_train has no parameter {name!r}",
                known="its parameters are RayTrainOperator's and those that every task has",
                change=f"write {near[0]}" if near else f"leave {name} out, or make it an argument of the function",
            )


class _RayTrainTask(_TaskDecorator[Any, Any, RayTrainDecoratedOperator]):
    """A decorated function. What can't travel is found here, when the DAG file is parsed."""

    def __attrs_post_init__(self) -> None:
        plain_function(self.function)  # first: Airflow takes it for granted
        super().__attrs_post_init__()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped
        _check_parameters({name: value for name, value in self.kwargs.items() if name != "op_kwargs"})
        check_signature(self.function)
        function_module(self.function)

    def _expand(self, expand_input: ExpandInput, *, strict: bool) -> XComArg:
        """Map, and tell the scheduler the operator's own defaults: it sees only what partial holds, and would not retry."""
        literal = expand_input.value if isinstance(expand_input.value, (dict, list, tuple)) else []
        for arguments in [literal] if isinstance(literal, dict) else literal:
            if isinstance(arguments, Mapping):
                check_arguments(self.function, [], arguments)
        self._check_unmapped()
        mapped: Any = super()._expand(expand_input, strict=strict)
        known = inspect.signature(RayTrainOperator.__init__).parameters
        for name in ("retries", "retry_policy"):
            mapped.operator.partial_kwargs.setdefault(name, known[name].default)
        return cast("XComArg", mapped)

    def _check_unmapped(self) -> None:
        """Make one task without its mapped arguments and drop it: Airflow checks a mapped task's parameters only as it runs."""
        self.operator_class(
            python_callable=self.function,
            # As the unmapped tasks of a run, it enters neither the DAG nor its dependencies.
            _airflow_from_mapped=True,
            _airflow_mapped_validation_only=True,
            **self.kwargs,
        )


def _ray_train_task(
    python_callable: Callable[..., Any] | None = None, *, multiple_outputs: bool | None = None, **kwargs: Any
) -> Any:
    """Make a function of the DAG file the training loop of a Ray Train job; also reached as `task.ray_train`.

    Takes RayTrainOperator's parameters but what says what to train. `multiple_outputs` is not read from the function's
    return annotation: what the function returns is not the task's result.
    """
    _check_parameters(kwargs)

    def decorate(function: Callable[..., Any]) -> _RayTrainTask:
        return _RayTrainTask(
            function=function,
            operator_class=RayTrainDecoratedOperator,
            multiple_outputs=bool(multiple_outputs),
            kwargs=dict(kwargs),
        )

    if python_callable is None:
        return decorate
    if not callable(python_callable):
        raise InvalidConfig(
            f"@task.ray_train got a {type(python_callable).__name__}, not a function",
            change="pass parameters by name: @task.ray_train(storage_path=...)",
        )
    return decorate(python_callable)


ray_train_task = cast("RayTrainTaskDecorator", _ray_train_task)
"""`task.ray_train` with its parameters known to editors and type checkers."""
