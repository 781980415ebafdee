r"""Where we are in a log whose line ends can't be counted on. Pure.

Ray's tail reads a file as text, and what is written as "\r\n" can reach it in two looks: a progress bar ends its line with "\r", and the
"\n" follows when the next thing is printed. Then the tail gives two line ends where a later reading of the file gives one. All other
characters are the same, so our place is told by them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_EMPTY_LINE = re.compile(r"(?<=\n)\n")


@dataclass
class LogPlace:
    """A place in a log, as counted from its start."""

    num_in_lines: int = 0
    """Characters before it other than line ends."""
    num_ends: int = 0
    """Line ends between the last of them and the place."""
    num_empty: int = 0
    """Empty lines before it; each may be one that a later reading doesn't have."""

    def advance(self, text: str) -> None:
        """Go on behind `text`."""
        if not text:
            return
        in_lines = text.rstrip("\n")
        self.num_empty += text.startswith("\n") + (len(_EMPTY_LINE.findall(text)) if "\n\n" in text else 0)
        self.num_in_lines += count_in_lines(text)
        self.num_ends = len(text) - len(in_lines) + (0 if in_lines else self.num_ends)


@dataclass
class Skip:
    """What of a text that is read again lies before a place."""

    num_in_lines: int = 0
    num_ends: int = 0

    def behind(self, text: str) -> str:
        """What of the next characters lies behind it."""
        start = 0
        while self.num_in_lines and start < len(text):
            end = text.find("\n", start)
            taken = min(self.num_in_lines, (len(text) if end < 0 else end) - start)
            self.num_in_lines -= taken
            # At the place itself: what follows, line ends too, is for the second count.
            start = start + taken if not self.num_in_lines or end < 0 else end + 1
        text = text[start:]
        if self.num_in_lines or not self.num_ends or not text:
            return text
        rest = text.lstrip("\n")
        num = min(self.num_ends, len(text) - len(rest))
        self.num_ends = 0 if rest else self.num_ends - num
        return text[num:]


def count_in_lines(text: str) -> int:
    """Characters other than line ends."""
    return len(text) - text.count("\n")
