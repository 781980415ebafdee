"""From `execute` to RUNNING, against one raw POST of the same runtime environment, with up to 10,000 checkpoints behind the task."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider.core.identity import TaskInstanceKey
from benchmarks import submit_sides
from benchmarks.fit import growth
from benchmarks.machine import this_machine
from benchmarks.measure import MeasurementFailed, Sample, Spread, alternating, complete_rounds, figure, run_python
from benchmarks.options import ROOT, Options
from benchmarks.peers import ASTRO, GOOGLE, OURS, PLAIN, Installed, install
from benchmarks.plain_jobs import TRAINING, stop_all
from benchmarks.plot import Bar, Bars, Lines, Plot, Series
from benchmarks.report import Cell, Column, Goal, Report
from benchmarks.seeded_experiment import BUCKET, SeededExperiment
from tests.stack.services import Stack
from tests.support.fake_airflow import RUN_ID

MAX_CALLS, MAX_OWN_S = 16, 1.0
_SIDES_FILE = Path(submit_sides.__file__)
_IDENTITY = "i1"
"""The DAG run's mark in the stand-in for Airflow's state store."""

COLUMNS = (
    Column("side", "side"),
    Column("checkpoints", "checkpoints behind"),
    Column("own_s", "execute to POST", "s"),
    Column("ray_s", "POST to RUNNING", "s"),
    Column("running_s", "execute to RUNNING", "s"),
    Column("calls", "object-store calls"),
)
NOTES = (
    (
        "Each side runs in a fresh interpreter that has imported its operator, as a task's process has once the DAG is parsed; what `execute` "
        "imports itself is in its time. Airflow's own API (XCom, state store) is a stand-in that answers at once."
    ),
    "The time of the POST is Ray's own (`start_time` of the job). RUNNING is seen by a poll every 20 ms.",
    (
        "All sides send the same runtime environment: the same packages, already on the cluster, and one variable that differs each time, since "
        "Ray caches an environment that it has built. Ours also packs and uploads its package, which holds the attempt's spec."
    ),
    "The others keep nothing of a training, so what lies behind it costs them nothing.",
)


def run(options: Options) -> Report:
    """Measure on a cluster and an S3 server of their own, without an Airflow."""
    state, sizes = this_machine(), options.choose((0, 100, 1_000, 10_000), (0, 100, 1_000))
    rounds = options.repeats(5)
    peers = [install(peer) for peer in (PLAIN, ASTRO, GOOGLE)]  # before anything is up that pip would slow down
    with Stack(parts=("s3", "ray")) as stack:
        stack.s3.create_bucket(BUCKET)
        ours = {size: _ours(stack, size) for size in sizes}
        calls = {size: int(side.counted()) for size, side in ours.items()}
        others, problems = _others(stack, peers, body=ours[sizes[-1]].posted_body())
        sides = {_name(size): side.measure for size, side in ours.items()} | others
        samples = alternating({name: _alone(stack, side) for name, side in sides.items()}, rounds)
    found = Measured(calls, samples, problems)
    return Report(
        name="submit",
        title="from execute to RUNNING",
        machine=state,
        columns=COLUMNS,
        rows=found.rows(),
        goals=found.goals(),
        notes=(*NOTES, f"Own work grows with the checkpoints to the power of {found.order:.2f}."),
        plots=found.plots(),
        rounds=complete_rounds(samples),
        is_quick=options.quick,
        extra={"order_of_own_work": found.order},
    )


@dataclass(frozen=True)
class Measured:
    """All that the report is made of."""

    calls: Mapping[int, int]
    """Of ours to the store, by the number of checkpoints behind."""
    samples: Mapping[str, Sequence[Sample]]
    problems: Mapping[str, str]
    """Why a peer could not be measured."""

    @property
    def most(self) -> int:
        """The largest number of checkpoints."""
        return max(self.calls)

    @property
    def points(self) -> list[tuple[float, Spread]]:
        """Own work by the number of checkpoints."""
        return [(float(size), figure(self.samples[_name(size)], "own_s")) for size in self.calls if size]

    @property
    def order(self) -> float:
        """How own work grows with them."""
        return growth([(size, cost.median) for size, cost in self.points]).order

    @property
    def others(self) -> list[str]:
        """The sides that are not ours."""
        return [name for name in self.samples if name not in {_name(size) for size in self.calls}]

    def rows(self) -> list[Mapping[str, Cell]]:
        """Ours by size, the floor, the peers."""
        ours = [
            {"side": OURS.title, "checkpoints": size, "calls": num, **_times(self.samples[_name(size)])}
            for size, num in self.calls.items()
        ]
        others = [{"side": name, **_times(self.samples[name])} for name in self.others]
        return [*ours, *others, *({"side": title, "running_s": why} for title, why in self.problems.items())]

    def goals(self) -> list[Goal]:
        """With the most checkpoints behind."""
        behind = f"with {self.most:,} checkpoints behind"
        own = figure(self.samples[_name(self.most)], "own_s").median
        return [
            Goal.below(f"own work before the POST, {behind}", own, MAX_OWN_S, "s"),
            Goal.at_most(f"object-store calls, {behind}", self.calls[self.most], MAX_CALLS),
        ]

    def plots(self) -> list[Plot]:
        """Growth, and the way to RUNNING side by side."""
        bars = [Bar(name, figure(self.samples[name], "running_s")) for name in (_name(self.most), *self.others)]
        bars += [Bar(title, None, why) for title, why in self.problems.items()]
        lines = [Series("ours", self.points)]
        return [
            Lines("own work before the POST", "checkpoints behind the task", "s", lines, MAX_OWN_S),
            Bars("execute to RUNNING", "s", bars),
        ]


def _name(size: int) -> str:
    return f"ours, {size:,} behind"


@dataclass
class Ours:
    """The second try of a task whose first one failed; with nothing behind, the first try."""

    stack: Stack
    experiment: SeededExperiment

    def measure(self) -> Sample:
        """One try."""
        return self._run(is_counted=False)

    def counted(self) -> float:
        """The calls that a try makes to the store before it defers; not timed."""
        found = self._run(is_counted=True)
        stop_all(self.stack.ray)
        return found["store_calls"]

    def posted_body(self) -> dict[str, Any]:
        """What ours posted last, with an entrypoint that does nothing."""
        jobs = json.loads(self.stack.ray.get("/api/jobs/"))
        newest = max((job for job in jobs if job["submission_id"]), key=lambda job: int(job["start_time"]))
        return {"entrypoint": "sleep 60", "runtime_env": newest["runtime_env"]}

    def _run(self, *, is_counted: bool) -> dict[str, float]:
        # The job's id is made from it, and Ray knows the ones of the rounds before.
        run_id, ray = f"round-{uuid.uuid4().hex}", self.stack.ray
        if self.experiment.num_checkpoints:
            self.experiment.reset(run_id, address=ray.address, session_name=ray.session_name())
            name = self.experiment.prefix.partition("/")[2]
        else:
            name = f"first-{uuid.uuid4().hex[:8]}"  # a first try finds nothing
        given = {
            "storage_path": f"s3://{BUCKET}/{self.experiment.prefix.partition('/')[0]}",
            "experiment_name": name,
            "working_dir": str(TRAINING),
            "try_number": 2 if self.experiment.num_checkpoints else 1,
            "run_id": run_id,
            "is_counted": is_counted,
        }
        return _asked(OURS.name, self.stack, given, env={"PYTHONPATH": str(ROOT)})


def _ours(stack: Stack, size: int) -> Ours:
    key = TaskInstanceKey("d", RUN_ID, "train")
    experiment = SeededExperiment(stack.s3, f"submit/behind-{size}", key, _IDENTITY, size)
    if size:
        experiment.seed(address=stack.ray.address, session_name=stack.ray.session_name())
    return Ours(stack, experiment)


def _others(
    stack: Stack, peers: Sequence[Installed], *, body: Mapping[str, Any]
) -> tuple[dict[str, Callable[[], Sample]], dict[str, str]]:
    """The floor and the peers by the name they have in the table, and why some can't be measured."""
    found: dict[str, Callable[[], Sample]] = {"one raw POST": lambda: _posting("raw", stack, body)}
    problems: dict[str, str] = {}
    for peer in peers:
        if peer.problem:
            problems[peer.peer.title] = peer.problem
            continue

        def measure(installed: Installed = peer) -> Sample:
            return _posting(installed.peer.name, stack, body, python=installed.python)

        try:
            _alone(stack, measure)()
        except MeasurementFailed as error:
            problems[peer.peer.title] = f"can't submit here: {error}"
        else:
            found[peer.peer.title] = measure
    return found, problems


