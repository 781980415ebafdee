"""Benchmark 7, lineage: reading and projecting the records of many checkpoints, and what recording costs the training.

Read from a real S3 server on this machine: the calls tell what a distant one would add.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

from airflow_provider.storage.object_store import open_object_store
from benchmarks.fit import growth
from benchmarks.lineage_experiment import NUM_ATTEMPTS, NUM_FILES, experiment
from benchmarks.machine import this_machine
from benchmarks.measure import Sample, Spread, alternating, complete_rounds, figure, run_python
from benchmarks.options import ROOT, SCRATCH, Options
from benchmarks.peers import OURS, install
from benchmarks.plot import Lines, Series
from benchmarks.report import Cell, Column, Goal, Report
from tests.stack.gate import Gate, Seen
from tests.stack.process import LOOPBACK
from tests.stack.s3 import S3Server
from tests.support.stored_experiment import write_experiment

HANG_S = 5.0
LEAST = 0.01
"""The least that a plot shows."""
READING = {
    "ours": "ours: read, check, project",
    "raw": "floor: the same objects, JSON parsed",
    "ray_alone": "plain Ray: its manifest alone",
}
RECORDING = {
    "without": "not recorded (floor)",
    "healthy": "recorded",
    "slow": f"recorded, each request hangs {HANG_S:g} s",
    "away": "recorded, the store is away",
}
COLUMNS = (
    Column("what", "what"),
    Column("checkpoints", "checkpoints"),
    Column("calls", "store calls"),
    Column("ms", "time", "ms"),
    Column("mib", "memory", "MiB"),
    Column("xcom_ms", "its XCom", "ms"),
    Column("report_ms", "a report", "ms"),
    Column("longest_report_ms", "longest report", "ms"),
    Column("step_ms", "a step", "ms"),
    Column("recorded", "recorded meanwhile"),
)

Samples = Mapping[str, Sequence[Sample]]


def run(options: Options) -> Report:
    """Measure reading, then recording."""
    machine = this_machine()
    sizes = options.choose((100, 1_000, 10_000), (100, 1_000))
    num_steps, step_s = options.choose((20, 1.0), (20, 0.1))
    read_rounds, step_rounds = options.repeats(9), options.repeats(5)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=SCRATCH, prefix="lineage-") as folder, _server(Path(folder)) as server:
        reading = alternating(_reading_sides(server, sizes), read_rounds)
        with Gate(server.port) as gate:
            recording = alternating(_recording_sides(server, gate, Path(folder), num_steps, step_s), step_rounds)
    return Report(
        name="lineage",
        title=f"Reading the lineage of up to {sizes[-1]:,} checkpoints, and recording it",
        machine=machine,
        columns=COLUMNS,
        rows=[*_reading_rows(reading, sizes), *_recording_rows(recording, num_steps)],
        goals=[*reading_goals(reading, sizes), *recording_goals(recording, step_s=1.0)],
        notes=_notes(num_steps, step_s, complete_rounds(recording)),
        plots=_plots(reading, sizes),
        rounds=complete_rounds(reading),
        is_quick=options.quick,
        extra={"orders": {one: _order(reading, sizes, one) for one in ("s", "mib", "calls")}},
    )


def reading_goals(reading: Samples, sizes: Sequence[int]) -> list[Goal]:
    """Goals for the largest size, and for the growth up to it."""
    most = reading[_key("ours", sizes[-1])]
    seconds, mib = figure(most, "s").median, figure(most, "mib").median
    named = f"{sizes[-1]:,} checkpoints"
    return [
        Goal.below(f"read and project {named}", seconds, 1, "s"),
        Goal.below(f"memory for {named}", mib * 1.048576, 50, "MB"),
        *(
            # A little over 1 for the noise of a linear cost.
            Goal.at_most(f"order of growth of {what} from {sizes[-2]:,} on", _order(reading, sizes, name), 1.05)
            for what, name in (("time", "s"), ("memory", "mib"), ("store calls", "calls"))
        ),
    ]


def recording_goals(recording: Samples, *, step_s: float) -> list[Goal]:
    """Goals for a report's cost on the training's own thread; what stalled it would be its longest report."""
    part = figure(recording["healthy"], "report_s").median / step_s * 100
    longest = {name: figure(recording[name], "longest_report_s").high * 1000 for name in ("slow", "away")}
    return [
        Goal.below("a report's recording, of a 1 s step", part, 1, "%"),
        Goal.below(
            f"longest report in any round while each store request hangs {HANG_S:g} s", longest["slow"], 10, "ms"
        ),
        Goal.below("longest report in any round while the store is away", longest["away"], 10, "ms"),
    ]


@contextmanager
def _server(folder: Path) -> Iterator[S3Server]:
    server = S3Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _key(side: str, size: int) -> str:
    return f"{side} {size}"


def _reading_sides(server: S3Server, sizes: Sequence[int]) -> dict[str, Callable[[], Sample]]:
    python = install(OURS).python
    env = {**server.env(), "PYTHONPATH": str(ROOT), "AIRFLOW_HOME": str(SCRATCH / "import" / "airflow")}
    sides: dict[str, Callable[[], Sample]] = {}
    for size in sizes:
        uri = f"s3://models/lineage/{size}"
        write_experiment(open_object_store(uri, client_factory=server.client), experiment(uri, size))
        for side in READING:
            code = f"from benchmarks.lineage_reading import {side}\nanswer(**{side}({uri!r}))"
            sides[_key(side, size)] = partial(run_python, python, code, env=env)
    return sides


def _recording_sides(
    server: S3Server, gate: Gate, folder: Path, num_steps: int, step_s: float
) -> dict[str, Callable[[], Sample]]:
    python = install(OURS).python
    env = {**server.env(), "PYTHONPATH": str(ROOT)}
    endpoint = f"http://{LOOPBACK}:{gate.port}"

    def side(name: str) -> Sample:
        # A place of its own: what a side left behind in the gate must not be taken for the next one's.
        uri = f"s3://models/recording/{uuid.uuid4().hex[:8]}"
        gate.on_answer = partial(_fault, gate, name, uri)
        call = f"recorded({uri!r}, {endpoint!r}, {str(folder)!r}, {num_steps}, {step_s})"
        if name == "without":
            call = f"without({num_steps}, {step_s})"
        # The thread may hang in a request: the interpreter must not wait for it.
        code = f"import os\nfrom benchmarks.lineage_recording import *\nanswer(**{call})\nos._exit(0)"
        try:
            return run_python(python, code, env=env)
        finally:
            gate.on_answer = None
            gate.open()

    return {name: partial(side, name) for name in RECORDING}


def _fault(gate: Gate, name: str, uri: str, seen: Seen) -> None:
    """After the driver's first sign of life there, the store is what the side is named for."""
    if seen.method != "PUT" or uri.removeprefix("s3:/") not in seen.target:
        return
    gate.on_answer = None
    if name == "slow":
        gate.delay_s = HANG_S
    elif name == "away":
        Timer(0.2, gate.refuse).start()  # once this answer has left


