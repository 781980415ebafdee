"""Sizes, times, durations and metrics as a person reads them in 80 columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.goodput import in_words

_AGE = re.compile(r"(\d{1,6})([dhm])")
_RELEASE = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60}


def size(num_bytes: int | None) -> str:
    """`12.3 kB`; a question mark where nobody recorded it."""
    if num_bytes is None:
        return "? B"
    amount, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1_000:
            break
        amount, unit = amount / 1_000, larger
    return f"{num_bytes} B" if unit == "B" else f"{amount:.1f} {unit}"


def moment(when: datetime | None) -> str:
    """To the second, in UTC, as all times here are."""
    return f"{when:%Y-%m-%d %H:%M:%S}" if when is not None else "?"


def duration(length: timedelta) -> str:
    """Its two largest units."""
    return age(length.total_seconds())


def age(length: float) -> str:
    """Seconds as a duration."""
    return in_words(max(0.0, length))


def parse_age(text: str) -> float:
    """`30d`, `12h` or `90m` in seconds. Raises InvalidConfig."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise InvalidConfig(
            f"{text[:40]!r} is no age", change="write a number of days, hours or minutes: 30d, 12h, 90m"
        )
    return float(int(match[1]) * _SECONDS[match[2]])


def metrics(values: Mapping[str, Any], *, most: int = 6) -> str:
    """`epoch=3, loss=0.25`; the first ones."""
    shown = [f"{name}={_value(value)}" for name, value in list(values.items())[:most]]
    return ", ".join([*shown, "..."] if len(values) > most else shown)


def _value(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def count(number: int, what: str) -> str:
    """`1 try`, `2 tries`."""
    if number == 1:
        return f"1 {what}"
    return f"{number} {what[:-1]}ies" if what.endswith("y") else f"{number} {what}s"


def release(text: str) -> tuple[int, ...]:
    """`2.60.0rc1` as (2, 60, 0): enough to compare releases; empty for what is none."""
    match = _RELEASE.match(text)
    return tuple(int(number) for number in match.groups() if number is not None) if match else ()
