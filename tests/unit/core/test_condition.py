"""Conditions as text: what parses, what holds, and errors that point at a column."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.condition import MAX_TEXT, Comparison, Condition, Plateau
from airflow_provider.core.errors import InvalidCondition, InvalidConfig
from tests.support.damage import SECRET, examples, only_typed_errors

METRICS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_./:]{0,12}", fullmatch=True) | st.sampled_from(
    ["val-loss", "val loss", "and", "or", "plateau", "loss (mean)", "l'oss", "a<b", "a,b=c", "größe"]
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6).map(float)
COMPARISONS = st.builds(Comparison, METRICS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), NUMBERS)
PLATEAUS = st.builds(
    Plateau,
    METRICS,
    st.integers(1, 10**6),
    st.floats(0, 1e300),
    st.sampled_from(["min", "max"]),
)
CONDITIONS = st.builds(Condition, st.lists(COMPARISONS | PLATEAUS, min_size=1, max_size=4).map(tuple))


def history(metric: str, *values: Any) -> list[dict[str, Any]]:
    return [{metric: value} for value in values]


def held(text: str, rows: list[dict[str, Any]]) -> list[bool]:
    return Condition.parse(text).holds_at(rows)


@given(CONDITIONS)
@examples(300)
def test_what_is_written_reads_as_the_same(condition: Condition) -> None:
    assert Condition.parse(str(condition)) == condition


@given(st.text(max_size=60) | st.text("ab <>=!0123456789.e+-()',\"plateuminxd_", max_size=40))
@examples(500)
def test_any_text_parses_or_points_at_a_column(text: str) -> None:
    with only_typed_errors() as caught:
        assert Condition.parse(text).terms
    for error in caught:
        assert isinstance(error, InvalidCondition)
        assert 1 <= error.column <= len(text) + 1


@given(CONDITIONS, st.lists(st.dictionaries(st.sampled_from(["a", "b"]), NUMBERS | st.just(math.nan)), max_size=8))
@examples(200)
def test_it_answers_for_each_checkpoint_and_a_longer_history_changes_no_answer(
    condition: Condition, rows: list[dict[str, Any]]
) -> None:
    """What held at a checkpoint holds whenever one looks: an answer depends on nothing that came later."""
    answers = condition.holds_at(rows)
    assert len(answers) == len(rows)
    assert answers[:-1] == condition.holds_at(rows[:-1])
    assert condition.explain(rows)


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("", 1, "the end"),
        ("val_loss", 9, "comparison"),
        ("val_loss <", 11, "number"),
        ("val_loss = 3", 10, "equality is written =="),
        ("val_loss < other", 12, "number"),
        ("a < 3 or b > 2", 7, "'and' or the end"),
        ("a < 3 and", 10, "name"),
        ("0.3 > a", 1, "name"),
        ("val-loss < 3", 4, "quotes"),
        ("'val < 3", 1, "quote is open"),
        ("'' < 3", 1, "name"),
        ("a < 3abc", 5, "'3'"),
        ("a < 1e999", 5, "too large"),
        ("a < nan", 5, "number"),
        ("__import__('os').system('x')", 11, "comparison"),
        ("plateau(a)", 1, "patience"),
        ("plateau(a, patience=0)", 21, "from 1"),
        ("plateau(a, patience=1.5)", 21, "whole"),
        ("plateau(a, patience=2, min_delta=-1)", 34, "negative"),
        ("plateau(a, patience=2, mode=up)", 29, "min or max"),
        ("plateau(a, patience=2, patience=3)", 24, "each once"),
        ("plateau(a, 5)", 12, "patience, min_delta or mode"),
        ("plateau(a, patience=2", 22, "')'"),
    ],
)
def test_an_error_names_the_column_and_what_is_expected_there(text: str, column: int, why: str) -> None:
    with pytest.raises(InvalidCondition) as caught:
        Condition.parse(text)
    assert caught.value.column == column
    assert f"at column {column}" in caught.value.what
    assert why in caught.value.known
    assert "plateau(val_loss" in caught.value.change, "a reader learns the syntax"
    assert isinstance(caught.value, InvalidConfig)


def test_a_long_text_is_refused_and_no_message_repeats_a_secret() -> None:
    with pytest.raises(InvalidCondition, match="more than"):
        Condition.parse("a < 1 and " * MAX_TEXT)
    with pytest.raises(InvalidCondition) as caught:
        Condition.parse(f"token={SECRET}")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("m < 0.3", 0.29, True),
        ("m < 0.3", 0.3, False),
        ("m <= 0.3", 0.3, True),
        ("m > -1", 0, True),
        ("m >= 5", 5, True),
        ("m == 5", 5.0, True),
        ("m != 5", 5, False),
        ("m != 5", math.nan, False),
        ("m < 5", "NaN", False),
        ("m < 5", "4", False),
        ("m < 5", True, False),
        ("m < 5", None, False),
        ("m < inf", None, None),
    ],
)
def test_a_comparison_needs_a_finite_number(text: str, value: Any, expected: bool | None) -> None:
    if expected is None:
        with pytest.raises(InvalidCondition):
            Condition.parse(text)
    else:
        assert held(text, history("m", value)) == [expected]


def test_all_terms_must_hold_at_the_same_checkpoint() -> None:
    rows = [{"a": 1, "b": 9}, {"a": 9, "b": 1}, {"a": 1, "b": 1}, {"a": 1}]
    assert held("a < 5 and b < 5", rows) == [False, False, True, False]


def test_names_of_metrics_are_the_reported_ones() -> None:
    assert held("val/loss:0 < 1 and 'loss (mean)' < 1", [{"val/loss:0": 0, "loss (mean)": 0}]) == [True]
    assert held("a.b < 1", [{"a": {"b": 0}}]) == [False], "names are keys, not paths"


def test_a_plateau_needs_so_many_checkpoints_without_improvement_in_a_row() -> None:
    rows = history("m", 1.0, 0.5, 0.5, 0.6, 0.4, 0.4, 0.45)
    assert held("plateau(m, patience=2)", rows) == [False, False, False, True, False, False, True]


def test_an_improvement_smaller_than_min_delta_is_none_but_adds_up() -> None:
    """Against the best, not the last one: a slow descent is an improvement once it has come far enough."""
    rows = history("m", 1.0, 0.96, 0.92, 0.88, 0.84)
    assert held("plateau(m, patience=2, min_delta=0.1)", rows) == [False, False, True, False, False]


def test_a_plateau_of_a_metric_that_grows() -> None:
    assert held("plateau(acc, patience=1, mode=max)", history("acc", 0.1, 0.2, 0.2)) == [False, False, True]


def test_nan_is_no_improvement_and_an_unreported_metric_is_not_counted() -> None:
    rows: list[dict[str, Any]] = [{"m": 1.0}, {"m": math.nan}, {}, {"m": "NaN"}]
    assert held("plateau(m, patience=2)", rows) == [False, False, False, True]
    assert held("plateau(m, patience=1)", history("m", math.nan, math.nan)) == [False, False], "nothing to compare with"


def test_it_tells_how_far_it_is() -> None:
    condition = Condition.parse("loss < 0.3 and plateau(acc, patience=3, mode=max)")
    told = condition.explain([{"loss": 0.5, "acc": 0.8}, {"loss": 0.41, "acc": 0.8}, {"loss": 0.6}])
    assert "loss < 0.3: last 0.6, lowest 0.41 in 3 checkpoints" in told
    assert "best 0.8, not improved in the last 1 checkpoints" in told
    assert Condition.parse("x > 1").explain([{}]) == "x > 1: no checkpoint reports it as a number"
