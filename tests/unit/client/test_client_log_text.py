"""A job's output can't flood, colour or restructure the task log (C73)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.client.log_text import LogCleaner, clean_line


def test_redrawn_bar_shows_its_last_state() -> None:
    """Five thousand updates in one line are one line."""
    bar = "".join(f"\r\x1b[32m {n / 50:5.1f}%\x1b[0m || {n}/5000" for n in range(1, 5001))
    assert clean_line(bar) == " 100.0% || 5000/5000"
    assert clean_line("done\r") == "done"


def test_bar_that_ray_cut_into_lines_is_collapsed() -> None:
    """Ray reads with universal newlines, so each redraw is a line; nested bars count each for itself."""
    cleaner = LogCleaner()
    text = "".join(f"outer: {n}%|##| {n}/100 [00:01]\ninner: {n % 7}%|#| {n % 7}/7 [00:01]\n" for n in range(1, 101))
    assert cleaner.lines(text) == []
    assert cleaner.lines("loss=1\n") == ["outer: 100%|##| 100/100 [00:01]", "inner: 2%|#| 2/7 [00:01]", "loss=1"]
    assert cleaner.flush() == []


def test_ordinary_lines_stay() -> None:
    """Numbers and percentages alone don't make a bar; empty lines are kept."""
    lines = ["epoch 1 acc 93% | loss 0.1", "epoch 2 acc 94% | loss 0.1", "", "50% done 1/2", "tab\there"]
    assert LogCleaner().lines("\n".join(lines) + "\n") == lines


def test_user_text_opens_no_group() -> None:
    """Airflow's log view looks for the marker anywhere in a line."""
    for line in ("::group::x", "a ::group::x", "::endgroup::", "\x1b[1m::gro\x1b[0mup::x", "::gro\x00up::x"):
        cleaned = clean_line(line)
        assert "::group::" not in cleaned
        assert "::endgroup::" not in cleaned
        assert "group" in cleaned


def test_long_line_is_cut_with_a_mark() -> None:
    """Bounded, with its real size."""
    cleaned = clean_line("x" * 6_000_000)
    assert cleaned.endswith("[cut: the line has 6,000,000 characters]")
    assert len(cleaned) < 17_000


@given(st.text(max_size=300))
def test_no_control_code_survives(text: str) -> None:
    """Whatever a program prints, what is logged is plain text that can be encoded."""
    for line in LogCleaner().lines(text):
        assert "\x1b" not in line
        assert "\r" not in line
        assert "::group::" not in line
        line.encode()
