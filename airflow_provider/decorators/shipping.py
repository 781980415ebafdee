"""From a live function of a DAG file to the module that travels: reads its file, its closure, its module's values."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from airflow_provider.core.dag_function import FunctionModule, module_name
from airflow_provider.core.errors import FunctionNotShippable
from airflow_provider.core.function_source import DagFunction, module_text

_made: WeakKeyDictionary[FunctionType, FunctionModule] = WeakKeyDictionary()
"""One module per function: a DAG file may make many tasks of one."""


def function_module(function: Callable[..., Any]) -> FunctionModule:
    """The module of a function. Raises FunctionNotShippable for what can't travel."""
    plain = plain_function(function)
    if plain not in _made:
        _made[plain] = _module(plain, is_bare=plain is function)
    return _made[plain]


def plain_function(function: Callable[..., Any]) -> FunctionType:
    """The function below its decorators. Raises FunctionNotShippable for anything else that can be called."""
    plain = inspect.unwrap(function)
    if not isinstance(plain, FunctionType):
        raise FunctionNotShippable(
            f"A {type(plain).__name__} can't be sent to the cluster",
            change="decorate a function that is written with def in the DAG file",
        )
    return plain


def _module(function: FunctionType, *, is_bare: bool) -> FunctionModule:
    code = function.__code__
    linecache.checkcache(code.co_filename)
    # Knows DAG files inside zip archives, too.
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    if not source:
        raise FunctionNotShippable(
            f"The function {code.co_name!r} can't be sent to the cluster: its source is no file",
            known=f"Python calls it {code.co_filename}",
            change="define it with def in a DAG file; a console or exec keeps no source",
            function=code.co_name,
        )
    known = DagFunction(
        source=source,
        name=code.co_name,
        line=code.co_firstlineno,
        filename=code.co_filename,
        closure=_closure(function),
        defaults={
            p.name: p.default for p in inspect.signature(function).parameters.values() if p.default is not p.empty
        },
        module_values=function.__globals__,
        is_bare=is_bare,
    )
    return FunctionModule(module_name(code.co_filename), module_text(known), code.co_name)


def _closure(function: FunctionType) -> dict[str, object]:
    """Values of enclosing variables, also of those that only a helper in the closure uses."""
    values: dict[str, object] = {}
    todo: list[FunctionType] = [function]
    seen: set[int] = set()
    while todo:
        current = todo.pop()
        seen.add(id(current))
        for name, cell in zip(current.__code__.co_freevars, current.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            values.setdefault(name, value)
            parts = vars(value).values() if isinstance(value, type) else [value]
            todo += [part for part in parts if isinstance(part, FunctionType) and id(part) not in seen]
    return values
