"""The arguments of a decorated training function: where they come from, and whether they reach the cluster."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.operators.parameters import check_json, plain_json

if TYPE_CHECKING:
    from airflow.sdk import Context

TRAVELLING_CONTEXT = frozenset({"params", "ds", "ds_nodash", "ts", "ts_nodash", "ts_nodash_with_tz", "run_id"})
"""Names of Airflow's context whose values are JSON: a parameter of that name gets it, as in any TaskFlow task."""


def check_signature(function: Callable[..., Any]) -> None:
    """Find at parse time a parameter that Airflow would fill with an object of its own. Raises InvalidConfig."""
    for name in inspect.signature(function).parameters:
        if name in KNOWN_CONTEXT_KEYS and name not in TRAVELLING_CONTEXT:
            raise InvalidConfig(
                f"The parameter {name!r} of {_name(function)} is an object of Airflow's, which can't travel to the cluster",
                known=f"of Airflow's context only {', '.join(sorted(TRAVELLING_CONTEXT))} are JSON",
                change=f"rename the parameter and pass a text: {_name(function)}(when='{{{{ {name} }}}}')",
            )


def check_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Find at parse time an argument that is no JSON. Raises InvalidConfig that names it."""
    parameters = list(inspect.signature(function).parameters)
    for number, value in enumerate(args):
        _check(function, parameters[min(number, len(parameters) - 1)] if parameters else f"{number}", value)
    for name, value in kwargs.items():
        _check(function, name, value)


def bound_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, context: Context
) -> dict[str, Any]:
    """The rendered arguments by parameter name; defaults are applied on the cluster. Raises InvalidConfig."""
    signature = inspect.signature(function)
    given = {name: plain_json(value) for name, value in kwargs.items()}
    try:
        taken = signature.bind_partial(*args, **given).arguments
        for name in signature.parameters:
            if name in TRAVELLING_CONTEXT and name not in taken and name in context:
                given[name] = plain_json(context[name])  # type: ignore[literal-required]  # checked above
        bound = signature.bind(*[plain_json(value) for value in args], **given).arguments
    except TypeError as error:
        raise InvalidConfig(
            f"{_name(function)} can't be called with the arguments that it got",
            known=str(error),
            change=f"call it as it is defined: {_name(function)}{signature}",
        ) from None
    for name, value in bound.items():
        _check(function, name, value)
    return dict(bound)


def _check(function: Callable[..., Any], name: str, value: object) -> None:
    check_json(f"the argument {name!r} of {_name(function)}", value)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))
