"""What can't travel to the cluster is refused by name when the DAG is parsed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core.errors import FunctionNotShippable, InvalidConfig
from tests.support.dag_file import DECORATOR, HEADER, dag_source, load

REFUSED: dict[str, tuple[str, str, str]] = {
    "lambda": ("train = task.ray_train(storage_path='/m')(lambda: 1)  #!", "lambda", "def"),
    "async": ("@T\nasync def train():  #!\n    return 1", "async", "def"),
    "generator": ("@T\ndef train():\n    yield 1  #!", "generator", "ray.train.report"),
    "nonlocal": (
        "def f():\n    n = 1\n    @T\n    def train():\n        nonlocal n  #!\n        n += 1\nf()",
        "nonlocal n",
        "inside the function",
    ),
    "inner nonlocal": (
        "def f():\n    n = 1\n    @T\n    def train():  #?\n        def g():\n            nonlocal n\n            n += 1\nf()",
        "nonlocal",
        "top level",
    ),
    "closure over an object": (
        "def f(o):\n    @T\n    def train():\n        return o  #!\nf(object())",
        "'o' of the function around it is a object",
        "pass o as an argument",
    ),
    "closure over a dag's parameter": (
        "@dag()\ndef f(lr=1):\n    @T\n    def train():\n        return lr  #!\nf()",
        "'lr' of the function around it is a DagParam",
        "pass lr as an argument",
    ),
    "closure bound later": (
        "def f():\n    @T\n    def train():\n        return n  #!\n    n = 1\nf()",
        "'n' of the function around it has no value yet",
        "before the function",
    ),
    "closure rebound by another function": (
        "def f(n=1):\n    def g():\n        nonlocal n  #!\n        n = 2\n    @T\n    def train():\n        return n\nf()",
        "'n' is rebound by a function",
        "pass n",
    ),
    "in an elif": (
        "def helper():\n    return 1\nif not helper():\n    pass\nelif helper():\n    @T\n    def train():  #?\n        return 1",
        "can't",
        "top level",
    ),
    "decorator of the function around": (
        "def f(wrap):\n    @T\n    @wrap  #!\n    def train():\n        return 1\nf(lambda g: g)",
        "'wrap' of the function around it has no value",
        "",
    ),
    "default that is an object": (
        "def f(o):\n    @T\n    def train(o=o):  #!\n        return o\nf(object())",
        "'o' of the function around it is a object",
        "pass o",
    ),
    "machine by version of an import": (
        "import platform\nif platform.node():\n    import json\n@T\ndef train():\n    return json  #!",
        "'json' (line 4) is no literal: it calls platform.node",
        "json",
    ),
    "branches that do more": (
        "try:\n    N = 1\n    print(N)\nexcept OSError:\n    N = 2\n@T\ndef train():\n    return N  #!",
        "is no literal",
        "N",
    ),
    "a walrus": ("if (N := 1):\n    pass\n@T\ndef train():\n    return N  #!", "'N' gets its value from a loop", "N"),
    "unpacking a call": ("A, B = divmod(7, 2)\n@T\ndef train():\n    return A  #!", "it calls divmod(...)", "A"),
    "closure over a loop": (
        "def f():\n    for n in (1, 2):\n        @T\n        def train():\n            return n  #!\nf()",
        "'n' gets its value from a loop",
        "as an argument",
    ),
    "secret of the environment": (
        "import os\nTOKEN = os.environ.get('T')\n@T\ndef train():\n    return TOKEN  #!",
        "'TOKEN' (line 3) is no literal",
        "pass TOKEN as an argument",
    ),
    "secret by name": (
        "from os import environ\nHOME = environ['HOME']\n@T\ndef train():\n    return HOME  #!",
        "depends on the machine (os)",
        "pass HOME",
    ),
    "secret in a closure": (
        "import os\ndef f():\n    token = os.environ.get('T', '')\n    @T\n    def train():\n        return token  #!\nf()",
        "'token' (line 4) is no literal",
        "pass token",
    ),
    "computed constant": (
        "import uuid\nRUN = uuid.uuid4().hex\n@T\ndef train():\n    return RUN  #!",
        "it calls uuid.uuid4(...)",
        "pass RUN",
    ),
    "the dag": (
        "with DAG('d') as d:\n    @T\n    def train():\n        return d  #!",
        "'d' gets its value from a with",
        "d",
    ),
    "the dag assigned": (
        "d = DAG('d')\n@T\ndef train():\n    return d  #!",
        "'d' (line 2) is no literal: it calls DAG",
        "d",
    ),
    "task": ("@T\ndef train():\n    return task  #!", "'task' of airflow.sdk", "another task's output"),
    "context": (
        "from airflow.sdk import get_current_context as now\n@T\ndef train():\n    return now()  #!",
        "'now' of airflow.sdk",
        "arguments",
    ),
    "airflow inside": (
        "@T\ndef train():\n    from airflow.sdk import Variable  #!\n    return Variable",
        "'Variable' of airflow.sdk",
        "arguments",
    ),
    "our own Airflow side": (
        "from airflow_provider.hooks.ray import RayHook\n@T\ndef train():\n    return RayHook  #!",
        "'RayHook' of airflow_provider.hooks.ray",
        "arguments",
    ),
    "another task": (
        "@task  #!\ndef other():\n    return 1\n@T\ndef train():\n    return other()",
        "'other', which is a task or a DAG",
        "other a plain function",
    ),
    "an operator": (
        "from airflow.sdk import BaseOperator\nop = BaseOperator(task_id='x')\n@T\ndef train():\n    return op  #!",
        "'op' (line 3) is no literal: it calls BaseOperator",
        "op",
    ),
    "a helper's dag": (
        "d = DAG('d')\ndef helper():\n    return d  #!\n@T\ndef train():\n    return helper()",
        "'d' (line 2) is no literal",
        "d",
    ),
    "bound twice": (
        "N = 1\nN = 2\n@T\ndef train():\n    return N  #!",
        "'N' is bound more than once (lines 2, 3)",
        "once",
    ),
    "added to": ("N = 1\nN += 2\n@T\ndef train():\n    return N  #!", "'N' is bound more than once", "once"),
    "rebound by a function": (
        "N = 1\ndef change():\n    global N  #!\n    N = 2\n@T\ndef train():\n    return N",
        "'N' is rebound by a function",
        "pass N",
    ),
    "mutated": ("N = [1]\nN.append(2)\n@T\ndef train():\n    return N  #!", "'N' was changed since line 2", "pass N"),
    "mutated, and no literal": (
        "A = 1\nN = {'a': A}\nN['a'] = 2\n@T\ndef train():\n    return N  #!",
        "'N' was changed since line 3 bound it (by line 4)",
        "pass N",
    ),
    "mutated in a branch": (
        "N = dict(a=[1])\nif True:\n    N['a'].extend([2])\n@T\ndef train():\n    return N  #!",
        "'N' was changed since line 2 bound it (by line 4)",
        "pass N",
    ),
    "mutated further down": (
        "N = [1]\n@T\ndef train():\n    return N  #!\nN.append(2)",
        "'N' was changed since line 2 bound it (by line ",
        "pass N",
    ),
    "for checkers only": (
        "import typing\nif typing.TYPE_CHECKING:\n    import json\n@T\ndef train():\n    return json  #!",
        "'json' is imported under TYPE_CHECKING only",
        "inside the function",
    ),
    "star import": (
        "from json import *\n@T\ndef train():\n    return dumps  #!",
        "'dumps' comes from an import of *",
        "by name",
    ),
    "unknown": ("@T\ndef train():\n    return nowhere  #!", "'nowhere' is bound nowhere", "import"),
    "file": ("@T\ndef train():\n    return __file__  #!", "__file__", "path as an argument"),
    "in a class": ("class C:\n    @T\n    def train():  #!\n        return 1", "in a class", "out of the class"),
    "two meanings": (
        "N = 1\ndef helper():\n    return N\ndef f():\n    N = 2\n    @T\n    def train():\n        return helper() + N  #?\nf()",
        "'N' means one thing in the module",
        "rename",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cant_travel_is_named_with_its_line_when_the_dag_is_parsed(name: str, tmp_path: Path) -> None:
    body, what, change = REFUSED[name]
    source = dag_source(body)
    with pytest.raises(FunctionNotShippable) as caught:
        load(tmp_path, source)
    error = caught.value
    assert what in error.what
    assert change in error.change
    marked = [number for number, line in enumerate(source.splitlines(), 1) if "#!" in line]
    assert error.line in (marked or [error.line])
    assert f"line {error.line}" in error.known
    assert str(tmp_path) in error.known


def test_a_function_without_a_file_is_refused() -> None:
    names: dict[str, Any] = {}
    source = HEADER + DECORATOR + "def train(): return 1"
    with pytest.raises(FunctionNotShippable, match="source is no file"):
        exec(compile(source, "<stdin>", "exec"), names)  # noqa: S102  # as in a console


@pytest.mark.parametrize("given", [functools.partial(print, 1), "text".upper, print, object])
def test_what_can_be_called_and_is_no_function_is_refused(given: Any) -> None:
    from airflow_provider.decorators.ray_train import ray_train_task

    with pytest.raises(FunctionNotShippable, match="can't be sent to the cluster"):
        ray_train_task(storage_path="/m")(given)


def test_only_a_function_can_be_decorated() -> None:
    from airflow_provider.decorators.ray_train import ray_train_task

    with pytest.raises(InvalidConfig, match="got a str"):
        ray_train_task("s3://models")  # type: ignore[call-arg,arg-type]
