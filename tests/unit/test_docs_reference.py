"""The reference says what the code says: nothing undocumented, nothing invented, and the pages are as the code is now."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from airflow_provider.core import experiment_wait
from airflow_provider.core.lineage import ExperimentFacts, Lineage, lineage_xcom, project, result_xcom
from airflow_provider.core.publishing import PublishedModel
from airflow_provider.hooks.final_stop import JOB_RECORD_KEY
from airflow_provider.links.ray_train import EXPERIMENT_URL_KEY, JOB_URL_KEY
from airflow_provider.operators.publication import FAILURE_KEY, LINEAGE_KEY
from airflow_provider.sensors.wait import WAIT_KEY
from tests.site import xcom_keys
from tests.site.code_facts import Undocumented, fields, parameters
from tests.site.reference import reference_pages
from tests.support.records import attempt_records, outcome, owner

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = reference_pages()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_is_as_the_code_is(name: str) -> None:
    """`make docs` writes them."""
    assert (DOCS / name).read_text() == PAGES[name], "run `make docs`, or `python -m tests.site`"


def test_no_page_is_left_over() -> None:
    assert {f"reference/{path.name}" for path in (DOCS / "reference").iterdir()} == set(PAGES)


def test_each_parameter_of_the_operator_has_a_row() -> None:
    from airflow_provider.operators.ray_train import RayTrainOperator

    for name in set(inspect.signature(RayTrainOperator.__init__).parameters) - {"self", "kwargs"}:
        assert f"\n| `{name}` | " in PAGES["reference/operator.md"]


def a_function(*, told: int, silent: int = 0) -> None:
    """Say one of two."""


def test_a_parameter_without_words_or_words_without_one_are_errors() -> None:
    with pytest.raises(Undocumented, match="silent"):
        parameters(a_function, doc="Do.\n\n:param told: once")
    with pytest.raises(Undocumented, match="gone"):
        parameters(a_function, doc="Do.\n\n:param told: once\n:param silent: twice\n:param gone: no")
    found = parameters(a_function, doc="Do.\n\n:param told: once\n    and on\n:param silent: twice")
    assert [(i.name, i.default, i.meaning) for i in found] == [
        ("told", "required", "once and on"),
        ("silent", "`0`", "twice"),
    ]


class AModel(BaseModel):
    told: int | None = None
    """Once."""
    silent: bool = False


def test_a_field_without_words_is_an_error() -> None:
    with pytest.raises(Undocumented, match="silent"):
        fields(AModel)


def literal_keys(function: Any) -> set[str]:
    """Keys of the dict that a function names `result`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (found,) = [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "result" and isinstance(n.value, ast.Dict)
    ]
    return {str(ast.literal_eval(key)) for key in found.keys if key is not None}


def test_the_results_have_the_keys_that_the_page_names() -> None:
    attempt = attempt_records(1, outcome=outcome(latest_checkpoint="c"))
    lineage = project(ExperimentFacts("s3://b/e", (owner(1),), (attempt,)))
    assert set(xcom_keys.RESULT) == set(result_xcom(lineage, [attempt], new_checkpoints=0)) | {"published"}
    assert set(xcom_keys.LINEAGE) == set(lineage_xcom(lineage))
    assert set(xcom_keys.SENSOR_RESULT) == literal_keys(experiment_wait.wait_result)
    assert set(xcom_keys.EVENT) == set(PublishedModel.model_fields)


@pytest.mark.parametrize("part", ["tries", "attempts", "checkpoints"])
def test_the_parts_of_the_lineage_have_the_fields_that_the_page_names(part: str) -> None:
    (model,) = [a for a in Lineage.model_fields[part].annotation.__args__ if a is not Ellipsis]  # type: ignore[union-attr]
    text = xcom_keys.LINEAGE[part]
    is_slotted = dataclasses.is_dataclass(model)
    names = [field.name for field in dataclasses.fields(model)] if is_slotted else list(model.model_fields)
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_keys_are_those_that_are_pushed() -> None:
    pushed = {JOB_RECORD_KEY, EXPERIMENT_URL_KEY, JOB_URL_KEY, FAILURE_KEY, LINEAGE_KEY, "return_value"}
    assert set(xcom_keys.TRAINING) == pushed
    assert set(xcom_keys.SENSOR) == {WAIT_KEY, "return_value"}
