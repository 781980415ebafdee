"""A function of a DAG file, as a module that runs where neither the DAG file nor Airflow is.

The module holds the function and, transitively, what it uses of its file: imports, constants, functions and classes. It
is cut from the file's text, never written anew, so strings stay as they are and lines keep their numbers. What can't
travel is an error that names it, its line, and what to change. Pure: works on text and values that are passed in.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from airflow_provider.core.errors import FunctionNotShippable
from airflow_provider.core.source_bindings import (
    Binding,
    BindingKind,
    Function,
    first_use,
    names_before_own,
    names_from_outside,
    names_in_fields,
    nodes_of_body,
)
from airflow_provider.core.source_decorators import AIRFLOW, PROVIDER, is_airflows, own_decorators
from airflow_provider.core.source_places import (
    Place,
    first_line,
    functions_of,
    lookup,
    named_defaults,
    place_of,
    seen_from,
)
from airflow_provider.core.source_rows import Piece, SourceFile, render
from airflow_provider.core.source_values import (
    UNKNOWN,
    change_of,
    import_root,
    import_text,
    is_another,
    is_literal,
    problem_of_value,
)

_ON_CLUSTER = ("core", "runtime")
"""Rooms of this package that travel with the job."""
_MODULE_NAMES = frozenset({"__name__", "__doc__", "__builtins__", "__package__", "__spec__"})
"""Names that each module has without binding them."""
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_parsed = lru_cache(maxsize=4)(SourceFile)


@dataclass(frozen=True)
class DagFunction:
    """What is known of a function without reading its source."""

    source: str
    """Text of the whole file."""
    name: str
    line: int
    """Its first line, decorators included, as in its code object."""
    filename: str = "the DAG file"
    closure: Mapping[str, object] = field(default_factory=dict)
    """Values of variables of the functions around it."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Default values by parameter."""
    module_values: Mapping[str, object] = field(default_factory=dict)
    """Present values of its module's names."""
    is_bare: bool = False
    """Whether the decorator got the function itself: what is written between the two has wrapped nothing."""


def module_text(function: DagFunction) -> str:
    """The module's text. Raises FunctionNotShippable."""
    return _Shipment(function).text()


