"""The module of a DAG file's function as it lies in the job's package, and how its arguments reach the function."""

from __future__ import annotations

import inspect
import keyword
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PACKAGE = "airflow_provider.from_dag"
"""Holds the module, on the cluster only."""
LOOP = "__ray_train_loop__"
"""The module's training loop: takes the train_loop_config and calls the function with it."""


@dataclass(frozen=True)
class FunctionModule:
    """A function with what it uses of its DAG file, ready to travel."""

    name: str
    """The module's own name, that of the DAG file: tracebacks show it."""
    text: str
    """Its source; lines are numbered as in the DAG file."""
    function: str

    @property
    def target(self) -> str:
        """Import path of the training loop."""
        return f"{PACKAGE}.{self.name}:{LOOP}"

    @property
    def files(self) -> dict[str, bytes]:
        """Its files by path inside the job's package."""
        folder = PACKAGE.replace(".", "/")
        version = f'"""Functions of DAG files."""\n\nAIRFLOW_PYTHON = {sys.version_info[:2]!r}\n'
        return {f"{folder}/__init__.py": version.encode(), f"{folder}/{self.name}.py": self._body().encode()}

    def _body(self) -> str:
        return (
            f"{self.text}\n\n"
            # The function may have any name: none of these may hide it.
            f"def {LOOP}(__config__):\n"
            "    from airflow_provider.core.dag_function import call_with as __call_with__\n"
            f"    __call_with__({self.function}, __config__)\n"
        )


def module_name(filename: str) -> str:
    """A module's name for a DAG file's path."""
    stem = re.split(r"[/\\]", filename)[-1].rpartition(".py")[0]
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)
    # `__init__` would take the place of the package's own file.
    is_plain = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")
    return name if is_plain else f"dag_{name}"


def call_with(function: Callable[..., Any], config: Mapping[str, Any]) -> None:
    """Call a function with arguments by parameter name; what it returns is ignored, as by Ray.

    A parameter `*args` has a list, `**kwargs` an object.
    """
    signature = inspect.signature(function)
    bound = signature.bind_partial()
    for name, parameter in signature.parameters.items():
        if name in config:
            value = config[name]
            bound.arguments[name] = tuple(value) if parameter.kind is parameter.VAR_POSITIONAL else value
    function(*bound.args, **bound.kwargs)


def newer_python(module: str, cluster: tuple[int, int]) -> str | None:
    """What to say of a module of a DAG file that this Python can't read: both versions; None where they don't differ.

    `module` is the name that was to be imported.
    """
    if not module.startswith(f"{PACKAGE}."):
        return None
    of_airflow: tuple[int, int] = sys.modules[PACKAGE].AIRFLOW_PYTHON if PACKAGE in sys.modules else cluster
    if of_airflow == cluster:
        return None
    airflow, here = (".".join(map(str, version)) for version in (of_airflow, cluster))
    return f"Airflow reads the DAG file with Python {airflow}, the cluster's driver runs Python {here}"
