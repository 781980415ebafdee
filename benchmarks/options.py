"""What a benchmark is told about its run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
"""Measured on a quiet machine, kept in the repository, shown by docs/benchmarks.md."""
SCRATCH = ROOT / ".make" / "bench"
"""Environments of the peers, and whatever else a benchmark may leave; never kept in the repository."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Options:
    """One run of one benchmark."""

    quick: bool = False
    """Small sizes, to see that the benchmark works on a busy machine. Its figures mean nothing and go elsewhere."""
    num_repeats: int | None = None
    """Rounds that a person asked for."""

    @property
    def results(self) -> Path:
        """Where JSON and plot go: a quick run must not replace what was measured."""
        return SCRATCH / "quick" if self.quick else RESULTS

    def repeats(self, usual: int) -> int:
        """Rounds to measure: as asked for, else two in a quick run, else what the benchmark needs."""
        return self.num_repeats or (2 if self.quick else usual)

    def choose(self, usual: T, quick: T) -> T:
        """A size or a list of sizes by the kind of run."""
        return quick if self.quick else usual
