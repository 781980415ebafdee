"""Bars with their range, and lines over sizes with the fitted order, as SVG.

One file per benchmark, its plots below each other. It is shown by a page that may be light or dark, as an image that can't see that
page's style: so it asks the reader's own preference. No colour alone tells two series apart: each line is named at its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.fit import growth
from benchmarks.measure import Spread, number

WIDTH = 760
LEFT = 210
"""Room for the names of bars."""
RIGHT = 190
"""Room for figures beside bars and names beside lines."""
LINES_HEIGHT = 260
BAR = 26
CHAR = 7.6
"""Width of a letter of a bar's label, at most, on the average."""
_STYLE = """
svg { color: #1f2328; background: #ffffff; font: 13px system-ui, sans-serif; }
text { fill: currentColor; } .title { font-weight: 600; } .small { font-size: 11px; }
.axis, .whisker { stroke: currentColor; fill: none; } .grid { stroke: currentColor; opacity: .18; }
.fit { stroke: currentColor; stroke-dasharray: 4 4; opacity: .6; fill: none; }
.s0 { --c: #0969da; } .s1 { --c: #9a6700; } .s2 { --c: #1a7f37; } .s3 { --c: #cf222e; } .s4 { --c: #8250df; }
.fill { fill: var(--c); } .line { stroke: var(--c); stroke-width: 2; fill: none; }
@media (prefers-color-scheme: dark) {
 svg { color: #e6edf3; background: #0d1117; }
 .s0 { --c: #4493f8; } .s1 { --c: #d29922; } .s2 { --c: #3fb950; } .s3 { --c: #f85149; } .s4 { --c: #ab7df8; }
}
"""


@dataclass(frozen=True)
class Bar:
    """One bar; without a value its text stands in its place."""

    label: str
    value: Spread | None
    text: str = ""
    color: int | None = None
    """The same for whatever the same side costs; None gives each bar its own."""


@dataclass(frozen=True)
class Bars:
    """Values side by side, from zero."""

    title: str
    unit: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Series:
    """One line: sizes and what each cost, positive both."""

    label: str
    points: Sequence[tuple[float, Spread]]


