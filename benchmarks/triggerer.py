"""Benchmark 5, triggerer: 10, 100 and 1,000 deferred jobs on one of Airflow's triggerers, against a stand-in Jobs API.

The stand-in answers after latencies recorded on a real cluster, and some questions not at all. Ours and the floor poll each
30 s; what happens to the peer when an answer never comes is measured apart, since its triggerer then stands still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from airflow_provider.core.waiting import SILENCE_TO_TELL_S
from benchmarks.fit import growth
from benchmarks.latency import origin
from benchmarks.machine import this_machine
from benchmarks.measure import (
    MeasurementFailed,
    Sample,
    alternating_with_peers,
    complete_rounds,
    figure,
    measured,
    number,
    raw,
)
from benchmarks.options import Options
from benchmarks.plot import Lines, Series
from benchmarks.report import Cell, Column, Goal, Report
from benchmarks.stand_in import RunningStandIn
from benchmarks.stand_in_cluster import FIRST_HANG, Settings
from benchmarks.triggerer_sides import FLOOR, FULL, PEER, Side, airflow_home, in_triggerer

HANGS_EACH = 100
MB_OF_MIB = 1.048576
LINE_EACH_S = 30.0
SIGNS_SURE = 20
"""So many reads of signs of life are expected in a window before few of them are taken for a fault."""
LEAST_CPU_PCT = 0.01
"""What the jobs' CPU is taken for where it drowns in that of an idle triggerer: a growth needs positive costs."""
SIDES = (FULL, FLOOR, PEER)
OF_BOTH = "of the triggerer (its runner and its supervisor)"
COLUMNS = (
    Column("side", "trigger"),
    Column("jobs", "jobs"),
    Column("cpu_pct", f"CPU {OF_BOTH}", "% of a core"),
    Column("runner_cpu_pct", "of that the runner", "% of a core"),
    Column("grown_mib", f"peak memory {OF_BOTH} over an empty one", "MiB"),
    Column("rss_mib", "peak memory in all", "MiB"),
    Column("requests_per_s", "status requests", "1/s"),
    Column("bucket_per_s", "bucket requests", "1/s"),
    Column("block_ms", "worst block", "ms"),
    Column("block_cpu_ms", "its own CPU", "ms"),
    Column("collection_ms", "longest garbage collection", "ms"),
    Column("start_block_ms", "worst block at start", "ms"),
    Column("end_block_ms", "worst block at the ends", "ms"),
    Column("resume_s", "end to resume, median", "s"),
    Column("resume_worst_s", "end to resume, worst", "s"),
    Column("resumed", "resumed"),
)
Samples = Mapping[tuple[str, int], Sequence[Sample] | str]
"""By side and number of jobs; a text says why there are none."""


def run(options: Options) -> Report:
    """Measure all sides at all sizes."""
    machine, repeats = this_machine(), options.repeats(3)
    sizes = options.choose((10, 100, 1000), (5, 20))
    poll_s, window_s = options.choose((30.0, 30.0), (2.0, 6.0))
    samples: dict[tuple[str, int], Sequence[Sample] | str] = {}
    for size in sizes:
        turns = {side.name: partial(measure, side, size, poll_s=poll_s, window_s=window_s) for side in SIDES}
        found = alternating_with_peers(turns, {PEER.name: turns.pop(PEER.name)}, repeats)
        samples |= {(name, size): one for name, one in found.items()}
    hung = _hung(sizes[-1] if options.quick else 100, min(poll_s, 5.0))
    return Report(
        name="triggerer",
        title=f"Deferred jobs on one triggerer, polled each {poll_s:g} s",
        machine=machine,
        columns=COLUMNS,
        rows=[_row(side, size, samples[side.name, size]) for size in sizes for side in SIDES],
        goals=goals(samples, sizes[-1], poll_s),
        notes=(*_notes(), _growth(samples, sizes), hung, *_early(samples)),
        plots=_plots(samples, sizes),
        rounds=complete_rounds(samples),
        is_quick=options.quick,
        extra={"samples": {f"{side}/{size}": raw(found) for (side, size), found in samples.items()}},
    )


def measure(side: Side, size: int, *, poll_s: float, window_s: float, hangs_each: int | None = None) -> Sample:
    """One side at one size, once. The peer is spared what never answers unless asked for."""
    each = hangs_each if hangs_each is not None else 0 if side is PEER else HANGS_EACH
    settings = Settings(hangs_each=each, log={"num_lines": 10**6, "began": time.time(), "each_s": LINE_EACH_S})
    # An answer that never comes is given up after half a minute.
    limit_s = 2 * poll_s + 60
    with RunningStandIn(settings) as cluster, airflow_home() as env:
        found = in_triggerer(
            side,
            cluster.url,
            env=env,
            poll_s=poll_s,
            timeout_s=60 + window_s + 2 * poll_s + 2 * limit_s,
            num_jobs=size,
            window_s=window_s,
            settle_s=2 * poll_s,
            # When each is asked is spread already.
            spread_s=poll_s / 6,
            limit_s=limit_s,
            idle_s=min(5.0, poll_s / 2),
        )
    if side is FULL and size * window_s > SIGNS_SURE * SILENCE_TO_TELL_S:
        expected = size / SILENCE_TO_TELL_S
        if found["bucket_per_s"] < expected / 2:
            raise MeasurementFailed(
                f"{found['bucket_per_s']:.2f} reads of the bucket a second, not about {expected:.2f}: theirs is not the work of a real trigger"
            )
    return found


