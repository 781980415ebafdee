"""A training log of any size that needs no memory: each line is made from its number when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LINES_OF_A_MESSAGE = 10
"""As Ray's log websocket sends them."""
LINE = "epoch {epoch:>4} step {step:>9} loss 0.{step:09d} lr 0.00100000 throughput 1234.5 samples/s on 8 workers id {step:>9}\n"
CHARS_OF_A_LINE = len(LINE.format(epoch=0, step=0))


@dataclass(frozen=True)
class Log:
    """`num_lines` at once; or `num_at_once`, growing from `began` (seconds of the wall clock) by a line each `each_s` to `num_lines`."""

    num_lines: int = 0
    began: float = 0.0
    each_s: float = 0.0
    num_at_once: int = 0

    def num_lines_at(self, now: float) -> int:
        """How many lines are there."""
        if not self.each_s:
            return self.num_lines
        return min(self.num_lines, self.num_at_once + max(0, int((now - self.began) / self.each_s)))

    def line(self, number: int) -> str:
        """One line, its end included."""
        return LINE.format(epoch=number // 1000, step=number)

    def messages(self, end: int, *, begin: int = 0) -> Iterator[str]:
        """The lines from `begin` to `end` in the server's messages."""
        for first in range(begin, end, LINES_OF_A_MESSAGE):
            yield "".join(self.line(number) for number in range(first, min(end, first + LINES_OF_A_MESSAGE)))


def step_of(text: str) -> int | None:
    """The number of the line in a text that holds one, None for any other text."""
    _, mark, rest = text.partition(" on 8 workers id ")
    digits = rest[:9].strip()
    return int(digits) if mark and digits.isdigit() else None
