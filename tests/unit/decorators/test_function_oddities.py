"""What authors really write around a training function: it travels as it means there, or is refused by name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.core.dag_function import module_name
from airflow_provider.core.errors import FunctionNotShippable
from airflow_provider.decorators.shipping import function_module
from tests.support.dag_file import dag_source, load, on_cluster, shipped

SAME: dict[str, str] = {
    "the decorator's parameters shared by a function": """
        def on_models(**kwargs):
            return task.ray_train(storage_path="/shared/models", **kwargs)

        @on_models(retries=5)
        def train():
            return 1
        """,
    "a class that takes the module's value under its own name": """
        SIZE = 3
        other = 4

        class Model:
            SIZE = SIZE
            both = [SIZE for SIZE in range(2)]

            def other(self, other=other):
                return other

        @T
        def train():
            return Model.SIZE, Model.both, Model().other()
        """,
    "super, and a class in a class": """
        class Base:
            def __init__(self, n):
                self.n = n

        class Child(Base):
            class Inner:
                k = 2

            def __init__(self):
                super().__init__(self.Inner.k)

        @T
        def train():
            return Child().n
        """,
    "aliases in hints of fields": """
        from typing import Annotated, Literal

        from pydantic import BaseModel, Field

        LIMIT = 3
        Name = Literal["a", "b"]
        Names = list[Name]
        Small = Annotated[int, Field(le=LIMIT)]

        class Config(BaseModel):
            names: Names
            small: Small = 1
            other: Annotated[int, Field(le=LIMIT)] = 2

        @T
        def train():
            return Config(names=["a"]).model_dump()
        """,
    "a function named config": """
        @T
        def config(n=1):
            return n

        train = config
        """,
    "a very deep constant": "DEEP = " + " + ".join(["1"] * 1500) + "\n@T\ndef train():\n    return 1\n",
    "a large table, and values that equal nothing": """
        LARGE = list(range(2_000_000))
        ODD = [float("nan"), len("ab")]

        @T
        def train():
            return len(LARGE), ODD[1]
        """,
    "values made of values, and a cache that only helpers that travel fill": """
        BASE = "/data"
        CONFIG = {"path": BASE, "layers": [1, 2]}
        TABLE = {"double": lambda x: 2 * x}
        CACHE = dict()

        def cached():
            return CACHE.setdefault("n", 5)

        @T
        def train():
            return CONFIG, TABLE["double"](2), cached()
        """,
    "a closure that is complete before the function": """
        def factory(extra):
            sizes = [1]
            sizes.append(extra)

            @T
            def train():
                return sizes

            return train

        train = factory(2)
        """,
    "names of other alphabets": """
        größe = 3

        def hälfte(n):
            return n / 2

        @T
        def train(ﬁ=1):
            return hälfte(größe), ﬁ, fi
        """,
    "line continuations": """
        A = 1 + \\
            2
        assert A, \\
            "never"

        @T
        def train(a=A,
                  *, b=2): return a + \\
            b
        """,
}


@pytest.mark.parametrize("name", SAME)
def test_it_does_on_the_cluster_what_it_does_in_its_file(name: str, tmp_path: Path) -> None:
    module = load(tmp_path, dag_source(SAME[name]))
    names = on_cluster(shipped(module.train))
    assert names[module.train.function.__name__]() == module.train.function()
    names["__ray_train_loop__"]({})


REFUSED: dict[str, tuple[str, str]] = {
    "a builtin that an import of * replaces": (
        "from os import *\n@T\ndef train():\n    return open('/x', 0)  #!",
        "'open' comes from an import of *",
    ),
    "a function that an import of * replaces": (
        "def dumps(x):\n    return 'mine'\nfrom json import *\n@T\ndef train():\n    return dumps(1)  #!",
        "'dumps' comes from an import of *",
    ),
    "a value of values that a function changed": (
        "BASE = '/d'\nCONFIG = {'a': BASE}\ndef change():\n    CONFIG['lr'] = 1\nchange()\n@T\ndef train():\n    return CONFIG  #!",
        "'CONFIG' was changed since line 3",
    ),
    "a value changed under another name": (
        "N = 1\nA = [N]\nB = A\nB.append(2)\n@T\ndef train():\n    return A  #!",
        "'A' was changed since line 3",
    ),
    "two names of one list": (
        "A = B = []\nB.append(2)\n@T\ndef train():\n    return A  #!",
        "'A' was changed since line 2",
    ),
    "a closure that is changed after the function": (
        "def f():\n    sizes = [1]\n    @T\n    def train():\n        return sizes  #!\n    sizes.append(2)\nf()",
        "'sizes' was changed since line 3 bound it (by line 7)",
    ),
    "an argument that is changed after the function": (
        "def f(sizes):\n    @T\n    def train():\n        return sizes  #!\n    sizes['a'] = 2\nf({})",
        "'sizes' was changed since line 2 bound it (by line 6)",
    ),
    "a value of the machine by an import in a try": (
        "try:\n    from os import environ\nexcept ImportError:\n    pass\nHOME = environ['HOME']\n@T\ndef train():\n    return HOME  #!",
        "depends on the machine (os)",
    ),
    "an attribute that is added to a class": (
        "class Config:\n    size = 1\nConfig.size = 5  #!\n@T\ndef train():\n    return Config.size",
        "line 4 adds to 'Config', and only its definition travels",
    ),
    "an implementation that is registered": (
        "import functools\n@functools.singledispatch\ndef show(x):\n    return 'any'\n@show.register  #!\ndef _(x: list):\n    return 'list'\n@T\ndef train():\n    return show([1])",
        "line 6 adds to 'show'",
    ),
    "a decorator below that uses Airflow": (
        "def with_run(f):\n    from airflow.sdk import get_current_context  #!\n    return f\n@T\n@with_run\ndef train():\n    return 1",
        "'get_current_context' of airflow.sdk",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_mean_something_else_there_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    body, what = REFUSED[name]
    source = dag_source(body)
    with pytest.raises(FunctionNotShippable) as caught:
        load(tmp_path, source)
    assert what in caught.value.what
    assert caught.value.line == next(i for i, line in enumerate(source.splitlines(), 1) if "#!" in line)


def test_the_decorator_may_come_from_whichever_place_this_airflow_has(tmp_path: Path) -> None:
    source = "try:\n    from airflow.sdk import task\nexcept ImportError:\n    from airflow.decorators import task\n"
    module = load(tmp_path, source + "@task.ray_train(storage_path='/m')\ndef train():\n    return 1\n")
    assert on_cluster(shipped(module.train))["train"]() == 1


def test_a_decorator_that_another_file_makes_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A team's own `train_task` with its storage path: the cluster has neither that module nor Airflow."""
    (tmp_path / "team_tasks_of_a_test.py").write_text(
        "from airflow.sdk import task\ndef train_task(**kw): return task.ray_train(storage_path='/m', **kw)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source = "from team_tasks_of_a_test import train_task\n@train_task()\ndef train():\n    return 1\n"
    module = load(tmp_path, source)
    assert "team_tasks" not in shipped(module.train).text
    assert on_cluster(shipped(module.train))["train"]() == 1


def test_a_wrapper_of_another_file_that_lies_below_still_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "team_wrappers_of_a_test.py").write_text(
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def g():\n        return f(), f()\n    return g\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source = dag_source("from team_wrappers_of_a_test import twice\n@twice\ndef plain():\n    return 1\n")
    module = load(tmp_path, source + "train = task.ray_train(storage_path='/m')(plain)\n")
    assert on_cluster(function_module(module.train.function))["plain"]() == (1, 1)


@pytest.mark.parametrize("file", ["pkg/__init__.py", "__main__.py"])
def test_a_dag_file_that_is_a_package_keeps_the_package_of_the_cluster(file: str) -> None:
    assert module_name(f"/dags/{file}").startswith("dag_")


def test_a_dag_in_a_zip_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Airflow loads packaged DAGs: by an import from the archive."""
    import zipfile

    body = dag_source("N = 'ü'\n@T\ndef train():\n    return N\n")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("zipped_dag_of_a_test.py", body)
    monkeypatch.syspath_prepend(tmp_path / "packed.zip")
    module: Any = importlib.import_module("zipped_dag_of_a_test")
    try:
        assert on_cluster(shipped(module.train))["train"]() == "ü"
    finally:
        del sys.modules["zipped_dag_of_a_test"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8-sig"])
def test_a_file_in_another_encoding_travels(encoding: str, tmp_path: Path) -> None:
    cookie = "" if encoding == "utf-8-sig" else f"# -*- coding: {encoding} -*-\n"
    path = tmp_path / "encoded_dag.py"
    source = cookie + dag_source("N = 'ü'  # é\n@T\ndef train():\n    return N, 'ß'\n")
    path.write_bytes(source.encode(encoding))
    import importlib.util

    spec = importlib.util.spec_from_file_location("encoded_dag", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert on_cluster(shipped(module.train))["train"]() == ("ü", "ß")
