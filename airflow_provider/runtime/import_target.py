"""Finds the user's code by import path and checks its signature before any worker starts."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider.core.dag_function import newer_python
from airflow_provider.core.errors import InvalidConfig


def load_target(path: str, *, parameter: str) -> Callable[..., Any]:
    """The function behind `package.module:function`. Raises InvalidConfig when it can't be imported."""
    module_name, found, name = path.partition(":")
    if not found or not module_name or not name:
        raise InvalidConfig(f"{parameter}={path!r} is no import path", change="write package.module:function")
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        versions = newer_python(module_name, sys.version_info[:2])
        raise InvalidConfig(
            f"{parameter}={path!r} can't be imported on the cluster: no module named {error.name!r}",
            known=versions or f"looked for {module_name} in working_dir and in the cluster's Python",
            change="check working_dir and the spelling, or install the package on the cluster",
        ) from error
    except Exception as error:  # process edge: importing runs the user's module, which may raise anything
        last = traceback.format_exception_only(type(error), error)[-1].strip()
        versions = newer_python(module_name, sys.version_info[:2])
        if versions is not None and isinstance(error, (SyntaxError, ImportError)):
            raise InvalidConfig(
                f"The function of the DAG file can't run on the cluster's Python: {last}",
                known=f"{versions}; {_where(error)}",
                change="write the function for the older of the two, or name another interpreter with python=",
            ) from error
        raise InvalidConfig(
            f"{parameter}={path!r} fails while it is imported", known=last, change=f"correct module {module_name}"
        ) from error
    for part in name.split("."):
        target = getattr(target, part, None)
        if target is None:
            raise InvalidConfig(
                f"{parameter}={path!r}: module {module_name} has no {name!r}", change="check the spelling"
            )
    if not callable(target):
        raise InvalidConfig(
            f"{parameter}={path!r} is a {type(target).__name__}, not a function", change="name a function"
        )
    return target  # type: ignore[no-any-return]  # callable() tells the checker nothing about Any


def _where(error: SyntaxError | ImportError) -> str:
    line = error.lineno if isinstance(error, SyntaxError) else None
    return f"line {line} of the DAG file" if line else "raised while the function's module was imported"


def check_call(target: Callable[..., Any], *, parameter: str, takes: int, given: str) -> None:
    """Raise InvalidConfig unless `target` can be called with `takes` positional arguments."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return  # a C function without a signature: the call itself will tell
    try:
        signature.bind(*[None] * takes)
    except TypeError as error:
        raise InvalidConfig(
            f"{parameter} has the wrong signature: {getattr(target, '__name__', target)}{signature}",
            known=str(error),
            change=f"make it callable with {given}",
        ) from None


def load_factory(
    target: str, *, config: Mapping[str, Any] | None
) -> tuple[Callable[..., Any], tuple[dict[str, Any], ...]]:
    """A trainer factory and what it is called with after the run config: the train_loop_config, where one was given."""
    factory = load_target(target, parameter="trainer")
    more = () if config is None else (dict(config),)
    given = "one argument, the run config" if config is None else "two arguments, run config and train_loop_config"
    check_call(factory, parameter="trainer", takes=1 + len(more), given=given)
    return factory, more


def check_train_loop(target: Callable[..., Any], config: Mapping[str, Any] | None) -> None:
    """A training loop takes the config or nothing; a config that it can't take is an error, not ignored."""
    required = [p for p in _positional(target) if p.default is inspect.Parameter.empty]
    if len(required) > 1:
        check_call(target, parameter="train_loop", takes=1, given="one argument, the train_loop_config")
    if config and not _positional(target) and not _has_varargs(target):
        check_call(target, parameter="train_loop", takes=1, given="one argument: train_loop_config is not empty")


def _positional(target: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _has_varargs(target: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.kind is p.VAR_POSITIONAL for p in parameters)
