"""The table of recoveries: one row for each fault and side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from benchmarks.machine import Machine
from benchmarks.measure import Sample, Spread, figure, spread
from benchmarks.plot import Bar, Bars
from benchmarks.report import Cell, Column, Goal, Report, shown
from benchmarks.shares import AIRFLOW, AWAY, DECIDE, DETECT, RESTORE, START

DRIVER_DEFAULT = "driver, at the default poll of 10 s"
FAULTS = ("training worker", "driver", DRIVER_DEFAULT, "head", "Airflow worker", "triggerer")
AIRFLOW_SIDE = ("Airflow worker", "triggerer")
SIDES = {"ours": "ours", "floor": "Ray alone", "peer": "Ray's client in a Python task, retried"}
LIMIT_S, AIM_S = 2.0, 1.0

COLUMNS = (
    Column("fault", "killed"),
    Column("side", "side"),
    Column("total", "to the first new step", "s"),
    Column(DETECT, "detect", "s"),
    Column(DECIDE, "decide", "s"),
    Column(START, "start", "s"),
    Column(RESTORE, "restore", "s"),
    Column(AIRFLOW, "Airflow's scheduling", "s"),
    Column(AWAY, "head away", "s"),
    Column("lost", "training time lost", "s"),
)
NOTES = (
    (
        "Training on two workers, a step every 0.2 s, a checkpoint every 3 s; SIGKILL, and nothing is restarted by the benchmark but the head "
        "(at once) and the triggerer (after 5 s)."
    ),
    (
        "The shares are read from what the product writes anyway (phases, claims, outcomes, the task's log), from Ray's job, and from a file to "
        "which the training tells each step. The restore share ends with the first new step, so it holds that step."
    ),
    (
        "The share \u201cdecide\u201d begins where Airflow calls the operator and holds its imports and connections; what lies before (process, parsing "
        "of the DAG) is Airflow's. With retry_delay=1 s and, but in the row that says otherwise, poll_interval_s=1. At the default of 10 s the end of the streamed log tells of the driver's death, which Ray makes one or two of its looks, of a second each, after it."
    ),
    (
        "Ray alone: a lost worker is Ray's own to replace (max_failures=20); for a driver or head, a job of the same run name is posted at the "
        "very moment of the death, or of the head's return. Nobody could know it then: it is a floor, not a way to run. Ours loses its driver where "
        "the task is deferred, its head where it waits in its worker."
    ),
    (
        "The peer is Ray's own client (ray.job_submission) in a Python task under the same Airflow, polled and retried after a second as ours is. "
        "Its first new step is the first of all again: the last column holds what it lost. astro-provider-ray 0.4.0 and the Google provider "
        "were not run here: they submit a new job of another id too and tell it nothing of the last one; their polls are 60 s and 5 s apart. "
        "Nor was the peer's with a lost training worker or head: with max_failures Ray replaces the first for it as for anybody."
    ),
    (
        "What becomes of a peer's task where only Airflow's process dies was not run: after a lost triggerer astro's trigger polls on, as ours does; "
        "after a lost Airflow worker a retry submits a second job while the first trains on."
    ),
    (
        "Starting a job is bound by the CPU here: Ray's processes want both cores from the POST to the first step. What runs beside them "
        "lengthens \u201cstart\u201d on either side: the end of the try, its next trigger and our driver's own imports on ours; on the floor, which posts "
        "at the moment of the kill, the old attempt's processes as they die."
    ),
    "Airflow's scheduling holds the pause between two tries (retry_delay) of 1 s. What a log does not tell is never booked to it.",
    "A lost head is believed lost after lost_after_s (30 s by default), since its nodes may train on for a while.",
)


def report(samples: Mapping[str, Sequence[Sample]], *, state: Machine, rounds: int, is_quick: bool) -> Report:
    """All that was measured, and the goals."""
    rows = [row(fault, side, samples[side]) for fault, side in product(FAULTS, SIDES)]
    above = above_floor(samples, "driver")
    own = spread([one[f"driver.{DETECT}"] + one[f"driver.{DECIDE}"] for one in samples["ours"]])
    lost = [figure(samples["ours"], f"{fault}.lost").high for fault in AIRFLOW_SIDE]
    return Report(
        name="recovery",
        title="from SIGKILL to the first new training step",
        machine=state,
        columns=COLUMNS,
        rows=[one for one in rows if one is not None],
        goals=[
            Goal.below(
                "a lost driver at a poll of 1 s: ours above Ray's floor, without Airflow's scheduling",
                above.median,
                LIMIT_S,
                "s",
            ),
            Goal.at_most("a lost driver, as aimed at", above.median, AIM_S, "s"),
            Goal.below("a lost driver: detecting and deciding, by the split", own.median, LIMIT_S, "s"),
            Goal.at_most("training time lost to a death of Airflow's worker or triggerer, at worst", max(lost), 0, "s"),
        ],
        notes=(
            *NOTES,
            (
                f"Above the floor a driver's death took ours {shown(above)} s without Airflow's scheduling; detecting and deciding {shown(own)} s. "
                "What is more or less is the start, which varies on either side."
            ),
        ),
        plots=[
            Bars(
                "to the first new step, without Airflow's scheduling",
                "s",
                [
                    Bar(f"{fault}: {side}", without_airflow(samples[side], fault), color=[*SIDES].index(side))
                    for fault, side in product(FAULTS[:4], SIDES)
                    if f"{fault}.total" in samples[side][0]
                ],
            )
        ],
        rounds=rounds,
        is_quick=is_quick,
        extra={"samples": {side: [dict(one) for one in found] for side, found in samples.items()}},
    )


def row(fault: str, side: str, samples: Sequence[Sample]) -> dict[str, Cell] | None:
    """One side's recovery from one fault, or None where it was not measured."""
    if f"{fault}.total" not in samples[0]:
        return None
    cells: dict[str, Cell] = {"fault": fault, "side": SIDES[side]}
    for column in COLUMNS[2:]:
        found = figure(samples, f"{fault}.{column.key}")
        cells[column.key] = found if found.high or column.key in {"total", "lost"} else None
    if fault in AIRFLOW_SIDE:
        cells["side"] = f"{SIDES[side]} (training goes on: until it is watched again)"
    return cells


def without_airflow(samples: Sequence[Sample], fault: str) -> Spread:
    """The whole recovery, less what Airflow alone takes."""
    return spread([one[f"{fault}.total"] - one[f"{fault}.{AIRFLOW}"] for one in samples])


def above_floor(samples: Mapping[str, Sequence[Sample]], fault: str) -> Spread:
    """Our share above what Ray takes, round by round."""
    pairs = zip(samples["ours"], samples["floor"], strict=True)
    return spread(
        [ours[f"{fault}.total"] - ours[f"{fault}.{AIRFLOW}"] - floor[f"{fault}.total"] for ours, floor in pairs]
    )