def _order(reading: Samples, sizes: Sequence[int], name: str) -> float:
    """Between the two largest sizes, where the fixed cost hides least."""
    # What is too small to be seen counts as little, not as nothing, which has no logarithm.
    least = {"s": 1e-3, "mib": 0.5, "calls": 1.0}[name]
    return growth([(size, max(figure(reading[_key("ours", size)], name).median, least)) for size in sizes[-2:]]).order


def _reading_rows(reading: Samples, sizes: Sequence[int]) -> Iterator[dict[str, Cell]]:
    for side, title in READING.items():
        for size in sizes:
            samples = reading[_key(side, size)]
            yield {
                "what": title,
                "checkpoints": size,
                "calls": figure(samples, "calls"),
                "ms": figure(samples, "s").times(1000),
                "mib": figure(samples, "mib"),
                "xcom_ms": figure(samples, "xcom_s").times(1000) if side == "ours" else None,
            }


def _recording_rows(recording: Samples, num_steps: int) -> Iterator[dict[str, Cell]]:
    for side, title in RECORDING.items():
        samples = recording[side]
        yield {
            "what": title,
            "checkpoints": num_steps,
            "report_ms": figure(samples, "report_s").times(1000),
            "longest_report_ms": figure(samples, "longest_report_s").times(1000),
            "step_ms": figure(samples, "step_s").times(1000),
            "recorded": figure(samples, "recorded"),
        }


def _notes(num_steps: int, step_s: float, rounds: int) -> tuple[str, ...]:
    shape = (
        f"Reading: {NUM_ATTEMPTS} attempts that restored one another, {NUM_FILES} files a checkpoint, retention off, so that each "
        "manifest lists all checkpoints so far. In a fresh interpreter, with boto3 loaded and the connection open; the S3 "
        "server is on this machine, so each call costs little: a bucket 20 ms away adds 20 ms for each."
    )
    peers = "No peer keeps a lineage; plain Ray's manifest has names and metrics of what was kept, which is less than is asked."
    steps = (
        f"Recording: {num_steps} steps of {step_s:g} s, each with a report that commits a checkpoint; {rounds} rounds. Hooks, "
        "recording thread and training share one interpreter here; in a job they are three processes. The store is slow or "
        "away from the driver's second request on; what was not recorded meanwhile is completed later, from the manifest."
    )
    upload = "Uploading a checkpoint is Ray's, and waits for the store with or without us unless the loop uploads asynchronously."
    return shape, peers, steps, upload


def _plots(reading: Samples, sizes: Sequence[int]) -> tuple[Lines, ...]:
    def point(side: str, size: int, name: str, factor: float) -> tuple[float, Spread]:
        found = figure(reading[_key(side, size)], name).times(factor)
        # What is too small to be seen has no logarithm: it lies on the axis.
        return size, Spread(*(max(value, LEAST) for value in (found.median, found.low, found.high)))

    def series(name: str, factor: float) -> list[Series]:
        return [
            Series(title.split(":")[0], [point(side, size, name, factor) for size in sizes])
            for side, title in READING.items()
        ]

    return (
        Lines("Read and project: time", "checkpoints", "ms", series("s", 1000), limit=1000),
        Lines("Read and project: memory", "checkpoints", "MiB", series("mib", 1), limit=50 / 1.048576),
    )
