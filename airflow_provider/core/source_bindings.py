"""Which statement gives a name its value, in a module or in a function's body."""

from __future__ import annotations

import ast
import contextlib
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | Function


class BindingKind(str, Enum):
    """How a name gets its value; the value is the word for messages."""

    IMPORT = "an import"
    DEFINITION = "a definition"
    VALUE = "an assignment"
    BRANCHES = "an if or try statement"
    TYPE_ONLY = "an import for type checkers only"
    ARGUMENT = "an argument of the function around it"
    WITH = "a with statement"
    CHANGED = "a loop, match, del, := or augmented assignment"


@dataclass(frozen=True)
class Binding:
    """One place where a name gets a value."""

    name: str
    kind: BindingKind
    line: int
    node: ast.stmt
    """The statement that travels to have it: with branches the whole of them."""
    around: tuple[ast.stmt, ...] = ()
    alias: ast.alias | None = None
    """The part of an import that binds the name."""
    imported_by: ast.Import | ast.ImportFrom | None = None
    """That import, also where a whole if or try statement travels to have it."""


@dataclass(eq=False)
class Bindings:
    """All names that one scope binds."""

    scope: Scope
    by_name: dict[str, list[Binding]] = field(default_factory=dict)
    has_star_import: bool = False

    @classmethod
    def of(cls, scope: Scope, *, around: tuple[ast.stmt, ...] = ()) -> Bindings:
        """Look through a module or a function's body; `around` are the blocks around its statements."""
        found = cls(scope)
        if not isinstance(scope, ast.Module):
            for argument in _arguments(scope):
                found.add(Binding(argument.arg, BindingKind.ARGUMENT, argument.lineno, scope, around))
        _Block(found, around).statements(scope.body)
        return found

    def add(self, binding: Binding) -> None:
        """Note one more."""
        self.by_name.setdefault(binding.name, []).append(binding)


def _arguments(function: Function) -> list[ast.arg]:
    a = function.args
    more = [arg for arg in (a.vararg, a.kwarg) if arg is not None]
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *more]


