"""Make a job's raw output fit for a task log: bounded lines, no control codes, no progress-bar floods. Pure."""

from __future__ import annotations

import re

MAX_LINE = 16_000
"""Characters of one line that are shown."""
_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[PX^_][^\x1b]{0,4096}\x1b\\|[ -/]*[0-~])"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_GROUP = re.compile(r"::(group|endgroup)::")
_PROGRESS = re.compile(r"^(?P<label>.{0,200}?)\s*\d{1,3}(?:\.\d+)?%\s?\|.{0,400}\|\s*[\d.,]+\w*/[\d.,?]+", re.DOTALL)
_NEWLINE = re.compile(r"\r\n|\n")


def clean_line(line: str, *, max_chars: int = MAX_LINE) -> str:
    r"""One line as it may stand in a task log.

    Of text overwritten with `\r` the last state stays. Airflow's log view opens a group wherever a line *contains*
    `::group::`, so the marker is broken up everywhere and not only at the start.
    """
    states = [state for state in line.split("\r") if state.strip()]
    text = states[-1] if states else ""
    size = len(text)
    # Cut before the costly replacements, but not so early that escapes use up the room for text.
    text = text[: max_chars * 4]
    text = _CONTROL.sub("", _ANSI.sub("", text))
    text = _SURROGATE.sub("\ufffd", text)
    text = _GROUP.sub(r": :\1: :", text).rstrip()
    if len(text) > max_chars or size > max_chars * 4:
        return f"{text[:max_chars]} [cut: the line has {size:,} characters]"
    return text


def progress_label(line: str) -> str | None:
    """What a cleaned line is a progress bar of; None for ordinary text.

    Ray reads logs with universal newlines, so each redraw of a bar arrives as a line of its own.
    """
    match = _PROGRESS.match(line)
    return match["label"] if match else None


class LogCleaner:
    """Turns raw text into lines; of a running progress bar it holds the last state back until other text comes."""

    _MAX_BARS = 8

    def __init__(self, *, max_chars: int = MAX_LINE) -> None:
        """Cut lines at `max_chars`."""
        self._max_chars = max_chars
        self._bars: dict[str, str] = {}

    def lines(self, text: str) -> list[str]:
        """Clean whole lines."""
        text = text.removesuffix("\n")
        shown: list[str] = []
        for raw in _NEWLINE.split(text):
            line = clean_line(raw, max_chars=self._max_chars)
            label = progress_label(line)
            if label is not None:
                # Nested bars redraw in turn, so each has its own place.
                self._bars[label] = line
                if len(self._bars) > self._MAX_BARS:
                    shown.append(self._bars.pop(next(iter(self._bars))))
            elif line or not self._bars:
                shown += [*self.flush(), line]
        return shown

    def flush(self) -> list[str]:
        """Give the progress bars that are held back."""
        held = list(self._bars.values())
        self._bars.clear()
        return held