@dataclass(frozen=True)
class Lines:
    """Costs over sizes on logarithmic axes, where a line's slope is its order of growth."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    limit: float | None = None
    """A goal, drawn across."""


Plot = Bars | Lines


def drawn(plots: Sequence[Plot]) -> str:
    """The whole file."""
    parts: list[str] = []
    top = 0.0
    for plot in plots:
        height, drawing = _bars(plot) if isinstance(plot, Bars) else _lines(plot)
        parts.append(f'<g transform="translate(0 {top:g})">{"".join(drawing)}</g>')
        top += height
    about = escape("; ".join(plot.title for plot in plots))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:g}" role="img" aria-label="{_quoted(about)}">\n'
        f"<title>{about}</title>\n<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _bars(plot: Bars) -> tuple[float, list[str]]:
    # Wide letters, so that no font cuts a label off.
    left = max([LEFT, *(20 + CHAR * len(bar.label) for bar in plot.bars)])
    room = WIDTH - left - RIGHT
    most = max((bar.value.high for bar in plot.bars if bar.value), default=0.0) or 1.0
    out = [_text(12, 22, f"{plot.title} [{plot.unit}]", "title")]
    for i, bar in enumerate(plot.bars):
        y = 36 + i * BAR
        out.append(_text(left - 8, y + 14, bar.label, "", "end"))
        if bar.value is None:
            out.append(_text(left + 4, y + 14, bar.text or "not measured", "small"))
            continue
        at = [left + max(0.0, value) / most * room for value in (bar.value.low, bar.value.median, bar.value.high)]
        out.append(
            f'<rect class="s{(i if bar.color is None else bar.color) % 5} fill" x="{left:g}" y="{y}" width="{max(at[1] - left, 1):.1f}" height="{BAR - 8}"/>'
        )
        out.append(
            f'<path class="whisker" d="M{at[0]:.1f} {y + 9}H{at[2]:.1f}M{at[0]:.1f} {y + 5}v8M{at[2]:.1f} {y + 5}v8"/>'
        )
        out.append(_text(at[2] + 8, y + 14, bar.text or number(bar.value.median), "small"))
    out.append(f'<path class="axis" d="M{left:g} 32V{36 + len(plot.bars) * BAR}"/>')
    return 52.0 + len(plot.bars) * BAR, out


def _lines(plot: Lines) -> tuple[float, list[str]]:
    xs = [x for one in plot.series for x, _ in one.points]
    ys = [y for one in plot.series for _, spread in one.points for y in (spread.low, spread.high)]
    scale = _Scale.of(xs, [*ys, *([plot.limit] if plot.limit else [])])
    out = [_text(12, 22, plot.title, "title"), *scale.grid(plot.x_label, plot.y_label)]
    labels: list[float] = []
    for i, one in enumerate(plot.series):
        medians = [(x, spread.median) for x, spread in one.points]
        out.append(f'<polyline class="s{i % 5} line" points="{scale.path(medians)}"/>')
        for x, spread in one.points:
            (px, low), (_, high) = scale.at(x, spread.low), scale.at(x, spread.high)
            out.append(f'<path class="whisker" d="M{px:.1f} {low:.1f}V{high:.1f}"/>')
            out.append(f'<circle class="s{i % 5} fill" cx="{px:.1f}" cy="{scale.at(x, spread.median)[1]:.1f}" r="4"/>')
        name = one.label
        if len(medians) > 1:
            fitted = growth(medians)
            out.append(f'<polyline class="fit" points="{scale.path([(x, fitted.at(x)) for x, _ in medians])}"/>')
            name += f" (order {fitted.order:.2f})"
        px, py = scale.at(*medians[-1])
        while any(abs(py - other) < 14 for other in labels):
            py += 14
        labels.append(py)
        out.append(_text(px + 10, py + 4, name, "small"))
    if plot.limit:
        y = scale.at(xs[0], plot.limit)[1]
        out.append(f'<path class="axis" stroke-dasharray="2 3" d="M{scale.left} {y:.1f}H{WIDTH - RIGHT}"/>')
        out.append(_text(scale.left + 4, y - 4, f"goal {number(plot.limit)}", "small"))
    return 36.0 + LINES_HEIGHT + 52.0, out


@dataclass(frozen=True)
class _Scale:
    """Whole decades, so that the grid has round numbers."""

    x: tuple[int, int]
    y: tuple[int, int]
    left: float = 74.0
    top: float = 40.0

    @classmethod
    def of(cls, xs: Sequence[float], ys: Sequence[float]) -> _Scale:
        return cls(_decades(xs), _decades([y for y in ys if y > 0]))

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels; a value of zero lies on the axis."""
        width = WIDTH - RIGHT - self.left
        along = (math.log10(x) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log10(y) - self.y[0]) / (self.y[1] - self.y[0]) if y > 0 else 0.0
        return self.left + along * width, self.top + (1 - up) * LINES_HEIGHT

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))

    def grid(self, x_label: str, y_label: str) -> list[str]:
        bottom, right = self.top + LINES_HEIGHT, WIDTH - RIGHT
        out = []
        for power in range(self.x[0], self.x[1] + 1):
            px = self.at(10.0**power, 10.0 ** self.y[0])[0]
            out.append(f'<path class="grid" d="M{px:.1f} {self.top}V{bottom}"/>')
            out.append(_text(px, bottom + 18, f"{10.0**power:g}", "small", "middle"))
        for power in range(self.y[0], self.y[1] + 1):
            py = self.at(10.0 ** self.x[0], 10.0**power)[1]
            out.append(f'<path class="grid" d="M{self.left} {py:.1f}H{right}"/>')
            out.append(_text(self.left - 8, py + 4, f"{10.0**power:g}", "small", "end"))
        out.append(_text((self.left + right) / 2, bottom + 38, x_label, "small", "middle"))
        out.append(_text(right + 10, self.top - 4, y_label, "small"))
        return out


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'


def _quoted(text: str) -> str:
    return text.replace('"', "&quot;")
