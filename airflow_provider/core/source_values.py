"""Which assignments of a DAG file mean the same on the cluster: literals, and what is made of literals."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from airflow_provider.core.source_bindings import Binding, Scope, nodes_of_body

_OF_THE_MACHINE = frozenset({"os", "platform", "socket", "getpass"})
"""Modules whose values differ between Airflow's machine and the cluster, and may be secret."""
_CALLS = frozenset(
    [
        *("logging.getLogger", "re.compile", "pathlib.Path", "pathlib.PurePosixPath", "datetime.timedelta"),
        *("collections.namedtuple", "typing.NamedTuple", "typing.TypeVar", "typing.NewType", "torch.device"),
        "pydantic.Field",
    ]
)
"""Calls that give the same anywhere."""
_BUILTIN_CALLS = frozenset(
    [
        *("int", "float", "complex", "bool", "str", "bytes", "tuple", "list", "dict", "set", "frozenset", "range"),
        *("len", "min", "max", "sum", "sorted", "abs", "round", "slice", "zip", "enumerate", "reversed"),
    ]
)
_LITERALS = (type(None), bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
_CHANGING = frozenset(
    [
        *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
        *("update", "setdefault", "popitem", "add", "discard"),
        *("difference_update", "intersection_update", "symmetric_difference_update"),
    ]
)
"""Methods that change a list, dict or set."""
_NO_VALUE = "what it stands for is decided by more than imports, definitions and literals"
UNKNOWN = object()
"""Stands for a present value that nobody knows."""
Lookup = Callable[[str], Sequence[Binding]]


def change_of(name: str, scope: Scope, *, after: int = 0) -> int | None:
    """The line on which a scope's own statement changes the list, dict or set that a name stands for; None where none does.

    `CONFIG["lr"] = 0.1` and `NAMES.append("a")` are no assignments to the name, so they stay behind. Only lines below
    `after` count.
    """
    for part in nodes_of_body(scope):
        target: ast.expr | None = None
        if isinstance(part, ast.Subscript) and isinstance(part.ctx, (ast.Store, ast.Del)):
            target = part
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in _CHANGING:
            target = part.func
        root: ast.expr | None = target
        while isinstance(root, (ast.Subscript, ast.Attribute)):
            root = root.value
        if target is not None and isinstance(root, ast.Name) and root.id == name and target.lineno > after:
            return target.lineno
    return None


def import_root(binding: Binding) -> str:
    """The top-level package that an import takes from."""
    node, alias = binding.imported_by or binding.node, binding.alias
    module = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name if alias else ""
    return module.partition(".")[0]


def import_text(binding: Binding) -> str:
    """One name's import: others of the same statement may not exist on the cluster."""
    node, alias = binding.node, binding.alias
    if alias is None:
        return ""
    as_name = f" as {alias.asname}" if alias.asname else ""
    if isinstance(node, ast.ImportFrom):
        return f"from {node.module} import {alias.name}{as_name}"
    return f"import {alias.name}{as_name}"


def is_literal(value: object) -> bool:
    """Whether `repr` of the value is Python for the value: exact builtin types at any depth, no NaN, no infinity."""
    if type(value) not in _LITERALS:
        return False
    try:
        return _is_plain(value) and bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, RecursionError):
        return False


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(part) for item in value.items() for part in item)
    if isinstance(value, (tuple, list, set, frozenset)):
        return type(value) in _LITERALS and all(_is_plain(part) for part in value)
    return type(value) in _LITERALS


def literal_of(statement: ast.stmt) -> tuple[bool, object]:
    """Whether an assignment to one name gives it a literal, and which."""
    is_plain = isinstance(statement, ast.AnnAssign) or (
        isinstance(statement, ast.Assign) and len(statement.targets) == 1
    )
    value = getattr(statement, "value", None)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    if not is_plain or value is None or not isinstance(target, ast.Name):
        return False, None
    try:
        return True, ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return False, None