def goals(samples: Samples, size: int, poll_s: float) -> list[Goal]:
    """The requirement's goals, on what a user gets by default: with the log."""
    ours = measured(samples[FULL.name, size])
    where = f"{size} jobs, {poll_s:g} s poll"
    block = max(figure(ours, name).high for name in ("block_ms", "end_block_ms"))
    start, grown, whole = (figure(ours, name).high for name in ("start_block_ms", "grown_mib", "rss_mib"))
    memory = f"{where}: peak memory {OF_BOTH} over an empty one, in any round"
    in_memory = Goal.below(memory, grown * MB_OF_MIB, 200, "MB")
    return [
        Goal.below(f"{where}: CPU {OF_BOTH}", figure(ours, "cpu_pct").median, 10, "% of a core"),
        Goal.below(f"{where}: worst block of the event loop once all run, until all have ended", block, 100, "ms"),
        Goal.below(f"{where}: worst block of the event loop at the start", start, 100, "ms"),
        replace(in_memory, measured=f"{in_memory.measured}, {number(whole * MB_OF_MIB)} MB in all"),
        Goal.at_least(f"{where}: tasks resumed in each round", figure(ours, "resumed").low, size),
    ]


def _growth(samples: Samples, sizes: Sequence[int]) -> str:
    def cpu_of_jobs(one: Sample) -> float:
        return max(LEAST_CPU_PCT, one["cpu_pct"] - one["idle_cpu_pct"])

    # The smallest size is left out: what a job costs drowns there in what the process costs, and the order would look better than it is.
    large = sizes[1:] if len(sizes) > 2 else sizes

    def order(cost: Callable[[Sample], float]) -> float:
        points = [(size, median(cost(one) for one in measured(samples[FULL.name, size]))) for size in large]
        return growth(points).order

    return (
        f"Ours grows from {large[0]} to {large[-1]} jobs: CPU over an idle triggerer's to the power of {order(cpu_of_jobs):.2f} of the jobs, "
        f"memory to that of {order(lambda one: one['grown_mib']):.2f}."
    )


def _early(samples: Samples) -> list[str]:
    """Which triggers said something else than that their job has ended."""
    rounds = [
        (name, size, one) for (name, size), found in samples.items() if not isinstance(found, str) for one in found
    ]
    return [
        f"{name} with {size} jobs: {one['early']:.0f} events did not tell the job's end, and count as not resumed; the first: {one['first_early']}."
        for name, size, one in rounds
        if one.get("early")
    ]


def _hung(size: int, poll_s: float) -> str:
    """What an answer that never comes does to the peer, in a sentence."""
    try:
        found = measure(PEER, size, poll_s=poll_s, window_s=2 * poll_s, hangs_each=HANGS_EACH // 5)
    except MeasurementFailed as error:
        return f"{PEER.title} with {size} jobs and each {HANGS_EACH // 5}th answer never coming: {error}."
    return (
        f"{PEER.title} with {size} jobs polled each {poll_s:g} s, each {HANGS_EACH // 5}th answer never coming: {found['resumed']:.0f} of {size} tasks "
        f"resumed, {found['requests_per_s']:.2f} requests a second. Its client asks without a time-out, on the event loop."
    )


def _row(side: Side, size: int, found: Sequence[Sample] | str) -> dict[str, Cell]:
    row: dict[str, Cell] = {"side": side.title, "jobs": str(size)}
    if isinstance(found, str):
        return row | {"cpu_pct": found}
    keys = [column.key for column in COLUMNS[2:] if all(column.key in one for one in found)]
    return row | {key: figure(found, key) for key in keys}


def _notes() -> tuple[str, ...]:
    return (
        (
            "Measured are both processes of a triggerer: the runner, in which the triggers run, and the supervisor, which writes each line of a "
            "task log. Airflow's own work is in it (its loop each second, a connection for each trigger); an empty triggerer's memory is "
            "subtracted where the title says so. Pages that both processes share count twice in the memory in all."
        ),
        (
            "The worst block is the longest time from one look at the sockets to the next; its own CPU is what a busy machine can't add. A full "
            "garbage collection of the interpreter, which goes through all that Airflow has loaded, is such a block on each side. "
            "At the start triggers are imported and all begin at once; the window begins two poll intervals after that, so it shows a steady state."
        ),
        f"Each job writes a line each {LINE_EACH_S:g} s. The {FIRST_HANG}th question for a status and each {HANGS_EACH}th after it are never answered, the peer's excepted.",
        f"The stand-in's latencies: {origin()}.",
        (
            "The peer asks for its connection in tasks that it makes itself, where Airflow 3.3.2's triggerer doesn't answer a blocking "
            "question: with a connection kept in Airflow its trigger fails. Here it has one in the environment."
        ),
        "Only ours reads the bucket: the driver's sign of life, each five minutes for each job, and both records behind each question without an answer.",
    )


def _plots(samples: Samples, sizes: Sequence[int]) -> tuple[Lines, ...]:
    def series(name: str) -> list[Series]:
        able = [side for side in SIDES if not any(isinstance(samples[side.name, size], str) for size in sizes)]
        return [
            Series(side.name, [(size, figure(measured(samples[side.name, size]), name)) for size in sizes])
            for side in able
        ]

    return (
        Lines(
            "CPU of the triggerer, its runner and its supervisor", "deferred jobs", "% of a core", series("cpu_pct"), 10
        ),
        Lines("Memory over an empty triggerer", "deferred jobs", "MiB", series("grown_mib"), 200 / MB_OF_MIB),
    )
