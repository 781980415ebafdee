"""Metrics that Ray's manifest can hold: numpy and torch scalars become Python's, everything else stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider.core.strict_json import to_strict

_PLAIN = (str, bool, int, float, type(None))


def to_plain(value: Any) -> Any:
    """The same value where Ray can store it. NaN and infinities stay numbers: Ray stores them as null."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return [to_plain(v) for v in value]
    item = getattr(value, "item", None)
    if getattr(value, "shape", None) == () and callable(item):
        return to_plain(item())
    if isinstance(value, (str, bool, int, float)):
        return value
    return to_strict(value)
