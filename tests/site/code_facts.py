"""What the reference says, read from signatures, docstrings and models. What has no words is an error, not an empty cell."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic import BaseModel

_ALIASES = {"Count": "int", "Quantity": "float", "Id": "str", "OnClear": '"auto" or "restore" or "fresh"'}
"""The code's own names of types, for readers."""
_PARAM = re.compile(r"^:param (\w+): ", re.MULTILINE)


class Undocumented(Exception):
    """A parameter, field or member that nobody has described, or a description of one that is not there."""


@dataclass(frozen=True)
class Item:
    """One row of a table."""

    name: str
    type: str
    default: str
    meaning: str


def parameters(function: Any, *, doc: str, leave_out: Collection[str] = ()) -> list[Item]:
    """A signature's keyword parameters, with the words of the docstring. Raises Undocumented."""
    known = inspect.signature(function).parameters
    left_out = {"self", "kwargs", *leave_out}
    said = described(doc)
    wanted = [name for name in known if name not in left_out]
    _check(owner=str(function.__qualname__), wanted=wanted, said={k: v for k, v in said.items() if k not in left_out})
    return [Item(n, _type(known[n].annotation), _default(known[n].default), said[n]) for n in wanted]


def described(doc: str) -> dict[str, str]:
    """The `:param name:` lines of a docstring, each as one line."""
    _, *parts = _PARAM.split(inspect.cleandoc(doc))
    return {name: _line(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def fields(model: type[BaseModel], *, inherited: Collection[str] = ()) -> list[Item]:
    """A model's fields with the strings below them. Raises Undocumented."""
    said, types = _members(model)
    wanted = [name for name in model.model_fields if name not in inherited]
    _check(owner=model.__name__, wanted=wanted, said=said)
    rows = []
    for name in wanted:
        field = model.model_fields[name]
        default = inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
        rows.append(Item(name, _type(types[name]), _default(default), said[name]))
    return rows


def members(enum: type[Enum]) -> dict[str, str]:
    """An enum's values with the strings below its members. Raises Undocumented."""
    said, _ = _members(enum)
    _check(owner=enum.__name__, wanted=[m.name for m in enum], said=said)
    return {str(member.value): said[member.name] for member in enum}


def summary(thing: Any) -> str:
    """The docstring without its parameters, as paragraphs. Raises Undocumented."""
    doc = inspect.cleandoc(thing.__doc__ or "")
    text = _PARAM.split(doc)[0].strip()
    if not text:
        raise Undocumented(f"{thing.__name__} has no docstring")
    return "\n\n".join(_line(part) for part in text.split("\n\n"))


def _members(cls: type[Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Strings below the class's assignments, and their annotations as written."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    said, types = {}, {}
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                types[name] = ast.unparse(annotation)
            case ast.Assign(targets=[ast.Name(id=name)]):
                pass
            case _:
                continue
        match following:
            case ast.Expr(value=ast.Constant(value=str(text))):
                said[name] = _line(inspect.cleandoc(text))
    return said, types


def _check(*, owner: str, wanted: Collection[str], said: dict[str, str]) -> None:
    silent = [name for name in wanted if not said.get(name)]
    strange = [name for name in said if name not in wanted]
    if silent or strange:
        raise Undocumented(f"{owner}: no words for {silent or 'nothing'}; words for what is not there: {strange}")


def _line(text: str) -> str:
    return " ".join(text.split())


def _type(annotation: Any) -> str:
    """An annotation in words, without what only pydantic reads of it."""
    return _words(ast.parse(str(annotation), mode="eval").body)


def _words(node: ast.expr) -> str:
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return f"{_words(left)} or {_words(right)}"
        case ast.Subscript(value=ast.Name(id="Templated" | "Annotated"), slice=inner):
            return _words(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            values = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return " or ".join(ast.unparse(value).replace("'", '"') for value in values)
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=inner)):
            return f"{_words(outer)}[{', '.join(map(_words, inner))}]"
        case ast.Subscript(value=outer, slice=inner):
            return f"{_words(outer)}[{_words(inner)}]"
        case ast.Name(id=name) if name in _ALIASES:
            return _ALIASES[name]
        case _:
            return ast.unparse(node)


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    return f"`{value!r}`" if value is None or isinstance(value, (bool, int, float, str)) else f"`{_shown(value)}`"


def _shown(value: object) -> str:
    return "{}" if value == {} else f"{type(value).__name__}()"
