"""Which decorators of a DAG file's function are Airflow's, and which ones wrap the function itself."""

from __future__ import annotations

import ast

from airflow_provider.core.source_bindings import BindingKind, Function
from airflow_provider.core.source_places import Place, lookup
from airflow_provider.core.source_values import import_root

AIRFLOW = "airflow"
PROVIDER = "airflow_provider"


def own_decorators(node: Function, place: Place, *, is_bare: bool) -> tuple[ast.expr, ...]:
    """Those below the last one of Airflow's: they wrap the function, those above the task.

    `is_bare` says that ours got the function itself. Where it stands behind a name that no reading can see through (a
    function of the author's, another file's), nothing that wraps the function can be among them.
    """
    last = -1
    for number, decorator in enumerate(node.decorator_list):
        if is_airflows(decorator, place):
            last = number
    return () if last < 0 and is_bare else tuple(node.decorator_list[last + 1 :])


def is_airflows(expression: ast.expr, place: Place, *, depth: int = 0) -> bool:
    """Whether an expression begins with something of Airflow's, also under another name."""
    root: ast.expr = expression
    while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
        root = root.func if isinstance(root, ast.Call) else root.value
    if not isinstance(root, ast.Name) or depth > 5:
        return False
    for binding in lookup(root.id, place)[1]:
        if binding.alias is not None and import_root(binding) in (AIRFLOW, PROVIDER):
            return True
        value = getattr(binding.node, "value", None)
        if binding.kind is BindingKind.VALUE and value and is_airflows(value, place, depth=depth + 1):
            return True
    return False
