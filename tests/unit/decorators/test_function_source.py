"""A function of a DAG file does on the cluster what it does in its file."""

from __future__ import annotations

import sys
import textwrap
import traceback
from pathlib import Path

import pytest

from tests.support.dag_file import HEADER, dag_source, load, on_cluster, shipped

SAME: dict[str, str] = {
    "strings that look like comments and code": '''
        @T
        def train():
            """Doc # with a hash."""
            # a comment
            text = """
        # not a comment
            @task.ray_train
        """  # a comment
            return text, "a # b", '#', r"\\n", b"#"
        ''',
    "a string at column 0 in a nested function": '''
        def around():
            @T
            def train():
                text = """first
        second
            third
        """
                return text

            return train

        train = around()
        ''',
    "f-strings": '''
        @T
        def train(x=3):
            name = "n"
            return f"{x!r:>{4}} # {name} {{}} {x + 1:03d} {'q' + name}", f"""
        {x}
            # {name}
        """
        ''',
    "aliases": """
        import math as m, json
        from collections import (
            OrderedDict as Order,  # a comment
            defaultdict,
        )
        import os.path
        import xml.dom
        import xml.sax

        @T
        def train():
            return m.floor(2.5), json.dumps(Order(a=1)), defaultdict(int)["x"], os.path.join("a", "b"), xml.sax.__name__
        """,
    "constants, and constants of constants": """
        A, B = 2, 3.5
        SIZES: list[int] = [A, B * 2]
        TABLE = {
            "a": SIZES,  # a comment
            "b": {"c": (A, None)},
        }; FLAG = not True; NAME = "x" "y"
        SQUARES = [n * n for n in range(3)]
        import re; PATTERN = re.compile("a+")
        double = lambda x: x * A

        @T
        def train():
            return TABLE, FLAG, NAME, SQUARES, PATTERN.findall("aab"), double(4)
        """,
    "helpers, mutual recursion and classes": """
        import dataclasses
        import functools

        LIMIT = 7

        @T
        def train(n=5):
            return is_even(n), vars(Point(1, y=LIMIT).moved()), Child().name(), cached(n), train.__name__

        def is_even(n):
            return True if n == 0 else is_odd(n - 1)

        def is_odd(n):
            return False if n == 0 else is_even(n - 1)

        @dataclasses.dataclass(
            frozen=True,
        )
        class Point:
            x: int
            y: int = LIMIT

            def moved(self) -> "Point":
                return Point(self.x + 1, self.y)

        class Parent:
            label = "p"

        class Child(Parent):
            def name(self):
                return self.label + helper()

        def helper():
            return "h"

        @functools.lru_cache(maxsize=None)
        def cached(n):
            return n * 2
        """,
    "recursion and inner functions": """
        @T
        def train(n=4):
            def inner(k):
                nonlocal total
                total += k
                return [inner_k for inner_k in range(k) if (half := inner_k // 2) >= 0]

            total = 0
            listed = inner(n)
            return (n if n < 2 else train_again(n)), listed, total, (lambda q: q + n)(1)

        def train_again(n):
            return 1 if n < 2 else n * train_again(n - 1)
        """,
    "all kinds of parameters": """
        DEFAULT = 4

        @T
        def train(a=1, /, b=DEFAULT, *args, c, d=(1, 2), **kwargs):
            return a, b, args, c, d, kwargs

        CALL = ((9,), {"c": 5, "e": 6})
        """,
    "hints that nothing on the cluster can read": """
        from typing import TYPE_CHECKING, Annotated

        if TYPE_CHECKING:
            from nowhere import Nothing

        @T
        def train(x: "Nothing" = 1, *, y: Annotated[int, "# 1"] = 2) -> "Nothing":
            z: "Nothing" = x
            return z, y
        """,
    "hints of fields, which dataclasses and pydantic read": """
        import typing as t
        from dataclasses import dataclass, fields
        from typing import ClassVar

        from airflow.sdk import Context
        from pydantic import BaseModel

        if t.TYPE_CHECKING:
            from nowhere import Nothing

        @dataclass
        class Limits:
            NAMES: ClassVar[tuple] = ("a",)
            low: "t.Optional[int]" = None
            high: "Nothing | Context" = None

        class Inner(BaseModel):
            n: int

        class Outer(BaseModel):
            inner: Inner
            more: "t.Optional[Inner]" = None

        @T
        def train():
            return [f.name for f in fields(Limits())], Outer(inner={"n": 1}).model_dump()
        """,
    "imports in a try, and by version": """
        import sys

        try:
            import no_such_module_of_anybody as fast
        except ImportError:
            fast = None

        if sys.version_info >= (3, 9):
            from math import sqrt as root
        else:
            root = None

        @T
        def train():
            return fast, root(4)
        """,
    "decorators over several lines, and one below": """
        import functools

        def twice(function):
            @functools.wraps(function)
            def wrapper(*args):
                return function(*args), function(*args)

            return wrapper

        @task.run_if(
            lambda context: True,
        )
        @task.ray_train(
            storage_path="/shared/models",  # a comment (
            retries=5,
        )
        @twice
        def train(x=1):
            return x
        """,
    "in a with block, beside its helpers": """
        with DAG("d"):
            SCALE = 3

            def scaled(x):
                return x * SCALE

            with DAG("e"): ONE_LINE = 5

            @T
            def train():
                return scaled(2), ONE_LINE
        """,
    "closures over literals, arguments, helpers and imports": '''
        def factory(name, sizes=(1, 2)):
            import math
            offset = 10

            def shifted(x):
                """A
        docstring."""
                return x + offset

            if True:
                @T
                def train():
                    return name, sizes, shifted(1), math.floor(1.5)

            return train

        train = factory("first # not a comment")
        ''',
    "defaults from outside": """
        SEED = 7

        def factory(lr, *, rates):
            @T
            def train(a=SEED, lr=lr, *, rates=rates, more=None):
                return a, lr, rates, more

            return train

        train = factory(0.5, rates=[1, 2])
        """,
    "a dag function": """
        @dag(schedule=None)
        def pipeline():
            lr = 0.1

            @T
            def train(epochs=2):
                return [lr] * epochs

            globals()["train"] = train
            train()

        pipeline()
        """,
    "tabs, form feeds and semicolons": "\nX = 1; Y = 2\n\x0c\n@T\ndef train():\n\tif X:\n\t\tz = 3; y = 4\n\treturn X, Y, z, y\n",
    "match, walrus, star expressions": """
        @T
        def train(points=((0, 1), (2, 3))):
            found = []
            for point in points:
                match point:
                    case (0, y): found.append(y)
                    case (x, *rest): found += [x, *rest]
            if (n := len(found)) > 1:
                first, *others = found
            return n, first, others, {**{"a": 1}}, [*range(n)]
        """,
    "a global cache that only it changes": """
        CACHE = None

        def cached():
            global CACHE
            if CACHE is None:
                CACHE = [1]
            return CACHE

        @T
        def train():
            return cached()
        """,
    "a builtin that the file replaces": """
        from json import dumps as print

        @T
        def train():
            return print([1])
        """,
    "an alias of the decorator": """
        from airflow_provider.decorators.ray_train import ray_train_task as trained

        on_models = trained(storage_path="/shared/models")

        @on_models
        def train():
            return 1
        """,
    "carriage returns": "\r\nX = '''a\r\nb'''\r\n@T\r\ndef train():\r\n    return X, 'ü'\r\n",
}
if sys.version_info >= (3, 12):
    SAME["f-strings and types of 3.12"] = """
        type Pair[T] = tuple[T, T]

        @T
        def train[V](x: V = 1) -> V:
            return f"{"nested # " + f"{x}"} {
                x  # a comment
            }"
        """


