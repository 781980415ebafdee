"""User code that can't be found or called is a config error with a reason, before any worker starts."""

from __future__ import annotations

import pytest

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.runtime.import_target import check_call, check_train_loop, load_target


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("json", "no import path"),
        ("json:", "no import path"),
        ("no_such_module_here:train", "no module named 'no_such_module_here'"),
        ("json:no_such", "has no 'no_such'"),
        ("json:__name__", "not a function"),
    ],
)
def test_wrong_paths(path: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        load_target(path, parameter="train_loop")


def test_module_that_raises_is_named_with_its_error(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_training.py").write_text("raise KeyError('LR')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidConfig, match=r"fails while it is imported.*KeyError: 'LR'"):
        load_target("broken_training:train", parameter="train_loop")


def test_missing_dependency_of_the_module_is_named(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidConfig, match="no module named 'no_such_dependency'"):
        load_target("needs_more:train", parameter="train_loop")


def test_train_loop_takes_the_config_or_nothing() -> None:
    check_train_loop(lambda: None, None)
    check_train_loop(lambda: None, {})
    check_train_loop(lambda _config: None, None)
    check_train_loop(lambda _config, _extra=1: None, {"lr": 1})
    check_train_loop(lambda *_args: None, {"lr": 1})
    with pytest.raises(InvalidConfig, match="wrong signature"):
        check_train_loop(lambda _one, _two: None, None)
    with pytest.raises(InvalidConfig, match="train_loop_config is not empty"):
        check_train_loop(lambda: None, {"lr": 1})


def test_factory_takes_the_run_config() -> None:
    check_call(lambda _run_config: None, parameter="trainer", takes=1, given="the run config")
    with pytest.raises(InvalidConfig, match="trainer has the wrong signature"):
        check_call(lambda: None, parameter="trainer", takes=1, given="the run config")
