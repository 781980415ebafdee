"""Sizes, times and ages as they are printed and read."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider.cli import wording
from airflow_provider.core.errors import InvalidConfig


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(None, "? B"), (0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (7 * 10**12, "7.0 TB")]
)
def test_sizes(num_bytes: int | None, text: str) -> None:
    assert wording.size(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3_600, "1 h"), (90_061, "1 d 1 h"), (-5, "0 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert wording.duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2_592_000), ("12h", 43_200), ("90m", 5_400)])
def test_ages(text: str, seconds: float) -> None:
    assert wording.parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "1w", "-1d", "1.5d", "9999999d"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(InvalidConfig):
        wording.parse_age(text)


@pytest.mark.parametrize(
    ("text", "release"), [("2.60.0", (2, 60, 0)), ("2.60.0rc1", (2, 60, 0)), ("3.0", (3, 0)), ("nightly", ())]
)
def test_releases(text: str, release: tuple[int, ...]) -> None:
    assert wording.release(text) == release


def test_counts_and_metrics() -> None:
    assert [wording.count(n, "try") for n in (0, 1, 2)] == ["0 tries", "1 try", "2 tries"]
    assert wording.metrics({"epoch": 3, "loss": 0.123456789, "note": "x" * 99}).startswith(
        "epoch=3, loss=0.123457, note=x"
    )
    assert wording.metrics({str(i): i for i in range(9)}).endswith("5=5, ...")
