"""Numbers as people read them."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

from airflow_provider.core.strict_json import shortened, storable

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
NOBODY_KNOWS = "-"
MAX_VALUE = 60
"""Characters of a metric's value in a table."""


def size(num_bytes: int | None) -> str:
    """`1.2 MB`; a dash where nobody knows."""
    if num_bytes is None:
        return NOBODY_KNOWS
    amount = float(max(0, num_bytes))
    for unit in _UNITS:
        if amount < 1000 or unit == _UNITS[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError  # pragma: no cover - the last unit has answered


def duration(span: timedelta) -> str:
    """`2 d 3 h`, `4 min 5 s`, `0.3 s`: the two largest units."""
    seconds = max(0.0, span.total_seconds())
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    parts = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next(i for i, (amount, _) in enumerate(parts) if amount)
    return " ".join(f"{amount} {unit}" for amount, unit in parts[first : first + 2] if amount)


def moment(at: datetime) -> str:
    """A time for a reader without the script, which shows it in the time zone that Airflow's UI is set to."""
    return f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def machine_time(at: datetime) -> str:
    """A time for `<time datetime>`."""
    return at.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def number(value: object) -> float | None:
    """A metric that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    # Differences of numbers near the end of the range overflow.
    return found if math.isfinite(found) and abs(found) < 1e300 else None


def value_shown(value: Any) -> str:
    """A metric as text."""
    found = number(value)
    if found is not None and not isinstance(value, int):
        return f"{found:.6g}"
    text = value if isinstance(value, str) else NOBODY_KNOWS if value is None else str(value)
    return shortened(storable(text), limit=MAX_VALUE)


def web_address(text: str | None) -> str | None:
    """The address if a browser may be sent there; None for any other scheme, which could run a script."""
    if text is None:
        return None
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    return text if parts.scheme in ("http", "https") and parts.netloc and "@" not in parts.netloc else None
