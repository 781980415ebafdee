"""Where a statement of a file stands: the blocks around it, and the scopes in which its names are looked up."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from airflow_provider.core.source_bindings import Binding, Bindings, Function


@dataclass(frozen=True)
class Place:
    """Where one statement stands."""

    around: tuple[ast.stmt, ...]
    """The blocks around it, the outermost first."""
    scopes: tuple[Bindings, ...]
    """The innermost first."""


_of_module = lru_cache(maxsize=4)(Bindings.of)
"""A file may make hundreds of trainings."""


def place_of(tree: ast.Module, around: tuple[ast.stmt, ...]) -> Place:
    """The place of a statement inside these blocks."""
    scopes = [_of_module(tree)]
    for depth, block in enumerate(around):
        if isinstance(block, (ast.FunctionDef, ast.AsyncFunctionDef)):
            scopes.append(Bindings.of(block, around=around[: depth + 1]))
    return Place(around, tuple(reversed(scopes)))


def lookup(name: str, place: Place) -> tuple[Bindings | None, list[Binding]]:
    """The scope that binds a name as seen from a place, and its bindings there; (None, []) where none does."""
    for scope in place.scopes:
        if name in scope.by_name:
            return scope, scope.by_name[name]
    return None, []


def seen_from(scope: Bindings, binding: Binding, place: Place) -> Place:
    """The place of a statement that binds a name: what stands further in is out of its sight."""
    return Place(binding.around, place.scopes[place.scopes.index(scope) :])


def named_defaults(node: Function, values: Mapping[str, object]) -> dict[str, object]:
    """Values of names that stand as defaults: `def train(lr=lr)` takes the outer `lr` at once, not into the closure."""
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    pairs = [
        *zip(reversed(positional), reversed(a.defaults), strict=False),
        *zip(a.kwonlyargs, a.kw_defaults, strict=True),
    ]
    return {d.id: values[arg.arg] for arg, d in pairs if isinstance(d, ast.Name) and arg.arg in values}


def first_line(node: Function) -> int:
    """A function's first line as its code object has it: that of its first decorator."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def functions_of(
    body: Sequence[ast.stmt], around: tuple[ast.stmt, ...] = ()
) -> list[tuple[Function, tuple[ast.stmt, ...]]]:
    """Every function with the statements around it, the outermost first."""
    found: list[tuple[Function, tuple[ast.stmt, ...]]] = []
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append((node, around))
        for name in ("body", "orelse", "finalbody"):
            found += functions_of(getattr(node, name, []), (*around, node))
        for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
            found += functions_of(part.body, (*around, node))
    return found
