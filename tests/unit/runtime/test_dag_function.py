"""A decorated function on the driver: found in the job's package, or an error that says which Python is too old."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import airflow_provider
from airflow_provider.core.dag_function import PACKAGE, FunctionModule, module_name
from airflow_provider.core.errors import InvalidConfig
from airflow_provider.runtime.import_target import check_train_loop, load_target


def arrive(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, airflow: tuple[int, int] | None = None) -> str:
    """Unpack a function's module as the cluster does; the answer is the import path of its loop."""
    module = FunctionModule("my_dag", text, "train")
    for name, body in module.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        version = repr(sys.version_info[:2]).encode()
        path.write_bytes(body if airflow is None else body.replace(version, repr(airflow).encode()))
    monkeypatch.setattr(airflow_provider, "__path__", [str(folder / "airflow_provider")])
    for name in (PACKAGE, f"{PACKAGE}.my_dag"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return module.target


def test_the_loop_is_found_and_takes_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = arrive("def train(lr):\n    SEEN.append(lr)\nSEEN = []\n", tmp_path, monkeypatch)
    loop = load_target(target, parameter="train_loop")
    check_train_loop(loop, {"lr": 1})
    assert loop({"lr": 1}) is None
    assert sys.modules[f"{PACKAGE}.my_dag"].SEEN == [1]


def test_a_newer_syntax_than_the_clusters_says_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = arrive("\n\ndef train():\n    return a ??= b\n", tmp_path, monkeypatch, airflow=(3, 99))
    here = ".".join(map(str, sys.version_info[:2]))
    with pytest.raises(
        InvalidConfig, match=rf"Python 3\.99, .*Python {here}; line 4 of the DAG file.*older of the two"
    ):
        load_target(target, parameter="train_loop")


def test_a_module_that_is_missing_says_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be one that a newer standard library has."""
    target = arrive("import brand_new_stdlib\ndef train():\n    pass\n", tmp_path, monkeypatch, airflow=(3, 99))
    with pytest.raises(InvalidConfig, match=r"no module named 'brand_new_stdlib'.*Python 3\.99"):
        load_target(target, parameter="train_loop")


def test_a_name_that_this_python_lacks_says_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = arrive("from typing import brand_new\ndef train():\n    pass\n", tmp_path, monkeypatch, airflow=(3, 99))
    with pytest.raises(InvalidConfig, match=r"brand_new.*Python 3\.99"):
        load_target(target, parameter="train_loop")


def test_with_one_python_the_error_is_the_modules_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = arrive("raise KeyError('LR')\ndef train():\n    pass\n", tmp_path, monkeypatch)
    with pytest.raises(InvalidConfig, match="KeyError: 'LR'") as caught:
        load_target(target, parameter="train_loop")
    assert "Python" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/dags/sweep.py", "sweep"),
        ("/dags/a-b c.py", "a_b_c"),
        ("/dags/x.zip/2024 run.py", "dag_2024_run"),
        ("C:\\dags\\class.py", "dag_class"),
        ("ü.py", "_"),
        ("<stdin>", "dag_"),
    ],
)
def test_the_module_has_the_dag_files_name(path: str, name: str) -> None:
    assert module_name(path) == name
