"""The page about the sensor: its code runs, and what it says about conditions and ends is so."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from airflow_provider.core.condition import Condition
from airflow_provider.sensors import errors
from airflow_provider.sensors.ray_train import RayTrainSensor
from airflow_provider.sensors.wait import _ENDS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "sensor.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_its_dags_parse(number: int) -> None:
    names: dict[str, object] = {}
    exec(compile(BLOCKS[number], f"docs/sensor.md block {number}", "exec"), names)  # noqa: S102 - our own page


def test_its_conditions_parse() -> None:
    terms = re.findall(r"^\| `([^`]+)` \| the (?:metric|same)", PAGE, re.MULTILINE)
    assert len(terms) == 3
    for term in [*terms, '"val loss" < 0.3', "val_loss < 0.3 and epoch >= 5"]:
        assert term in PAGE
        assert Condition.parse(term)


def test_its_ends_are_all_there_are() -> None:
    rows = re.findall(r"^\| [^|]+ \| `(\w+)`[^|]* \| `(\w+)` \| no \| skip \|$", PAGE, re.MULTILINE)
    assert {getattr(errors, name): end for name, end in rows} == _ENDS


def test_every_parameter_is_explained() -> None:
    parameters = set(inspect.signature(RayTrainSensor.__init__).parameters) - {
        "self",
        "kwargs",
        "retries",
        "retry_policy",
    }
    assert {name for name in parameters if f":param {name}:" not in (RayTrainSensor.__doc__ or "")} == set()
    explained = {"aws_conn_id"}  # in the docstring only: the same as the operator's
    assert {name for name in parameters - explained if name not in PAGE} == set()
