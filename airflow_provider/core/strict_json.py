"""Metrics as strict JSON: whatever a training reports survives, nothing breaks a database or a browser.

NaN and infinities become the strings "NaN", "Infinity" and "-Infinity" (distinguishable from "not reported"); numpy
and torch scalars become numbers; what is too large is replaced by its size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

MAX_VALUE_BYTES = 2_000
"""Longest JSON text of one metric kept in a projection."""
MAX_DEPTH = 8
_BYTES_OF_A_LETTER = 12
"""The most that a letter takes in JSON: two escapes, outside of Unicode's first plane."""


def to_strict(value: object, *, depth: int = 0) -> Any:
    """A JSON value that `json.dumps(..., allow_nan=False)` accepts, for any Python object."""
    return _strict(value, depth, frozenset())


def _strict(value: object, depth: int, parents: frozenset[int]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _number(value)
    # A container that holds itself twice would double with each level, long before the depth ends it.
    if depth >= MAX_DEPTH or id(value) in parents:
        return f"<{type(value).__name__}>"
    inside = parents | {id(value)}
    if isinstance(value, Mapping):
        return {_key(k): _strict(v, depth + 1, inside) for k, v in value.items()}
    if isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_strict(v, depth + 1, inside) for v in value]
    return _from_array(value, depth, inside)


def storable(value: str) -> str:
    """A text that JSON, UTF-8 and Postgres take: no NUL, no lone surrogates."""
    return value.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def shortened(text: str, *, limit: int) -> str:
    """The text without its middle where it is longer than `limit`: beginning and end tell most."""
    if len(text) <= limit:
        return text
    mark = f" ... ({len(text):,} characters) ... "
    half = max(0, limit - len(mark)) // 2
    return f"{text[:half]}{mark}{text[-half:] if half else ''}"


def _key(value: object) -> str:
    return str(_integer(value)) if type(value) is int else storable(str(value))


def _integer(value: int) -> int | str:
    """Beyond 64 bits JSON readers and databases round or refuse; beyond 4,300 digits Python refuses to print."""
    if abs(value) < 2**63:
        return int(value)
    return str(value) if value.bit_length() <= 1_024 else f"<int of {value.bit_length()} bits>"


def _number(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(value)


def _from_array(value: object, depth: int, parents: frozenset[int]) -> Any:
    """Numpy and torch values by their shape and `tolist`/`item`, without importing either."""
    shape = getattr(value, "shape", None)
    size = math.prod(shape) if isinstance(shape, tuple) and all(isinstance(n, int) for n in shape) else None
    to_list = getattr(value, "tolist", None)
    if size is not None and callable(to_list):
        if size > 1_000:
            return f"<{type(value).__name__} of shape {list(shape or ())}>"
        return _strict(to_list(), depth + 1, parents)
    return f"<{type(value).__name__}>"


def bounded_metrics(metrics: Mapping[str, Any], *, max_bytes: int = 8_000) -> tuple[dict[str, Any], bool]:
    """Metrics within `max_bytes` of JSON: scalars first, large values replaced by their size. True if cut."""
    strict = {str(k)[:200]: v for k, v in to_strict(dict(metrics)).items()}
    if _surely_fits(strict, max_bytes):
        return strict, False
    sized = {k: (v, len(json.dumps(v, allow_nan=False))) for k, v in strict.items()}
    kept: dict[str, Any] = {}
    used, is_cut = 2, False
    for key, (value, size) in sorted(sized.items(), key=lambda item: item[1][1]):
        if size > MAX_VALUE_BYTES:
            kept_value, kept_size, is_cut = f"<{size} bytes of JSON>", 40, True
        else:
            kept_value, kept_size = value, size
        # 4 more for the colon and the comma.
        cost = kept_size + len(json.dumps(key)) + 4
        if used + cost > max_bytes:
            is_cut = True
            break
        kept[key] = kept_value
        used += cost
    return {k: kept[k] for k in strict if k in kept}, is_cut


_LONGEST_NUMBER = 30
"""Bytes that no float of JSON takes, and no integer of 64 bits."""


def _surely_fits(strict: Mapping[str, Any], max_bytes: int) -> bool:
    """Whether nothing of it can be cut, by a bound that needs no JSON: as most metrics, a few numbers and short texts."""
    used = 2
    for key, value in strict.items():
        if isinstance(value, str):
            size = 2 + _BYTES_OF_A_LETTER * len(value)
        elif isinstance(value, (dict, list)):
            return False
        else:
            size = _LONGEST_NUMBER
        if size > MAX_VALUE_BYTES:
            return False
        used += size + 6 + _BYTES_OF_A_LETTER * len(key)
    return used <= max_bytes


def json_bytes(value: object) -> int:
    """Length in bytes of a value's strict JSON. Raises ValueError for NaN or infinity."""
    return len(json.dumps(value, allow_nan=False).encode())
