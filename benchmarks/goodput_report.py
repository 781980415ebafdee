"""The table of goodput: each side under each rate of faults, beside the bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.fault_plan import DRIVER, WORKER
from benchmarks.faulty_life import Life
from benchmarks.goodput_bound import Bound, Costs
from benchmarks.machine import Machine
from benchmarks.measure import Spread, spread
from benchmarks.plot import Bar, Bars
from benchmarks.report import Cell, Column, Goal, Report, number
from tests.chaos.verdict import Verdict

TITLES = {"ours": "ours", "plain": "Ray alone, posted again by hand", "peer": "Ray's client in a Python task, retried"}
GOAL = 97.0

COLUMNS = (
    Column("mtbf", "mean time between faults", "training minutes"),
    Column("steps", "steps"),
    Column("side", "side"),
    Column("faults", "faults: worker + driver"),
    Column("wall", "to the last step", "s"),
    Column("bound", "bound", "s"),
    Column("goodput", "goodput", "%"),
    Column("of_bound", "of the bound", "%"),
    Column("without_airflow", "the same without Airflow's scheduling", "%"),
    Column("repeated", "steps repeated"),
    Column("double", "double commits"),
    Column("lost", "commits lost"),
)


@dataclass(frozen=True)
class Outcome:
    """One training of one side."""

    side: str
    mtbf: float
    seed: int
    life: Life
    num_repeated: int
    is_right: bool
    """Whether the last number is that of an unharmed training."""
    verdict: Verdict | None = None
    airflow_s: float = 0.0
    own_goodput: float | None = None
    """As our result says it."""

    @property
    def num_double(self) -> int:
        """Commits of an attempt after a newer one had restored."""
        return len(self.verdict.double) if self.verdict else 0

    @property
    def num_lost(self) -> int:
        """Commits that the next attempt did not go on from."""
        return len(self.verdict.lost) if self.verdict else 0


Bounds = Mapping[tuple[float, int], Bound]


@dataclass(frozen=True)
class Setting:
    """Where and how it was measured."""

    state: Machine
    steps: Mapping[float, int]
    """By the mean time between faults, as the rounds."""
    rounds: Mapping[float, int]
    """Those that each side came through."""
    is_quick: bool


def report(outcomes: Sequence[Outcome], bounds: Bounds, costs: Costs, setting: Setting) -> Report:
    """All that was measured, and the goals."""
    groups = {(o.mtbf, o.side): [p for p in outcomes if (p.mtbf, p.side) == (o.mtbf, o.side)] for o in outcomes}
    ours = [o for o in outcomes if o.side == "ours"]
    worst = min((of_bound(o, bounds) for o in ours if o.life.is_finished), default=None)
    apart = min((of_bound(o, bounds, less_s=o.airflow_s) for o in ours if o.life.is_finished), default=None)
    is_all = all(o.life.is_finished and o.is_right for o in ours)
    others = [sentence for o in ours if o.verdict for sentence in o.verdict.other]
    lengths = " or ".join(str(num) for num in sorted({*setting.steps.values()}))
    return Report(
        name="goodput",
        title=f"{lengths} steps to the same end under seeded faults",
        machine=setting.state,
        columns=COLUMNS,
        rows=[row(found, bounds) | {"steps": setting.steps[mtbf]} for (mtbf, _), found in groups.items()],
        goals=[
            Goal.at_least("goodput, of the bound, at worst", worst if is_all else None, GOAL, "%"),
            Goal.at_least("the same without Airflow's scheduling", apart if is_all else None, GOAL, "%"),
            Goal.at_most("double commits", judged(ours, sum(o.num_double for o in ours)), 0),
            Goal.at_most("committed checkpoints lost", judged(ours, sum(o.num_lost for o in ours)), 0),
            Goal.at_most("anything else that a chaos run would report", judged(ours, len(others)), 0),
        ],
        notes=[*notes(costs, landing(outcomes, bounds)), *exceptions(outcomes, others, setting)],
        plots=[
            Bars(
                f"goodput of the bound at a fault every {mtbf:g} training minutes",
                "%",
                [bar(side, groups[mtbf, side], bounds) for side in TITLES if (mtbf, side) in groups],
            )
            for mtbf in dict.fromkeys(o.mtbf for o in outcomes)
        ],
        rounds=min(setting.rounds.values()),
        is_quick=setting.is_quick,
        extra={
            "costs": {
                "first_start_s": costs.first_start_s,
                "cadence_s": costs.cadence_s,
                "restart_s": dict(costs.restart_s),
                "commit_lag_s": costs.commit_lag_s,
            },
            "goodput_by_our_records": {f"{o.mtbf:g}/{o.seed}": o.own_goodput for o in ours},
        },
    )


def judged(ours: Sequence[Outcome], num_found: int) -> int | None:
    """What the judge found, or None where he did not see all: nothing found would else look like nothing wrong."""
    return num_found if ours and all(o.verdict for o in ours) else None


def landing(outcomes: Sequence[Outcome], bounds: Bounds) -> str:
    """How far Ray alone is from the bound: what the estimate is worth."""
    found = [of_bound(o, bounds) for o in outcomes if o.side == "plain" and o.life.is_finished]
    if not found:
        return "Ray alone did not come to its end"
    return f"Ray alone lands at {number(min(found))} to {number(max(found))} % of it"


def of_bound(outcome: Outcome, bounds: Bounds, *, less_s: float = 0.0) -> float:
    """Percent of the goodput that the bound allows; the work is the same, so it is a ratio of times."""
    return 100 * bounds[outcome.mtbf, outcome.seed].wall_s / (outcome.life.wall_s - less_s)


def row(outcomes: Sequence[Outcome], bounds: Bounds) -> dict[str, Cell]:
    """One side under one rate of faults."""
    first = outcomes[0]
    found = [bounds[o.mtbf, o.seed] for o in outcomes]
    counts = (_mean([sum(s.target == t for s in o.life.struck) for o in outcomes]) for t in (WORKER, DRIVER))
    cells: dict[str, Cell] = {
        "mtbf": first.mtbf,
        "side": TITLES[first.side],
        "faults": " + ".join(number(count) for count in counts),
        "bound": spread([one.wall_s for one in found]),
        "repeated": spread([float(o.num_repeated) for o in outcomes]),
    }
    if not all(o.life.is_finished for o in outcomes):
        return cells | {"wall": f"not finished after {max(o.life.wall_s for o in outcomes):.0f} s"}
    cells |= {
        "wall": spread([o.life.wall_s for o in outcomes]),
        "goodput": spread([100 * one.productive_s / o.life.wall_s for o, one in zip(outcomes, found, strict=True)]),
        "of_bound": _of_bound(outcomes, bounds),
    }
    if first.side != "plain":
        cells["without_airflow"] = spread([of_bound(o, bounds, less_s=o.airflow_s) for o in outcomes])
    if first.side == "ours":
        cells["double"] = sum(o.num_double for o in outcomes)
        cells["lost"] = sum(o.num_lost for o in outcomes)
    return cells


def bar(side: str, outcomes: Sequence[Outcome], bounds: Bounds) -> Bar:
    """One side in the plot."""
    if not all(o.life.is_finished for o in outcomes):
        return Bar(TITLES[side], None, "not finished")
    return Bar(TITLES[side], _of_bound(outcomes, bounds))


def notes(costs: Costs, landed: str) -> list[str]:
    """What a reader must know."""
    restarts = ", ".join(f"{target} {seconds:.1f} s" for target, seconds in costs.restart_s.items())
    return [
        (
            "bound = first start + steps x cadence + for each fault (restart of what died + steps that no commit had yet x cadence), each measured "
            f"on plain Ray in the same run: first start {costs.first_start_s:.1f} s, cadence {costs.cadence_s:.3f} s, restart of a {restarts}, a commit {costs.commit_lag_s:.1f} s after its step (Ray's controller looks every 2 s). "
            f"Nobody detects, decides or schedules in it. Its parts are medians, so it is an estimate and no limit: {landed}."
        ),
        (
            "Two workers, a step every 0.25 s, a checkpoint every 10 steps. Faults kill the training worker or the driver, decided by the seed alone; "
            "the mean time between them is counted in steps taken, repeated ones too, so each side meets the same plan."
        ),
        (
            "The time is counted from the moment at which Airflow calls the operator, or the job is posted. A real training is longer than these, so "
            "its first start weighs less. The n-th round of a rate has the n-th seed, from 1 on, whose plan loses a driver before the last step: each "
            "training meets at least one lost driver, so at 5 minutes it meets more than its rate says."
        ),
        (
            "Ray alone ends at the first lost driver: for each of them the same job is posted again at that very moment, which a person would have to "
            "know. Its double commits and lost ones aren't counted: its manifest has no attempts."
        ),
        (
            "The peer is Ray's own client in a Python task under the same Airflow, polled and retried after a second as ours is. Its retry begins from "
            "scratch in a run of another name, as do those of astro-provider-ray 0.4.0 and of the Google provider; inside a job it has the same max_failures."
        ),
    ]


def exceptions(outcomes: Sequence[Outcome], others: Sequence[str], setting: Setting) -> list[str]:
    """What went otherwise than it should have."""
    wrong = [o for o in outcomes if o.life.is_finished and not o.is_right]
    fewer = [mtbf for mtbf, num in setting.rounds.items() if num != max(setting.rounds.values())]
    return [
        *(f"Found by the judge of the chaos runs: {sentence}" for sentence in others),
        *(
            f"Came to its last step with another number than an unharmed training: {TITLES[o.side]}, a fault every {o.mtbf:g} minutes, seed {o.seed}."
            for o in wrong
        ),
        *(f"Complete rounds at a fault every {mtbf:g} minutes: {setting.rounds[mtbf]}." for mtbf in fewer),
    ]


def _of_bound(outcomes: Sequence[Outcome], bounds: Bounds) -> Spread:
    return spread([of_bound(o, bounds) for o in outcomes])


def _mean(counts: Sequence[int]) -> float:
    return sum(counts) / len(counts)
