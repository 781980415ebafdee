"""A DAG file on disk, loaded as Airflow loads it, and its functions as the cluster gets them."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow_provider.core.dag_function import FunctionModule
from airflow_provider.decorators.shipping import function_module

HEADER = "from airflow.sdk import dag, task, DAG\n"
DECORATOR = "@task.ray_train(storage_path='/shared/models')\n"
_numbers = itertools.count(1)


def dag_source(body: str) -> str:
    """A file with this body; `@T` on a line of its own is the decorator."""
    text = textwrap.dedent(body) if body.lstrip("\n").startswith(" ") else body
    return HEADER + re.sub(r"(?m)^([ \t]*)@T$", lambda m: m[1] + DECORATOR.strip(), text.replace("@T\r", "@T"))


def load(folder: Path, source: str, *, number: int | None = None) -> ModuleType:
    """Write and import a DAG file; with a number again, another version of it."""
    path = folder / f"dag_file_{next(_numbers) if number is None else number}.py"
    path.write_bytes(source.encode())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def shipped(decorated: Any) -> FunctionModule:
    """What travels for a decorated function."""
    return function_module(decorated.function)


def on_cluster(module: FunctionModule) -> dict[str, Any]:
    """The module's names after its import where neither the DAG file nor its directory is."""
    names: dict[str, Any] = {"__name__": f"airflow_provider.from_dag.{module.name}"}
    sys.modules[names["__name__"]] = ModuleType(names["__name__"])
    (body,) = [body for path, body in module.files.items() if path.endswith(f"/{module.name}.py")]
    sys.modules[names["__name__"]].__dict__.update(names)
    names = sys.modules[names["__name__"]].__dict__
    exec(compile(body.decode(), f"{module.name}.py", "exec", dont_inherit=True), names)  # noqa: S102  # what a worker does
    return names
