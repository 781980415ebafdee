"""Benchmark 1, import: what the operator costs whoever loads a DAG file, beside airflow.sdk alone and the peers.

Airflow's DAG processor forks a process for each file and each time it parses it, so what an operator imports is paid again and again;
each Airflow worker pays it for each task. Measured is the import in a fresh interpreter, the parse of many files in one process, and
the parse of each file in a fork, by the DAG processor's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.import_sides import HOME, Side
from benchmarks.machine import this_machine
from benchmarks.measure import Sample, Spread, alternating, complete_rounds, difference, figure
from benchmarks.options import Options
from benchmarks.peers import ASTRO, GOOGLE, OURS, PLAIN, Installed, install
from benchmarks.plot import Bar, Bars
from benchmarks.report import Cell, Column, Goal, Report

TIMES_LESS = 20
"""As many times less than astro-provider-ray adds is the goal."""

COLUMNS = (
    Column("side", "side"),
    Column("import_ms", "import", "ms"),
    Column("cpu_ms", "its CPU time", "ms"),
    Column("import_mib", "import", "MiB"),
    Column("modules", "modules"),
    Column("together_ms", "a file of many in one process", "ms"),
    Column("together_mib", "that process", "MiB"),
    Column("forked_ms", "a file in a fork", "ms"),
    Column("forked_mib", "that fork", "MiB"),
)

Samples = Mapping[str, Sequence[Sample]]
"""By side."""


def run(options: Options) -> Report:
    """Measure all sides."""
    machine, repeats = this_machine(), options.repeats(9)
    num_files, num_forked = options.choose(200, 10), options.choose(20, 2)
    HOME.mkdir(parents=True, exist_ok=True)
    found = [install(peer) for peer in (OURS, PLAIN, GOOGLE, ASTRO)]
    sides = [Side(one) for one in found if not one.problem]
    floors = [Side(side.installed, is_floor=True) for side in sides if side.installed.peer is not PLAIN]
    for side in [*sides, *floors]:
        side.write_files(num_files)
        side.import_it()  # from here on it is compiled and in the page cache, for all sides alike
    imports = alternating({side.name: side.import_it for side in sides}, repeats)
    together = alternating(_each([*sides, *floors], lambda side: side.parse_together(num_files)), repeats)
    forked = alternating(_each([*sides, *floors], lambda side: side.parse_forked(num_forked)), repeats)
    return Report(
        name="import",
        title=f"Importing the operator, and parsing {num_files} DAG files that use it, over airflow.sdk alone",
        machine=machine,
        columns=COLUMNS,
        rows=[_floor_row(imports, together, forked), *(_row(one, imports, together, forked) for one in found)],
        goals=goals(imports),
        notes=_notes(num_files, num_forked),
        plots=_plots(found, imports, forked),
        rounds=complete_rounds(imports, together, forked),
        is_quick=options.quick,
    )


def goals(imports: Samples) -> list[Goal]:
    """The requirement's goals for what an import adds; a peer that couldn't be measured leaves its goal unmet."""
    ours = imports[OURS.name]
    seconds, mib = figure(ours, "s").median, figure(ours, "mib").median
    times = dict.fromkeys(("s", "mib"), None) if ASTRO.name not in imports else _times_less(imports)
    theirs = f"what {ASTRO.packages[0].replace('==', ' ')} adds, as a multiple of ours"
    return [
        Goal.below("import of the operator, time over airflow.sdk", seconds * 1000, 100, "ms"),
        Goal.below("import of the operator, memory over airflow.sdk", mib * 1.048576, 10, "MB"),
        Goal.at_least(f"time: {theirs}", times["s"], TIMES_LESS),
        Goal.at_least(f"memory: {theirs}", times["mib"], TIMES_LESS),
    ]


def _times_less(imports: Samples) -> dict[str, float | None]:
    """Round by round, so that a busy moment slows both."""
    pairs = list(zip(imports[ASTRO.name], imports[OURS.name], strict=True))
    return {
        name: figure([{name: theirs[name] / max(ours[name], 1e-9)} for theirs, ours in pairs], name).median
        for name in ("s", "mib")
    }


def _each(sides: Sequence[Side], measured: Callable[[Side], Sample]) -> dict[str, Callable[[], Sample]]:
    return {side.name: partial(measured, side) for side in sides}


def _floor_row(imports: Samples, together: Samples, forked: Samples) -> dict[str, Cell]:
    ours, floor = imports[OURS.name], f"floor of {OURS.name}"
    return {
        "side": "airflow.sdk alone, in full",
        "import_ms": figure(ours, "floor_s").times(1000),
        "cpu_ms": figure(ours, "floor_cpu_s").times(1000),
        "import_mib": figure(ours, "floor_mib"),
        "modules": figure(ours, "floor_modules"),
        "together_ms": figure(together[floor], "s").times(1000),
        "together_mib": figure(together[floor], "mib"),
        "forked_ms": figure(forked[floor], "s").times(1000),
        "forked_mib": figure(forked[floor], "mib"),
    }


def _row(one: Installed, imports: Samples, together: Samples, forked: Samples) -> dict[str, Cell]:
    side = f"+ {one.peer.title}"
    if one.problem:
        return {"side": side, "import_ms": one.problem}
    name = one.peer.name
    # Ray's own client is measured in our environment, which has one floor.
    floor = f"floor of {OURS.name if one.peer is PLAIN else name}"
    return {
        "side": side,
        "import_ms": figure(imports[name], "s").times(1000),
        "cpu_ms": figure(imports[name], "cpu_s").times(1000),
        "import_mib": figure(imports[name], "mib"),
        "modules": figure(imports[name], "modules"),
        "together_ms": difference(together[name], together[floor], "s").times(1000),
        "together_mib": difference(together[name], together[floor], "mib"),
        "forked_ms": difference(forked[name], forked[floor], "s").times(1000),
        "forked_mib": difference(forked[name], forked[floor], "mib"),
    }


def _notes(num_files: int, num_forked: int) -> tuple[str, ...]:
    rows = (
        "The first row is `from airflow.sdk import DAG, BaseOperator` and a DAG with a bare operator; each other row is what "
        "comes on top of that, in the same rounds and the same environment. A figure below zero is noise around nothing."
    )
    memory = "Memory is the growth of the peak resident set in a fresh interpreter; of a fork, the growth of its resident set."
    files = (
        f"{num_files} files of one DAG with one task in one process, and {num_forked} of them each in a fork, by the DAG "
        "processor's own function: import, validation, serialization. The DAG processor forks for each file, each time it "
        "parses it."
    )
    google = (
        "Modules named airflow.* are imported by Airflow's DAG processor before it forks: Google's operator is one, so its "
        "forks pay nothing for it, and the DAG processor keeps it in memory."
    )
    return rows, memory, files, google


def _plots(found: Sequence[Installed], imports: Samples, forked: Samples) -> tuple[Bars, ...]:
    def bars(value: Callable[[str], Spread]) -> list[Bar]:
        return [
            Bar(one.peer.operator, None if one.problem else value(one.peer.name), one.problem[:60]) for one in found
        ]

    def in_fork(name: str) -> Spread:
        floor = f"floor of {OURS.name if name == PLAIN.name else name}"
        return difference(forked[name], forked[floor], "s").times(1000)

    return (
        Bars("Import, time over airflow.sdk", "ms", bars(lambda name: figure(imports[name], "s").times(1000))),
        Bars("Import, memory over airflow.sdk", "MiB", bars(lambda name: figure(imports[name], "mib"))),
        Bars("Parse of a DAG file in a fork, time over a bare operator", "ms", bars(in_fork)),
    )
