"""Code in the documentation: every Python block parses and its imports work, and a DAG in it is loaded as a DAG file."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from airflow.sdk.definitions._internal.contextmanager import DagContext

from tests.support.dag_file import load

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_OTHER_FENCES = re.compile(r"^```(\w+)", re.MULTILINE)
ON_THE_CLUSTER = {"accelerate", "lightning", "numpy", "pandas", "pyarrow", "ray", "sklearn", "torch", "transformers"}
"""Top packages of training code; an environment for the unit tests alone may lack them."""
NUMBER = 1_000_000
"""Of the DAG file that a block becomes; no other test's has it."""


def blocks() -> list[tuple[str, str]]:
    return [
        (f"{page.relative_to(ROOT)}:{number}", block)
        for page in PAGES
        for number, block in enumerate(_BLOCK.findall(page.read_text()), 1)
    ]


def wrong_imports(tree: ast.Module) -> list[str]:
    """Imports anywhere in a block that don't work."""
    wrong = []
    for node in ast.walk(tree):
        names: list[tuple[str, str | None]] = []
        if isinstance(node, ast.Import):
            names = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "", alias.name) for alias in node.names]
        wrong += [f"{module}:{name or ''}" for module, name in names if not imports(module, name)]
    return wrong


def imports(module: str, name: str | None) -> bool:
    top = module.partition(".")[0]
    if top in ON_THE_CLUSTER and importlib.util.find_spec(top) is None:
        return True
    if top in ON_THE_CLUSTER:  # importing torch takes longer than all of these tests
        return importlib.util.find_spec(top) is not None
    try:
        found = importlib.import_module(module)
        return name is None or hasattr(found, name) or importlib.import_module(f"{module}.{name}") is not None
    except ImportError:
        return False


def is_dag_file(tree: ast.Module) -> bool:
    """Whether a block makes a DAG by itself."""
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "airflow.sdk"
        and {alias.name for alias in node.names} & {"DAG", "dag"}
        for node in tree.body
    )


def dags_of(folder: Path, source: str) -> dict[str, int]:
    """DAGs of a file, and how many tasks each has."""
    DagContext.autoregistered_dags.clear()
    DagContext.current_autoregister_module_name = f"dag_file_{NUMBER}"
    try:
        load(folder, source, number=NUMBER)
        return {dag.dag_id: len(dag.tasks) for dag, _ in DagContext.autoregistered_dags}
    finally:
        DagContext.current_autoregister_module_name = None
        DagContext.autoregistered_dags.clear()
        sys.modules.pop(f"dag_file_{NUMBER}", None)


@pytest.mark.parametrize(("where", "block"), blocks(), ids=[where for where, _ in blocks()])
def test_a_block_runs(where: str, block: str, tmp_path: Path) -> None:
    tree = ast.parse(block, filename=where)
    assert wrong_imports(tree) == []
    if is_dag_file(tree):
        found = dags_of(tmp_path, block)
        assert found
        assert all(found.values()), found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_of_python_hides_under_another_name(page: Path) -> None:
    """What is written as `py` or `python3` would escape the test above."""
    assert set(_OTHER_FENCES.findall(page.read_text())) <= {"python", "bash", "json", "text", "mermaid", "yaml"}


def test_the_checks_find_what_is_wrong(tmp_path: Path) -> None:
    assert wrong_imports(ast.parse("from airflow_provider.core.spec import Gone\nimport gone_too")) == [
        "airflow_provider.core.spec:Gone",
        "gone_too:",
    ]
    assert dags_of(tmp_path, "from airflow.sdk import DAG\nwith DAG('empty'): pass") == {"empty": 0}
    with pytest.raises(Exception, match="storage_pat"):
        dags_of(
            tmp_path,
            "from airflow.sdk import DAG\nfrom airflow_provider.operators.ray_train import RayTrainOperator\n"
            "with DAG('wrong'):\n    RayTrainOperator(task_id='t', storage_pat='s3://b/p', train_loop='a:b')",
        )
    assert len(blocks()) > 10