@pytest.mark.parametrize("name", SAME)
def test_it_does_on_the_cluster_what_it_does_in_its_file(name: str, tmp_path: Path) -> None:
    module = load(tmp_path, dag_source(SAME[name]))
    args, kwargs = getattr(module, "CALL", ((), {}))
    here, there = module.train.function, on_cluster(shipped(module.train))["train"]
    assert there(*args, **kwargs) == here(*args, **kwargs)
    assert there.__doc__ == here.__doc__


@pytest.mark.parametrize("name", SAME)
def test_nothing_of_airflow_travels(name: str, tmp_path: Path) -> None:
    text = shipped(load(tmp_path, dag_source(SAME[name])).train).text
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", '"', "@task.ray")))
    assert "airflow" not in code
    assert "storage_path" not in text


def test_a_traceback_names_the_lines_of_the_dag_file(tmp_path: Path) -> None:
    source = HEADER + textwrap.dedent(
        """
        import json
        @dag()
        def pipeline():
            '''Doc.'''
            def helper():
                raise KeyError("labels")
            @task.ray_train(
                storage_path="/shared/models",
            )
            def train():
                helper()
            return train
        train = pipeline.function() if hasattr(pipeline, "function") else pipeline.__wrapped__()
        """
    )
    names = on_cluster(shipped(load(tmp_path, source).train))
    with pytest.raises(KeyError) as caught:
        names["train"]()
    said = [frame.lineno for frame in traceback.extract_tb(caught.value.__traceback__)][1:]
    lines = source.splitlines()
    assert [lines[(number or 0) - 1].strip() for number in said] == ["helper()", 'raise KeyError("labels")']


def test_the_loop_calls_it_with_the_config_by_name(tmp_path: Path) -> None:
    module = load(
        tmp_path,
        dag_source(SAME["all kinds of parameters"])
        .replace("return a", "SEEN.append((a")
        .replace("d, kwargs", "d, kwargs))")
        .replace("DEFAULT = 4", "DEFAULT = 4; SEEN = []"),
    )
    names = on_cluster(shipped(module.train))
    names["__ray_train_loop__"]({"b": 2, "args": [7, 8], "c": 3, "kwargs": {"e": 5}, "a": 0})
    names["__ray_train_loop__"]({"c": 3})
    assert names["SEEN"] == [(0, 2, (7, 8), 3, (1, 2), {"e": 5}), (1, 4, (), 3, (1, 2), {})]
