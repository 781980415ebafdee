"""A function of a DAG file does on the cluster what it does in its file, or is refused by name when the DAG is parsed."""

from __future__ import annotations

import re
import sys
import textwrap
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider.core.errors import FunctionNotShippable, InvalidConfig
from tests.support.dag_file import HEADER, load, on_cluster, shipped

DECORATOR = "@task.ray_train(storage_path='/shared/models')\n"

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


def dag_source(body: str) -> str:
    text = textwrap.dedent(body) if body.lstrip("\n").startswith(" ") else body
    return HEADER + re.sub(r"(?m)^([ \t]*)@T$", lambda m: m[1] + DECORATOR.strip(), text.replace("@T\r", "@T"))


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


def test_only_a_function_can_be_decorated() -> None:
    from airflow_provider.decorators.ray_train import ray_train_task

    with pytest.raises(InvalidConfig, match="got a str"):
        ray_train_task("s3://models")  # type: ignore[call-arg,arg-type]


LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\r"))
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(constant=LITERALS, enclosed=LITERALS, text=st.text(st.characters(codec="ascii", exclude_characters="\r\0\\\"'")))
def test_any_literal_travels(constant: Any, enclosed: Any, text: str, tmp_path: Path) -> None:
    """As a module's constant, in a closure, and in a multi-line string of the function itself."""
    source = (
        f"{HEADER}CONSTANT = {constant!r}\n"
        "def around(enclosed):\n"
        "    @task.ray_train(storage_path='/shared/models')\n"
        "    def train():\n"
        f'        return CONSTANT, enclosed, """{text}"""\n'
        "    return train\n"
        f"train = around({enclosed!r})\n"
    )
    module = load(tmp_path, source)
    assert on_cluster(shipped(module.train))["train"]() == module.train.function() == (constant, enclosed, text)
