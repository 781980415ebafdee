"""Benchmark 6, logs: 100 MB of a training's log through a triggerer into the task log, cut three times; and 300 tails at once.

Counted are the bytes and connections that the stand-in serves, and the lines in the task log's file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.fit import growth
from benchmarks.log_text import CHARS_OF_A_LINE, step_of
from benchmarks.machine import this_machine
from benchmarks.measure import (
    MeasurementFailed,
    Sample,
    alternating_with_peers,
    complete_rounds,
    difference,
    figure,
    measured,
)
from benchmarks.options import Options
from benchmarks.plot import Bar, Bars, Lines, Series
from benchmarks.report import Cell, Column, Goal, Report
from benchmarks.stand_in import RunningStandIn
from benchmarks.stand_in_cluster import Settings
from benchmarks.triggerer_sides import FLOOR_LOG, FULL, PEER, QUIET, Side, airflow_home, in_triggerer

AT_ONCE, LINE_EACH_S = 200_000, 1.0
"""Of each of many logs: bytes there from the beginning, and how it grows then."""
CUTS = (0.25, 0.5, 0.75)
"""Where the connection is cut, as parts of the log."""
NUM_PAUSES = 2
"""Of each of many jobs, between two of its polls."""
MB = 1_000_000
COLUMNS = (
    Column("side", "trigger"),
    Column("log_mb", "log", "MB"),
    Column("connections", "log connections"),
    Column("fetched", "fetched, times the log"),
    Column("missing", "lines missing"),
    Column("repeated", "lines repeated"),
    Column("grown_mib", "peak memory over an empty triggerer", "MiB"),
    Column("cpu_s", "CPU", "s"),
    Column("block_ms", "worst block", "ms"),
    Column("mean_gap_s", "between two polls, mean", "s"),
    Column("longest_gap_s", "longest between two polls", "s"),
    Column("resumed", "resumed"),
)
SIZES = {"shortest": 100, "short": 10, "cut": 1}
"""The sides with three cuts, and what part of the log each has."""
ONE_LOG = ("cut", "short", "uncut", "floor", "peer_cut", "peer_uncut")
"""The sides with the log of one job."""
Samples = Mapping[str, Sequence[Sample] | str]


def run(options: Options) -> Report:
    """Measure all."""
    machine, repeats = this_machine(), options.repeats(3)
    num_lines = options.choose(100, 1) * MB // CHARS_OF_A_LINE
    num_tails, poll_s = options.choose((300, 30.0), (10, 2.0))
    sides = {
        "floor": partial(one_log, FLOOR_LOG, num_lines, cuts=()),
        "uncut": partial(one_log, FULL, num_lines, cuts=()),
        **{name: partial(one_log, FULL, num_lines // part, cuts=CUTS) for name, part in SIZES.items()},
        "tails": partial(many_logs, FULL, num_tails, poll_s=poll_s),
        "no_tails": partial(many_logs, QUIET, num_tails, poll_s=poll_s),
    }
    peers = {
        "peer_cut": partial(one_log, PEER, num_lines, cuts=CUTS),
        "peer_uncut": partial(one_log, PEER, num_lines, cuts=()),
    }
    samples = alternating_with_peers(sides, peers, repeats)
    return Report(
        name="logs",
        title=f"A log of {num_lines * CHARS_OF_A_LINE / MB:.0f} MB into the task log, and {num_tails} growing logs at once",
        machine=machine,
        columns=COLUMNS,
        rows=[_row(title, samples[name]) for name, title in _titles(num_tails).items()],
        goals=goals(samples, poll_s, num_tails),
        notes=(*_notes(), _growth(samples)),
        plots=(
            Bars("Bytes fetched, times the log", "", [_bar(name, samples[name], "fetched") for name in ONE_LOG]),
            _over_size(f"CPU for a log with {len(CUTS)} cuts", "s", "cpu_s", samples),
            _over_size("Peak memory over an empty triggerer", "MiB", "grown_mib", samples),
        ),
        rounds=complete_rounds(samples),
        is_quick=options.quick,
    )


def one_log(side: Side, num_lines: int, *, cuts: Sequence[float]) -> Sample:
    """One job, whose log of so many lines is there from the beginning."""
    size = num_lines * CHARS_OF_A_LINE
    settings = Settings(log={"num_lines": num_lines}, cuts_at=[int(size * part) for part in cuts])
    with RunningStandIn(settings) as cluster, airflow_home() as env:
        # Ten thousand lines a second is what a busy machine does.
        limit_s = 45 + num_lines / 1000
        found = in_triggerer(
            side, cluster.url, env=env, poll_s=2.0, timeout_s=3 * limit_s, num_jobs=1, limit_s=limit_s, spread_s=1.0
        )
        lines = lines_of(env, num_lines)
        sent = cluster.counts()
    # The peer's trigger ends at its first cut.
    if side is FULL and sent["cuts_ever"] != len(cuts):
        raise MeasurementFailed(f"{sent['cuts_ever']} connections were cut where {len(cuts)} were to be")
    return {
        **found,
        **lines,
        "log_mb": size / MB,
        "connections": sent["tails_ever"],
        "fetched": sent["log_bytes_ever"] / size,
    }


def lines_of(env: Mapping[str, str], num_lines: int, *, number: int = 1) -> Sample:
    """How often each line stands in the task log."""
    seen: Counter[int] = Counter()
    path = Path(env["AIRFLOW__LOGGING__BASE_LOG_FOLDER"]) / f"task_{number}.log"
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            seen.update(step for line in file if (step := step_of(line)) is not None)
    return {"missing": num_lines - len(seen), "repeated": sum(seen.values()) - len(seen)}


def many_logs(side: Side, num_tails: int, *, poll_s: float) -> Sample:
    """So many jobs, each with 200 kB of log there from the beginning and a line each second from then on."""
    log = {"num_lines": 10**6, "num_at_once": AT_ONCE // CHARS_OF_A_LINE, "began": time.time(), "each_s": LINE_EACH_S}
    # Each job's first two pauses and the rest of the one in which the window begins, of up to 1.2 polls each, and 0.9 for one that is late.
    settings, window_s = Settings(log=log, pauses_of_each=NUM_PAUSES), (NUM_PAUSES + 2.5) * poll_s
    with RunningStandIn(settings) as cluster, airflow_home() as env:
        limit_s = window_s + (240 if poll_s > 10 else 40)
        found = in_triggerer(
            side,
            cluster.url,
            env=env,
            poll_s=poll_s,
            timeout_s=3 * limit_s,
            num_jobs=num_tails,
            window_s=window_s,
            spread_s=poll_s,
            limit_s=limit_s,
        )
    if (num_gaps := found.get("num_gaps", 0)) < NUM_PAUSES * num_tails:
        raise MeasurementFailed(f"{num_gaps} of {NUM_PAUSES * num_tails} pauses ended within {window_s:g} s")
    due = num_tails * CHARS_OF_A_LINE / LINE_EACH_S
    if side is FULL and found["log_bytes_per_s"] < due / 2:
        # Polls that nothing is streamed beside would show nothing.
        raise MeasurementFailed(f"{found['log_bytes_per_s']:.0f} bytes of log a second came where {due:.0f} were due")
    return found


def goals(samples: Samples, poll_s: float, num_tails: int) -> list[Goal]:
    """The requirement's goals for ours."""

    def worst(name: str, *sides: str) -> float:
        return max(figure(measured(samples[side]), name).high for side in sides)

    def worst_growth(name: str, side: str, over: str) -> float:
        return difference(measured(samples[side]), measured(samples[over]), name).high

    grown = worst_growth("grown_mib", "cut", "short")
    mean, longest = (worst_growth(name, "tails", "no_tails") for name in ("mean_gap_s", "longest_gap_s"))
    ours, fetched = ("uncut", *SIZES), worst("fetched", "cut")
    return [
        Goal.at_most("fetched with three cuts, times the log, at worst", fetched, 1 + len(CUTS)),
        Goal.at_most("the same, by where it was cut: each replay ends there", fetched, sum(CUTS) + 1.01),
        Goal.at_most("connections with three cuts", worst("connections", "cut"), 1 + len(CUTS)),
        Goal.at_most("fetched without a cut, times the log, at worst", worst("fetched", "uncut"), 1.01),
        Goal.at_most("lines missing in any round", worst("missing", *ours), 0),
        Goal.at_most("lines repeated in any round", worst("repeated", *ours), 0),
        Goal.at_most("memory of the whole log over that of a tenth of it, at worst", grown, 10, "MiB"),
        Goal.at_most("many tails: the mean pause between two polls grows by, at worst", mean, 0.02 * poll_s, "s"),
        Goal.at_most("many tails: the longest pause between two polls grows by, at worst", longest, 0.1 * poll_s, "s"),
        Goal.at_least(
            "many tails: tasks resumed in each round", figure(measured(samples["tails"]), "resumed").low, num_tails
        ),
    ]


