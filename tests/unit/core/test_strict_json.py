"""Whatever a training reports must survive a database, a browser and a size limit."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import OrderedDict, deque
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.strict_json import MAX_VALUE_BYTES, bounded_metrics, json_bytes, to_strict


class Phase(IntEnum):
    TRAIN = 2


class Colour(Enum):
    RED = "red"


CASES: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (1.5, 1.5),
    (math.nan, "NaN"),
    (math.inf, "Infinity"),
    (-math.inf, "-Infinity"),
    (2**63 - 1, 2**63 - 1),
    (2**63, "9223372036854775808"),
    (-(2**63), "-9223372036854775808"),
    (10**5000, f"<int of {(10**5000).bit_length()} bits>"),
    ((1, [2.0, {"a": math.nan}]), [1, [2.0, {"a": "NaN"}]]),
    ({1: "a", None: "b", 0.5: "c", (1, 2): "d"}, {"1": "a", "None": "b", "0.5": "c", "(1, 2)": "d"}),
    ({7}, [7]),
    (frozenset(), []),
    (deque([1, 2]), [1, 2]),
    (OrderedDict(a=1), {"a": 1}),
    (b"raw", "<bytes>"),
    (bytearray(b"raw"), "<bytearray>"),
    (Decimal("1.5"), "<Decimal>"),
    (1 + 2j, "<complex>"),
    (Colour.RED, "<Colour>"),
    (Phase.TRAIN, 2),
    ("a\0b", "a\ufffdb"),
    ("lone \ud800", "lone \ufffd"),
    ("smile 😀", "smile 😀"),
    ({"k\0": 1}, {"k\ufffd": 1}),
    ({10**5000: 1}, {f"<int of {(10**5000).bit_length()} bits>": 1}),
]


@pytest.mark.parametrize(("value", "expected"), CASES, ids=range(len(CASES)))
def test_each_python_value_becomes_plain_json(value: object, expected: object) -> None:
    strict = to_strict(value)
    assert strict == expected
    assert type(strict) is type(expected)
    json.dumps(strict, allow_nan=False)


def test_numpy_values_become_numbers_and_lists() -> None:
    np = pytest.importorskip("numpy")

    assert to_strict(np.float32(0.5)) == 0.5
    assert type(to_strict(np.float64(0.5))) is float
    assert to_strict(np.int64(7)) == 7
    assert to_strict(np.bool_(True)) is True
    assert to_strict(np.float32(math.nan)) == "NaN"
    assert to_strict(np.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert to_strict(np.array(3)) == 3
    assert to_strict(np.zeros((0, 5))) == []
    assert to_strict({"acc": [np.float32(1), np.nan]}) == {"acc": [1.0, "NaN"]}
    assert to_strict(np.arange(1_000)) == list(range(1_000))
    assert to_strict(np.zeros((11, 100))) == "<ndarray of shape [11, 100]>"
    assert to_strict(np.longdouble(1)) == "<longdouble>"
    assert to_strict(np.str_("a")) == "a"


def test_numpy_is_not_imported_for_it() -> None:
    """The Airflow side has neither numpy nor torch, and parsing a DAG stays cheap."""
    code = "import sys, airflow_provider.core.strict_json; assert not {'numpy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cycles_end_also_where_they_branch() -> None:
    """Depth alone would not do: ten references to itself on each of eight levels are 100 million."""
    knot: list[Any] = []
    knot.extend([knot] * 10)
    assert to_strict(knot) == ["<list>"] * 10
    mapping: dict[str, Any] = {"loss": 1.0}
    mapping["self"] = mapping
    assert to_strict(mapping) == {"loss": 1.0, "self": "<dict>"}
    assert bounded_metrics(mapping)[0]["loss"] == 1.0


def test_the_same_object_twice_is_no_cycle() -> None:
    shared = [1]
    assert to_strict([shared, shared]) == [[1], [1]]


def test_depth_is_bounded() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert json.dumps(to_strict(deep)).count("[") == 8


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=9) | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(st.integers() | st.text() | st.none() | st.floats(), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(VALUES)
def test_any_value_is_strict_utf8_json_and_stable(value: Any) -> None:
    strict = to_strict(value)
    json.dumps(strict, allow_nan=False, ensure_ascii=False).encode()
    assert to_strict(strict) == strict


@given(st.dictionaries(st.text(max_size=300), VALUES, max_size=12), st.integers(20, 400))
def test_metrics_never_exceed_their_bytes(metrics: dict[str, Any], limit: int) -> None:
    """Letters outside ASCII take 6 or 12 bytes in JSON."""
    kept, is_cut = bounded_metrics(metrics, max_bytes=limit)
    assert json_bytes(kept) <= limit
    assert is_cut or kept == to_strict(metrics) or any(len(k) > 200 for k in metrics)


def test_a_confusion_matrix_is_replaced_by_its_size_and_the_scalars_stay() -> None:
    """C52: 500 x 500 numbers, about 1 MB."""
    matrix = [list(range(i, i + 500)) for i in range(500)]
    kept, is_cut = bounded_metrics({"confusion": matrix, "loss": 0.25, "epoch": 9})
    assert is_cut
    assert kept == {"confusion": f"<{len(json.dumps(matrix))} bytes of JSON>", "loss": 0.25, "epoch": 9}


@given(
    st.dictionaries(
        st.text("kä😀\x01", max_size=30), st.text("xä😀\x01", max_size=40) | st.integers() | st.floats(), max_size=9
    ),
    st.integers(20, 4_000),
)
def test_what_is_taken_to_fit_without_measuring_it_fits(metrics: dict[str, Any], limit: int) -> None:
    kept, is_cut = bounded_metrics(metrics, max_bytes=limit)
    strict = to_strict(metrics)
    sizes = [json_bytes(key) + json_bytes(value) + 4 for key, value in strict.items()]
    assert is_cut == (sum(sizes) + 2 > limit)
    assert is_cut or list(kept.items()) == list(strict.items())


def test_plain_metrics_are_bounded_without_writing_their_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a lineage bounds the metrics of each of its checkpoints."""
    monkeypatch.setattr(json, "dumps", None)
    metrics = {"step": 7, "loss": 0.5, "epoch": 1, "stage": "warm-up", "is_best": True, "note": None}
    assert bounded_metrics(metrics) == (metrics, False)


def test_what_fits_is_not_cut_and_keeps_its_order() -> None:
    metrics = {"z": 1, "a": [1, 2], "m": "x"}
    kept, is_cut = bounded_metrics(metrics)
    assert (list(kept.items()), is_cut) == (list(metrics.items()), False)


@pytest.mark.parametrize(("size", "is_cut"), [(MAX_VALUE_BYTES - 2, False), (MAX_VALUE_BYTES - 1, True)])
def test_one_value_may_have_2000_bytes(size: int, is_cut: bool) -> None:
    assert bounded_metrics({"text": "x" * size})[1] is is_cut


def test_many_scalars_are_cut_with_the_small_ones_kept() -> None:
    kept, is_cut = bounded_metrics({f"m{i}": i for i in range(5_000)}, max_bytes=1_000)
    assert is_cut
    assert "m0" in kept
    assert 50 < len(kept) < 100


def test_json_bytes_refuses_nan() -> None:
    assert json_bytes({"ä": 1}) == len('{"\\u00e4": 1}')
    with pytest.raises(ValueError, match="Out of range float"):
        json_bytes(math.nan)
