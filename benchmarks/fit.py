"""How a cost grows with the work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]
"""A size and what it cost."""


@dataclass(frozen=True)
class Growth:
    """`cost = factor * size ** order`, as fitted."""

    order: float
    """1 is linear, 2 quadratic; below 1 where a fixed cost outweighs the work at the small sizes."""
    factor: float

    def at(self, size: float) -> float:
        """The fitted cost of a size."""
        return float(self.factor * size**self.order)


def growth(points: Sequence[Point]) -> Growth:
    """Least squares of log cost on log size.

    Raises:
        ValueError: Fewer than two sizes, or a size or cost that isn't positive.
    """
    if any(size <= 0 or cost <= 0 for size, cost in points) or len({size for size, _ in points}) < 2:
        raise ValueError(f"an order needs two sizes with positive costs: {list(points)}")
    sizes, costs = ([math.log(value) for value in values] for values in zip(*points, strict=True))
    middle, level = sum(sizes) / len(sizes), sum(costs) / len(costs)
    order = sum((x - middle) * (y - level) for x, y in zip(sizes, costs, strict=True)) / sum(
        (x - middle) ** 2 for x in sizes
    )
    return Growth(order, math.exp(level - order * middle))


def steepest(points: Sequence[Point]) -> float:
    """The greatest order between two neighbouring sizes: a fixed cost can't hide there what the largest size does."""
    ordered = sorted(points)
    return max(growth(pair).order for pair in pairwise(ordered))