def is_another(binding: Binding, present: object, names: Mapping[str, object]) -> bool:
    """Whether a name's present value is another one than its statement gives, as far as literals go.

    What changed it may be out of sight: a function that was called, another module, another name of the same list.
    `names` are the module's present ones. Only for statements without a problem: what they call gives the same anywhere.
    """
    known, value = literal_of(binding.node)
    if known:
        return present is not UNKNOWN and (type(present) is not type(value) or present != value)
    return isinstance(present, (list, dict, set)) and _is_computed_otherwise(binding, present, names)


def _is_computed_otherwise(binding: Binding, present: object, names: Mapping[str, object]) -> bool:
    """Whether `{"lr": RATE}` gives another literal than the present value."""
    expression = getattr(binding.node, "value", None)
    targets = getattr(binding.node, "targets", [getattr(binding.node, "target", None)])
    if expression is None or not any(isinstance(t, ast.Name) and t.id == binding.name for t in targets):
        return False
    try:
        code = compile(ast.Expression(expression), "<constant>", "eval", dont_inherit=True)
        value = eval(code, dict(names))  # noqa: S307  # the file's own statement, which has just run
        is_equal = bool(value == present)
    except Exception:  # noqa: BLE001 - its names may have changed since; what then can't be compared is left alone
        return False
    # Only now: to look at all parts of a large value takes longer than to compare it.
    return not is_equal and is_literal(value)


def problem_of_value(statement: ast.stmt, lookup: Lookup) -> str | None:
    """Why a statement may give its names other values on the cluster; None where it doesn't."""
    if isinstance(statement, (ast.If, ast.Try)):
        return _problem_of_branches(statement, lookup)
    value = getattr(statement, "value", None)
    if value is None or not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return _NO_VALUE
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if not all(isinstance(t, ast.Name) or _is_unpacking(t) for t in targets):
        return _NO_VALUE
    return _problem(value, lookup)


def _is_unpacking(target: ast.expr) -> bool:
    return isinstance(target, (ast.Tuple, ast.List)) and all(isinstance(t, ast.Name) for t in target.elts)


def _problem_of_branches(statement: ast.If | ast.Try, lookup: Lookup) -> str | None:
    """`try: import a` and `if sys.version_info >= ...: import b`: decided on the cluster, as is right for imports."""
    if isinstance(statement, ast.If):
        problem = _problem(statement.test, lookup)
        if problem is not None:
            return problem
    blocks = [statement.body, statement.orelse, getattr(statement, "finalbody", [])]
    blocks += [handler.body for handler in getattr(statement, "handlers", [])]
    for part in (node for block in blocks for node in block):
        if isinstance(part, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Pass, ast.Raise)):
            continue
        problem = problem_of_value(part, lookup)
        if problem is not None:
            return problem
    return None


def _problem(node: ast.AST, lookup: Lookup) -> str | None:
    if isinstance(node, ast.Lambda):
        return None
    if isinstance(node, ast.Name):
        roots = {import_root(b) for b in lookup(node.id) if b.alias is not None}
        machine = sorted(roots & _OF_THE_MACHINE)
        return f"it depends on the machine ({machine[0]})" if machine else None
    if isinstance(node, ast.Call):
        called = _dotted(node.func, lookup)
        if called not in _CALLS and (called not in _BUILTIN_CALLS or lookup(called)):
            return f"it calls {ast.unparse(node.func)}(...)"
    if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
        return _NO_VALUE
    for child in ast.iter_child_nodes(node):
        problem = _problem(child, lookup)
        if problem is not None:
            return problem
    return None


def _dotted(node: ast.expr, lookup: Lookup) -> str:
    """What a callee is called by its own module, whatever the file's imports call it."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, lookup)}.{node.attr}"
    if not isinstance(node, ast.Name):
        return ""
    for binding in lookup(node.id):
        statement = binding.imported_by or binding.node
        if binding.alias is not None:
            whole = f"{statement.module}." if isinstance(statement, ast.ImportFrom) else ""
            return f"{whole}{binding.alias.name}" if whole or binding.alias.asname else node.id
    return node.id
