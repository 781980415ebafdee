"""Read the DAGs of a file as a test wants them: by import, without Airflow's database."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.core.errors import InvalidConfig

if TYPE_CHECKING:
    from airflow.sdk import DAG


def load_dags(path: str | Path) -> dict[str, DAG]:
    """Import a DAG file and return its DAGs by their id. Whatever the file raises comes through; so does a DAG without a task.

    As Airflow does: those that were entered with `with` or made by `@dag`, and those that a name of the file stands for.
    Raises InvalidConfig for two DAGs of one id.
    """
    from airflow.sdk import DAG
    from airflow.sdk.definitions._internal.contextmanager import DagContext

    path = Path(path).resolve()
    spec = importlib.util.spec_from_file_location(f"ray_train_test_dags_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidConfig(f"{path} is not a Python file", change="give the path of a DAG file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and pydantic look their module up
    DagContext.autoregistered_dags.clear()
    DagContext.current_autoregister_module_name = module.__name__
    try:
        spec.loader.exec_module(module)
        dags = [dag for dag, _ in DagContext.autoregistered_dags]
    finally:
        DagContext.current_autoregister_module_name = None
        DagContext.autoregistered_dags.clear()
    found: dict[str, DAG] = {}
    for dag in [*dags, *(value for value in vars(module).values() if isinstance(value, DAG))]:
        if found.setdefault(dag.dag_id, dag) is not dag:
            raise InvalidConfig(
                f"{path} makes two DAGs with the id {dag.dag_id!r}",
                known="Airflow keeps one of them, whichever comes last",
                change="give each its own id",
            )
    return found