@dataclass(frozen=True)
class _Block:
    found: Bindings
    around: tuple[ast.stmt, ...]
    unit: ast.stmt | None = None
    """The if or try statement that this block is a part of."""
    kind: BindingKind | None = None
    """What every binding here is, whatever its statement."""

    def statements(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._add(node.name, BindingKind.DEFINITION, node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            self._stores(node, BindingKind.VALUE)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self._stores(item, BindingKind.WITH, statement=node)
            _Block(self.found, (*self.around, node), self.unit, self.kind).statements(node.body)
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            _Block(self.found, self.around, node, BindingKind.TYPE_ONLY).statements(node.body)
            _Block(self.found, self.around, self.unit or node, self.kind).statements(node.orelse)
        elif isinstance(node, (ast.If, ast.Try)):
            self._branches(node)
        else:
            self._stores(node, BindingKind.CHANGED)
            for block in _blocks(node):
                _Block(self.found, (*self.around, node), node, BindingKind.CHANGED).statements(block)

    def _branches(self, node: ast.If | ast.Try) -> None:
        inside = _Block(self.found, self.around, self.unit or node, self.kind)
        if isinstance(node, ast.If):
            self._stores(node.test, BindingKind.CHANGED, statement=node)
        for block in _blocks(node):
            inside.statements(block)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                self.found.has_star_import = True
                continue
            whole = alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0]
            self._add(alias.asname or whole, BindingKind.IMPORT, node, alias=alias)

    def _stores(self, node: ast.AST, kind: BindingKind, *, statement: ast.stmt | None = None) -> None:
        """Names that an expression or a simple statement stores or deletes, `:=` and patterns included."""
        holder = statement or (node if isinstance(node, ast.stmt) else None)
        for part in own_nodes(node):
            name = _stored(part)
            if name is not None and holder is not None:
                is_walrus = isinstance(node, (ast.Assign, ast.AnnAssign)) and not _is_target(part, node)
                self._add(name, BindingKind.CHANGED if is_walrus else kind, holder)

    def _add(self, name: str, kind: BindingKind, node: ast.stmt, *, alias: ast.alias | None = None) -> None:
        if self.unit is not None:
            kind = self.kind or BindingKind.BRANCHES
        imported_by = node if isinstance(node, (ast.Import, ast.ImportFrom)) else None
        self.found.add(Binding(name, kind, node.lineno, self.unit or node, self.around, alias, imported_by))


def _is_target(part: ast.AST, node: ast.Assign | ast.AnnAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(part is found for target in targets for found in ast.walk(target))


def _stored(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return node.id
    if isinstance(node, (ast.MatchAs, ast.MatchStar)):
        return node.name
    return node.rest if isinstance(node, ast.MatchMapping) else None


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, [])
    for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
        yield part.body


_NEW_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is below it, without functions, classes and the blocks of compound statements."""
    todo = [node]
    while todo:
        part = todo.pop()
        yield part
        for name, value in ast.iter_fields(part):
            is_block = name in ("body", "orelse", "finalbody", "handlers", "cases") and isinstance(part, ast.stmt)
            if is_block and isinstance(value, list):
                continue
            children = value if isinstance(value, list) else [value]
            todo += [c for c in children if isinstance(c, ast.AST) and not isinstance(c, _NEW_SCOPES)]


def nodes_of_body(scope: Scope) -> Iterator[ast.AST]:
    """What runs in a function or module itself: not in functions and classes inside it."""
    todo: list[ast.AST] = list(scope.body)
    while todo:
        node = todo.pop()
        if isinstance(node, _NEW_SCOPES):
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))


@dataclass(frozen=True)
class Addition:
    """A module's statement that adds to a function or class: `Config.size = 5`, or `@convert.register` above another one."""

    node: ast.AST
    name: str
    line: int
    is_decorator: bool


def additions(module: ast.Module) -> Iterator[Addition]:
    """All of them. They bind no name, so they would stay behind."""
    todo: list[ast.AST] = list(module.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for decorator in node.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                    yield Addition(node, called.value.id, called.lineno, is_decorator=True)
        elif not isinstance(node, ast.Lambda):
            todo += ast.iter_child_nodes(node)
            if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
                continue
            if isinstance(node.value, ast.Name):
                yield Addition(node, node.value.id, node.lineno, is_decorator=False)


def is_type_checking(test: ast.expr) -> bool:
    """Whether a condition is `TYPE_CHECKING`, by whatever module."""
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def names_from_outside(text: str) -> set[str]:
    """Names that a module's text uses and doesn't bind itself, builtins included. Raises SyntaxError."""
    top = symtable.symtable(text, "dag", "exec")
    own = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    found: set[str] = set()
    todo = [top]
    while todo:
        table = todo.pop()
        todo.extend(table.get_children())
        for symbol in table.get_symbols():
            if symbol.is_global() and (symbol.is_referenced() or symbol.is_declared_global()):
                found.add(symbol.get_name())
    return found - own


def names_before_own(node: ast.stmt) -> set[str]:
    """Names that a class's body reads before it binds them itself: `class C: size = size` has the module's until then."""
    found: set[str] = set()
    for part in ast.walk(node):
        read: set[str] = set()
        bound: set[str] = set()
        for statement in part.body if isinstance(part, ast.ClassDef) else ():
            parts = list(_at_once(statement))
            of_loops = {id(n) for c in parts if isinstance(c, ast.comprehension) for n in ast.walk(c.target)}
            names = [n for n in parts if isinstance(n, ast.Name) and id(n) not in of_loops]
            read |= {n.id for n in names if isinstance(n.ctx, ast.Load)} - bound
            bound |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                bound.add(statement.name)
        found |= read & bound
    return found


def _at_once(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a statement of a class's body is reached: of functions in it, decorators and default values."""
    todo: list[ast.AST] = [node]
    while todo:
        part = todo.pop()
        yield part
        if isinstance(part, ast.Lambda):
            todo += [*part.args.defaults, *filter(None, part.args.kw_defaults)]
        elif isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
            todo += [*part.decorator_list, *part.args.defaults, *filter(None, part.args.kw_defaults)]
        elif isinstance(part, ast.ClassDef):
            todo += [*part.decorator_list, *part.bases, *(keyword.value for keyword in part.keywords)]
        elif isinstance(part, ast.AnnAssign):
            todo += [part.target, *filter(None, [part.value])]
        else:
            todo.extend(ast.iter_child_nodes(part))


def names_in_fields(node: ast.stmt) -> set[str]:
    """Names in the type hints of a class's fields: dataclasses and pydantic read them, in texts too."""
    found: set[str] = set()
    for part in node.body if isinstance(node, ast.ClassDef) else ():
        found |= names_in_fields(part)
        if isinstance(part, ast.AnnAssign):
            found |= _names_in_hint(part.annotation)
    return found


def _names_in_hint(hint: ast.expr) -> set[str]:
    found: set[str] = set()
    for part in ast.walk(hint):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            with contextlib.suppress(SyntaxError):
                found |= {n.id for n in ast.walk(ast.parse(part.value, mode="eval")) if isinstance(n, ast.Name)}
    return found


def first_use(node: ast.stmt, name: str, *, without: Sequence[ast.expr] = ()) -> int:
    """The first line on which a statement uses a name, some decorators left out; its own line where it isn't found."""
    skipped = {id(part) for decorator in without for part in ast.walk(decorator)}
    lines = [n.lineno for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name and id(n) not in skipped]
    return min(lines, default=node.lineno)