def _posting(side: str, stack: Stack, body: Mapping[str, Any], *, python: Path | None = None) -> Sample:
    """A side that posts this body, its environment made new by a variable."""
    environment = dict(body["runtime_env"])
    environment["env_vars"] = {**environment.get("env_vars", {}), "BENCHMARK_ROUND": uuid.uuid4().hex}
    return _asked(side, stack, {"body": {**body, "runtime_env": environment}}, python=python)


def _asked(
    side: str,
    stack: Stack,
    given: Mapping[str, Any],
    *,
    python: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Run one side in a fresh interpreter."""
    asked = {"address": stack.ray.address, "token": stack.ray.token, **given}
    # The postponed annotations must stand first, and are not needed there.
    text = _SIDES_FILE.read_text(encoding="utf-8").replace("from __future__ import annotations", "")
    code = f"{text}\nanswer(**{side}(json.loads({json.dumps(json.dumps(asked))})))"
    connections = {f"AIRFLOW_CONN_{name.upper()}": value for name, value in stack.airflow_connections().items()}
    cluster = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": stack.ray.token}
    return run_python(python or sys.executable, code, env={**connections, **cluster, **(env or {})}, timeout_s=300)


def _alone(stack: Stack, side: Callable[[], Sample]) -> Callable[[], Sample]:
    """The side, and nothing of it left on the cluster for the next one."""

    def measured() -> Sample:
        try:
            return side()
        finally:
            stop_all(stack.ray)

    return measured


def _times(samples: Sequence[Sample]) -> dict[str, Cell]:
    return {name: figure(samples, name) for name in ("own_s", "ray_s", "running_s")}
