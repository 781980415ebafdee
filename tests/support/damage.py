"""Damages what a reader gets, in every way that storage, networks and people do; and what must hold all the same.

`FUZZ_TIMES=10` in the environment makes each test try ten times as many examples.
"""

from __future__ import annotations

import codecs
import contextlib
import copy
import json
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from airflow_provider.core.errors import MAX_PART, RayTrainError

SECRET = "pl4nted-S3cr3t-t0ken"
"""Stands in damaged values; no message may repeat it."""
_DEEP, _DIGITS, _GIANT = "@deep@", "@digits@", "@giant@"

Test = Callable[..., Any]


def examples(number: int) -> Callable[[Test], Test]:
    """How many examples a test tries."""
    times = int(os.environ.get("FUZZ_TIMES", "1"))
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=number * times, deadline=None, suppress_health_check=slow)


@contextlib.contextmanager
def only_typed_errors() -> Iterator[list[RayTrainError]]:
    """Only our own errors may come out, with a message that is short, that can be sent, and that repeats no secret."""
    caught: list[RayTrainError] = []
    try:
        yield caught
    except RayTrainError as error:
        caught.append(error)
        check_message(error)


def check_message(error: RayTrainError) -> None:
    """What holds for the message of every error."""
    text = f"{error} {error!r} {error.failure.reason}"
    assert SECRET.lower() not in text.lower()
    assert len(str(error)) < 3 * MAX_PART
    assert error.what
    text.encode()
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own


def without_secret(value: Any, *, levels: int = 20) -> Any:
    """The same value where messages may repeat it: a path or a name is, since that helps."""
    if levels and isinstance(value, dict):
        return {key: without_secret(child, levels=levels - 1) for key, child in value.items()}
    if levels and isinstance(value, list):
        return [without_secret(child, levels=levels - 1) for child in value]
    return "plain" if isinstance(value, str) and value == SECRET else value


def is_utf8(value: Any) -> bool:
    """Whether every text in a value can be stored."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    return "\\u0000" not in text and text.encode() is not None


NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1.5, 2**31, 2**63, -(2**63), 2**64, 10**40, 1e308, float("nan"), float("inf"), -0.0]),
    st.integers(),
    st.floats(),
)
TEXTS = st.one_of(
    st.sampled_from(
        ["", SECRET, "\ud800", "a\udfffb", "a\0b", "../../x", "/", "NaN", "2026-11-29T12:00:00", "0001-01-01"]
    ),
    st.sampled_from(["2026-11-29T12:00:00+99:00", "9999-12-31T23:59:59Z", "\u202e", "{{ x }}", _GIANT, "x" * 3_000]),
    st.text(st.characters(codec=None), max_size=12),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.sampled_from([_DEEP, _DIGITS]))
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
"""Values of any type, among them those that break encoders, clocks and databases."""


@st.composite
def damaged_value(draw: st.DrawFn, valid: Sequence[Any], *, most: int = 3) -> Any:
    """A valid value with up to `most` places dropped, renamed, repeated, or replaced by junk."""
    value = copy.deepcopy(draw(st.sampled_from(list(valid))))
    for _ in range(draw(st.integers(0, most))):
        places = list(_places(value))
        if not places:
            return draw(JUNK)
        parent, key = places[draw(st.integers(0, len(places) - 1))]
        _damage(draw, parent, key)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield value, key
        yield from _places(child)


def _damage(draw: st.DrawFn, parent: Any, key: Any) -> None:
    how = draw(st.sampled_from(["drop", "replace", "replace", "spoil", "spoil", "wrap", "rename", "repeat"]))
    if how == "drop":
        del parent[key]
    elif how == "replace":
        parent[key] = draw(JUNK)
    elif how == "spoil" and isinstance(parent[key], str):
        # A time loses its offset, any text becomes one that can't be stored or is too long.
        parent[key] = draw(
            st.sampled_from([parent[key].rstrip("Z"), parent[key] + "\ud800", parent[key] + "\0", _GIANT])
        )
    elif how in {"spoil", "wrap"}:
        parent[key] = draw(st.sampled_from([[parent[key]], {"x": parent[key]}, str(parent[key])]))
    elif isinstance(parent, dict):
        parent[draw(TEXTS) if how == "rename" else f"{key}2"] = parent[key]
    else:
        parent.append(parent[key])


@st.composite
def damaged_json(draw: st.DrawFn, valid: Sequence[Any]) -> bytes:
    """A damaged value as bytes that are damaged too: cut anywhere, in other encodings, with bytes changed."""
    text = json.dumps(draw(damaged_value(valid)), ensure_ascii=draw(st.booleans()))
    levels = draw(st.sampled_from([90, 101, 300, 990, 5_000]))
    text = text.replace(f'"{_DEEP}"', "[" * levels + "]" * levels)
    text = text.replace(f'"{_DIGITS}"', "9" * draw(st.sampled_from([19, 400, 4_300, 5_000])))
    text = text.replace(_GIANT, "g" * draw(st.sampled_from([2_001, 100_000])))
    if draw(st.booleans()) and text.startswith("{"):
        text = '{"schema_version": 1, "status": "FAILED", ' + text[1:] if draw(st.booleans()) else text
    body = text.encode(draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "utf-32"])), "surrogatepass")
    return draw(damaged_bytes(body))


@st.composite
def damaged_bytes(draw: st.DrawFn, body: bytes) -> bytes:
    """The bytes as they are, cut, with a byte order mark, or with some changed."""
    how = draw(st.sampled_from(["whole", "whole", "whole", "cut", "mark", "flip", "head", "tail"]))
    if how == "cut":
        return body[: draw(st.integers(0, len(body)))]
    if how == "mark":
        return codecs.BOM_UTF8 + body
    if how == "flip" and body:
        place = draw(st.integers(0, len(body) - 1))
        return body[:place] + draw(st.binary(max_size=3)) + body[place + 1 :]
    if how == "head":
        return draw(st.binary(max_size=4)) + body
    return body + draw(st.binary(max_size=4)) if how == "tail" else body