def _growth(samples: Samples) -> str:
    def order(name: str) -> float:
        sides = [measured(samples[side]) for side in SIZES]
        return growth([(figure(side, "log_mb").median, figure(side, name).median) for side in sides]).order

    return (
        f"With {len(CUTS)} cuts, from a hundredth of the log to the whole: CPU grows to the power of {order('cpu_s'):.2f} of the log, "
        f"memory to that of {order('grown_mib'):.2f}."
    )


def _titles(num_tails: int) -> dict[str, str]:
    return {
        "cut": f"{FULL.title}, cut {len(CUTS)} times",
        "shortest": f"{FULL.title}, a hundredth of the log, cut {len(CUTS)} times",
        "short": f"{FULL.title}, a tenth of the log, cut {len(CUTS)} times",
        "uncut": FULL.title,
        "floor": FLOOR_LOG.title,
        "peer_cut": f"{PEER.title}, cut {len(CUTS)} times",
        "peer_uncut": PEER.title,
        "tails": f"{FULL.title}, {num_tails} logs of {AT_ONCE / MB:g} MB that grow",
        "no_tails": f"{QUIET.title}, {num_tails} jobs",
    }


def _row(title: str, found: Sequence[Sample] | str) -> dict[str, Cell]:
    if isinstance(found, str):
        return {"side": title, "log_mb": found}
    keys = [column.key for column in COLUMNS[1:] if all(column.key in one for one in found)]
    return {"side": title} | {key: figure(found, key) for key in keys}


def _over_size(title: str, unit: str, key: str, samples: Samples) -> Lines:
    points = [(figure(found, "log_mb").median, figure(found, key)) for found in (measured(samples[s]) for s in SIZES)]
    return Lines(title, "log [MB]", unit, [Series(FULL.name, points)])


def _bar(name: str, found: Sequence[Sample] | str, key: str) -> Bar:
    return Bar(name, None, found[:60]) if isinstance(found, str) else Bar(name, figure(found, key))


def _notes() -> tuple[str, ...]:
    return (
        (
            "Ray's log has no offset: each connection begins at the start, so each reconnect fetches again what was shown before. "
            "Fetched are the bytes that the stand-in sent, the read of the file after the job's end included."
        ),
        (
            f"Each of the many logs has {AT_ONCE / MB:g} MB at once and a line each {LINE_EACH_S:g} s from then on. The mean pause between polls is that of each job's first "
            f"{NUM_PAUSES} whole ones once all were polled; the longest counts those too that had not ended where the jobs' ends begin."
        ),
        "A cut connection ends the peer's trigger, and what it has not shown by then is never shown.",
    )
