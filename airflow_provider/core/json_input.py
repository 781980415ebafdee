"""JSON that others wrote: a value that every later step can hold and write again, or one error that says what is wrong.

`json.loads` alone lets through what breaks far from its cause: nesting that no encoder follows, lone surrogates and NUL
that neither UTF-8 nor a database takes, and bytes in encodings that nobody asked for.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any

from airflow_provider.core.strict_json import storable

MAX_NESTING = 100
"""Levels of lists and objects. Pydantic writes up to 255, Python's recursion ends near 1,000."""
_ODD_ESCAPE = re.compile(r"\\u(?:[dD][89a-fA-F]|0000)")


class UnreadableJson(ValueError):
    """The text is no JSON that we read; its message says why and repeats nothing of the text."""


def read_json(body: bytes | str) -> Any:
    """Parse JSON in UTF-8. Texts come back storable: without NUL and lone surrogates. Raises UnreadableJson."""
    text = body if isinstance(body, str) else _decoded(body)
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise UnreadableJson(f"{len(body)} bytes that are not JSON ({type(error).__name__})") from None
    if not _is_shallow_json(value):
        raise _too_deep()
    return storable_tree(value) if _ODD_ESCAPE.search(text) else value


def is_shallow(value: object, *, limit: int = MAX_NESTING) -> bool:
    """Whether lists and dicts nest at most `limit` levels; a value that holds itself does not."""
    level = [value]
    for _ in range(limit):
        level = [child for parent in level for child in _children(parent) if isinstance(child, (dict, list, tuple))]
        if not level:
            return True
        # A value that holds itself often would double with each level.
        level = list({id(child): child for child in level}.values())
    return False


def _is_shallow_json(value: object) -> bool:
    """The same of what `json.loads` gave, in half the time: its lists and dicts are of no other class, and no part is shared."""
    level: list[Any] = [value] if type(value) in (dict, list) else []
    for _ in range(MAX_NESTING):
        if not level:
            break
        children = chain.from_iterable(parent.values() if type(parent) is dict else parent for parent in level)
        level = [child for child in children if type(child) is dict or type(child) is list]
    return not level


def storable_tree(value: Any) -> Any:
    """The same lists and dicts with storable texts; the caller knows that they are shallow."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable_tree(k): storable_tree(v) for k, v in value.items()}
    return [storable_tree(v) for v in value] if isinstance(value, list) else value


def _children(value: object) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _decoded(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableJson(f"{len(body)} bytes that are not JSON in UTF-8") from None


def _too_deep() -> UnreadableJson:
    return UnreadableJson(f"JSON nested deeper than {MAX_NESTING} levels")