class _Shipment:
    def __init__(self, function: DagFunction) -> None:
        self.function = function
        try:
            self.file = _parsed(function.source)
        except SyntaxError as error:
            raise self.refused("its file can't be parsed", line=error.lineno or 1, change="correct it") from error
        self.pieces: dict[tuple[int, str], Piece] = {}
        self.bound: dict[str, int] = {}
        """What each name of the module stands for, by the statement's identity."""
        self.constants: dict[str, str] = {}
        self.defaults: dict[str, object] = {}
        self._todo: list[tuple[Piece, Place]] = []

    def refused(self, what: str, *, line: int, change: str) -> FunctionNotShippable:
        """The error for something that can't travel."""
        f = self.function
        return FunctionNotShippable(
            f"The function {f.name!r} can't be sent to the cluster: {what}",
            known=f"{f.filename}, line {line}",
            change=change,
            function=f.name,
            line=line,
        )

    def text(self) -> str:
        """Collect what travels and cut it out."""
        node, place = self._located()
        self._check_kind(node, place)
        self.defaults = named_defaults(node, self.function.defaults)
        decorators = own_decorators(node, place, is_bare=self.function.is_bare)
        self.bound[node.name] = id(node)
        self._keep(Piece(node, place.around, decorators=decorators), place)
        while self._todo:
            piece, where = self._todo.pop()
            self._follow(piece, where)
        self._check_rebound(place)
        text = render(self.file, self.pieces.values(), constants=self.constants.values())
        self._check_syntax(text, node)
        return text

    # --- the function itself -------------------------------------------------------------------------------------

    def _located(self) -> tuple[Function, Place]:
        f = self.function
        if f.name == "<lambda>":
            raise self.refused("it is a lambda", line=f.line, change="write it with def")
        for node, around in functions_of(self.file.tree.body):
            if node.name == f.name and first_line(node) == f.line:
                return node, place_of(self.file.tree, around)
        raise self.refused(
            f"no function of that name begins in line {f.line} of its file",
            line=f.line,
            change="define it with def in the DAG file; if the file was just deployed, the next parse finds it",
        )

    def _check_kind(self, node: Function, place: Place) -> None:
        if isinstance(node, ast.AsyncFunctionDef):
            raise self.refused("it is async", line=node.lineno, change="write it with def: Ray calls it as a function")
        for part in nodes_of_body(node):
            if isinstance(part, (ast.Yield, ast.YieldFrom)):
                raise self.refused(
                    "it is a generator", line=part.lineno, change="report with ray.train.report instead of yield"
                )
            if isinstance(part, ast.Nonlocal):
                raise self.refused(
                    f"nonlocal {', '.join(part.names)} changes a variable of the function around it",
                    line=part.lineno,
                    change="keep the value inside the function",
                )
        if any(isinstance(block, ast.ClassDef) for block in place.around):
            raise self.refused("it stands in a class", line=node.lineno, change="move it out of the class")

    # --- what it uses --------------------------------------------------------------------------------------------

    def _keep(self, piece: Piece, place: Place) -> None:
        key = (id(piece.node), piece.text or "")
        if key not in self.pieces:
            self.pieces[key] = piece
            self._todo.append((piece, place))

    def _follow(self, piece: Piece, place: Place) -> None:
        """Find what a kept statement uses of its file."""
        if piece.text is None:
            self._check_inner_imports(piece.node)
        try:
            names = names_from_outside(render(self.file, [piece]))
        except SyntaxError as error:
            raise self.refused(
                f"it can't stand alone ({error.msg})",
                line=error.lineno or 1,
                change="move it to the module's top level",
            ) from None
        names |= {name for name in names_in_fields(piece.node) if self._can_be_hint(name, place)}
        names |= {name for name in names_before_own(piece.node) if lookup(name, place)[1]}
        for name in sorted(names):
            self._resolve(name, piece, place)

    def _can_be_hint(self, name: str, place: Place, *, depth: int = 0) -> bool:
        """Whether a name in a field's type hint travels: what doesn't is left out, since few classes read their hints."""
        bindings = lookup(name, place)[1]
        if len(bindings) == 1 and bindings[0].kind is BindingKind.VALUE and depth < 5:
            # An alias: `Numbers = list[float]`.
            statement = bindings[0].node
            used = {part.id for part in ast.walk(statement) if isinstance(part, ast.Name) and part.id != name}
            is_plain = problem_of_value(statement, lambda root: lookup(root, place)[1]) is None
            known = (hasattr(builtins, n) or self._can_be_hint(n, place, depth=depth + 1) for n in used)
            return is_plain and all(known)
        return bool(bindings) and all(
            binding.kind is BindingKind.DEFINITION
            or (binding.kind is BindingKind.IMPORT and import_root(binding) not in (AIRFLOW, PROVIDER))
            for binding in bindings
        )

    def _check_inner_imports(self, node: ast.stmt) -> None:
        for part in ast.walk(node):
            if isinstance(part, (ast.Import, ast.ImportFrom)):
                for alias in part.names:
                    binding = Binding(alias.asname or alias.name, BindingKind.IMPORT, part.lineno, part, alias=alias)
                    self._check_import(binding, line=part.lineno)

    def _resolve(self, name: str, user: Piece, place: Place) -> None:
        dropped = [d for d in getattr(user.node, "decorator_list", ()) if d not in user.decorators]
        line = first_use(user.node, name, without=dropped)
        scope, bindings = lookup(name, place)
        if scope is None:
            self._check_builtin(name, place, line=line)
            return
        bindings = [b for b in bindings if b.kind is not BindingKind.TYPE_ONLY] or bindings
        self._check_one_meaning(name, bindings, line=line)
        if name in self.constants:
            return
        for binding in bindings:
            self._take(binding, seen_from(scope, binding, place), line=line)

    def _check_builtin(self, name: str, place: Place, *, line: int) -> None:
        present = self.function.module_values
        # `from numpy import *` replaces `sum` and `max`.
        is_replaced = name in present and present[name] is not getattr(builtins, name, None)
        if name in _MODULE_NAMES or (hasattr(builtins, name) and not is_replaced):
            return
        if name == "__file__":
            what, change = "it uses __file__, which is another file on the cluster", "pass the path as an argument"
        elif any(scope.has_star_import for scope in place.scopes):
            what, change = f"{name!r} comes from an import of *, if at all", f"import {name} by name"
        else:
            what, change = f"{name!r} is bound nowhere in the file", "define or import it"
        raise self.refused(what, line=line, change=change)

    def _check_one_meaning(self, name: str, bindings: Sequence[Binding], *, line: int) -> None:
        first = bindings[0]
        kinds = {binding.kind for binding in bindings}
        units = {id(binding.node) for binding in bindings}
        if len(units) > 1 and not kinds <= {BindingKind.IMPORT, BindingKind.DEFINITION}:
            lines = ", ".join(str(binding.line) for binding in bindings)
            raise self.refused(
                f"{name!r} is bound more than once (lines {lines}), so its value depends on the moment",
                line=line,
                change=f"bind it once, or pass {name} as an argument",
            )
        if self.bound.setdefault(name, id(first.node)) != id(first.node):
            raise self.refused(
                f"{name!r} means one thing in the module and another in a function around",
                line=line,
                change="rename one of the two",
            )

    def _take(self, binding: Binding, place: Place, *, line: int) -> None:
        name, kind = binding.name, binding.kind
        if kind is BindingKind.IMPORT:
            self._check_import(binding, line=line)
            self._keep(Piece(binding.node, binding.around, text=import_text(binding)), place)
        elif kind is BindingKind.DEFINITION:
            self._check_not_replaced(name, place, line=line)
            decorators = tuple(getattr(binding.node, "decorator_list", ()))
            self._check_helper(binding, decorators, place)
            self._keep(Piece(binding.node, binding.around, decorators=decorators), place)
        elif len(place.scopes) > 1 and kind in (BindingKind.VALUE, BindingKind.ARGUMENT):
            self._take_from_closure(binding, place, line=line)
        elif kind in (BindingKind.VALUE, BindingKind.BRANCHES):
            self._check_value(binding, place, line=line)
            self._keep(Piece(binding.node, binding.around), place)
        elif kind is BindingKind.TYPE_ONLY:
            raise self.refused(
                f"{name!r} is imported under TYPE_CHECKING only (line {binding.line}) and used when it runs",
                line=line,
                change=f"import {name} inside the function, or outside of TYPE_CHECKING",
            )
        else:
            raise self.refused(
                f"{name!r} gets its value from {kind.value} (line {binding.line})",
                line=line,
                change=f"pass what the training needs of {name} as an argument",
            )

    def _check_not_replaced(self, name: str, place: Place, *, line: int) -> None:
        """An import of * may bring another function of the same name, as `from _heapq import *` does."""
        present = self.function.module_values
        of = getattr(present.get(name), "__module__", None)
        if place.scopes[0].has_star_import and of not in (None, present.get("__name__")):
            raise self.refused(
                f"{name!r} comes from an import of * (module {of})", line=line, change=f"import {name} by name"
            )

    def _check_import(self, binding: Binding, *, line: int) -> None:
        root, name = import_root(binding), binding.name
        node, alias = binding.node, binding.alias
        if isinstance(node, ast.ImportFrom) and node.level:
            raise self.refused(
                f"{name!r} comes from a relative import", line=line, change="import it by its full path on the cluster"
            )
        module = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name if alias else ""
        is_ours = root == PROVIDER and (f"{module}.".split(".")[1] in _ON_CLUSTER)
        if root == AIRFLOW or (root == PROVIDER and not is_ours):
            raise self.refused(
                f"it uses {name!r} of {module}, and the cluster has no Airflow",
                line=line,
                change="pass values as arguments: train(day='{{ ds }}'), or another task's output",
            )

    def _check_helper(self, binding: Binding, decorators: Sequence[ast.expr], place: Place) -> None:
        for decorator in decorators:
            if is_airflows(decorator, place):
                raise self.refused(
                    f"it uses {binding.name!r}, which is a task or a DAG (line {binding.line})",
                    line=decorator.lineno,
                    change=f"keep {binding.name} a plain function, or pass its task's output as an argument",
                )

    def _take_from_closure(self, binding: Binding, place: Place, *, line: int) -> None:
        name, values = binding.name, {**self.defaults, **self.function.closure}
        if name not in values:
            raise self.refused(
                f"{name!r} of the function around it has no value yet (line {binding.line})",
                line=line,
                change=f"bind {name} before the function, or pass it as an argument",
            )
        value = values[name]
        if binding.kind is BindingKind.VALUE:
            self._check_value(binding, place, line=line)
        # Taken now, as it is: what the function around does to it afterwards stays behind.
        self._check_unchanged(binding, value, place, line=line, after=self.function.line)
        if not is_literal(value):
            raise self.refused(
                f"{name!r} of the function around it is a {type(value).__name__} (line {binding.line}), not a literal",
                line=line,
                change=f"pass {name} as an argument of the task, or make it inside the function",
            )
        self.constants[name] = f"{name} = {value!r}"

    def _check_value(self, binding: Binding, place: Place, *, line: int) -> None:
        name = binding.name
        problem = problem_of_value(binding.node, lambda root: lookup(root, place)[1])
        if problem is not None:
            raise self.refused(
                f"{name!r} (line {binding.line}) is no literal: {problem}",
                line=line,
                change=f"pass {name} as an argument of the task, or make it inside the function",
            )
        if len(place.scopes) == 1:
            present = self.function.module_values.get(name, UNKNOWN)
            self._check_unchanged(binding, present, place, line=line)

    def _check_unchanged(self, binding: Binding, present: object, place: Place, *, line: int, after: int = 0) -> None:
        """The value must be what its statement made it, or may be changed up to the line `after`."""
        name, is_mutable = binding.name, isinstance(present, (list, dict, set))
        where = change_of(name, place.scopes[0].scope, after=after) if is_mutable else None
        is_changed = not after and is_another(binding, present, self.function.module_values)
        if where is not None or is_changed:
            by = f" (by line {where})" if where is not None else ""
            raise self.refused(
                f"{name!r} was changed since line {binding.line} bound it{by}",
                line=line,
                change=f"leave it as it is, or pass {name} as an argument",
            )

    # --- checks of the whole -------------------------------------------------------------------------------------

    def _check_rebound(self, place: Place) -> None:
        """What stays here must not rebind or add to what travels."""
        kept = {id(node) for piece in self.pieces.values() for node in ast.walk(piece.node)}
        found: list[tuple[ast.Global | ast.Nonlocal, set[str]]] = [
            (node, set(self.bound)) for node in self.file.globals
        ]
        for block in place.around[:1]:
            found += [(node, set(self.constants)) for node in ast.walk(block) if isinstance(node, ast.Nonlocal)]
        for node, names in found:
            for name in sorted(names.intersection(node.names)) if id(node) not in kept else ():
                raise self.refused(
                    f"{name!r} is rebound by a function (line {node.lineno})",
                    line=node.lineno,
                    change=f"pass {name} as an argument",
                )
        definitions = {n.name: n for piece in self.pieces.values() if isinstance(n := piece.node, _NAMED)}
        definitions.pop(self.function.name)  # in the file that is the task
        for more in self.file.additions:
            to = definitions.get(more.name)
            # A class may be the namespace of decorators: those add nothing to it.
            if to is None or id(more.node) in kept or (more.is_decorator and isinstance(to, ast.ClassDef)):
                continue
            raise self.refused(
                f"line {more.line} adds to {more.name!r}, and only its definition travels",
                line=more.line,
                change=f"put it into the definition of {more.name}, or do it inside the function",
            )

    def _check_syntax(self, text: str, node: Function) -> None:
        try:
            compile(text, self.function.filename, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise self.refused(
                f"what it uses can't be cut out of the file ({error.msg})",
                line=error.lineno or node.lineno,
                change="move it and what it uses to the module's top level",
            ) from error
