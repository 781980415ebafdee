"""Short lines for a person: they reach the log of the Airflow task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider.core.failure import Failure

_MAX_SHOWN = 6
_MAX_VALUE = 40


def say(text: str) -> None:
    """Print one line at once; a driver may be killed at any time."""
    print(f"[ray-train] {text}", flush=True)


def shown_metrics(metrics: Mapping[str, Any]) -> str:
    """`epoch=3 loss=0.41`: the first few scalars."""
    scalars = [(k, v) for k, v in metrics.items() if isinstance(v, (int, float, str)) and not isinstance(v, bool)]
    parts = [f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={str(v)[:_MAX_VALUE]}" for k, v in scalars[:_MAX_SHOWN]]
    return " ".join(parts) or "no metrics"


def say_failed(failure: Failure) -> None:
    """The failure as the last line: Airflow's side reads the kind from it where no outcome could be written."""
    say(f"failed: {' '.join(failure.reason.split())} [{failure.kind.value}]")
