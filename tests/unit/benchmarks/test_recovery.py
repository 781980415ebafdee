"""Recoveries played with made-up marks, logs and phases: each second in the right share, and the goals read off."""

from __future__ import annotations

from typing import Any, cast

import pytest

from airflow_provider.core.records import Phase
from benchmarks.machine import Machine
from benchmarks.recovery import figures
from benchmarks.recovery_cuts import (
    Seen,
    cuts_of_attaching,
    cuts_of_new_attempt,
    cuts_of_new_triggerer,
    cuts_of_plain,
    cuts_of_restarted_workers,
)
from benchmarks.recovery_report import FAULTS, SIDES, above_floor, report, row
from benchmarks.shares import AIRFLOW, AWAY, DECIDE, DETECT, RESTORE, START, split
from benchmarks.step_marks import Mark
from benchmarks.task_log import END_OF_GROUP, PRE_EXECUTE, Line

OLD = [Mark(97.0, "step", 4, 1), Mark(98.0, "reported", 4, 1), Mark(99.0, "step", 5, 1)]
NEW = [
    Mark(121.0, "loop", None, 2),
    Mark(122.0, "restored", 4, 2),
    Mark(122.5, "step", 5, 2),
    Mark(123.0, "step", 6, 2),
]
PHASES = [
    (Phase.STARTING, 113.0),
    (Phase.RESTORING, 115.0),
    (Phase.STARTING, 116.0),
    (Phase.WAITING, 117.0),
    (Phase.TRAINING, 120.0),
]
FIRST_LOG = [
    Line(90.0, PRE_EXECUTE),
    Line(91.0, END_OF_GROUP),
    Line(102.0, "Trigger fired event {}"),
    Line(104.0, PRE_EXECUTE),
    Line(105.0, END_OF_GROUP),
    Line(106.0, "Task failed with exception {}"),
]
SECOND_LOG = [Line(109.0, PRE_EXECUTE), Line(110.0, END_OF_GROUP), Line(112.5, "submitted x")]


def shares(cuts: Any, begin: float = 100.0) -> dict[str, float]:
    return {name: seconds for name, seconds in split(cuts, begin=begin).items() if seconds}


def test_a_lost_driver() -> None:
    seen = Seen(100.0, [*OLD, *NEW], before=FIRST_LOG, after=SECOND_LOG, phases=PHASES, posted_at=112.0)
    assert shares(cuts_of_new_attempt(seen)) == {
        DETECT: 2.0,  # until the trigger fired
        AIRFLOW: 3.0 + 4.0,  # the resume, and the next try
        DECIDE: 1.0 + 2.0,  # to the failure, and to the POST
        START: 3.0 + 5.0,  # Ray's job and our driver, then its workers
        RESTORE: 1.0 + 1.5,  # the manifest, then loading and the first step
    }


def test_a_lost_head_counts_from_its_return_and_a_blocked_worker_needs_no_resume() -> None:
    log = [Line(90.0, PRE_EXECUTE), Line(91.0, END_OF_GROUP), Line(108.0, "Task failed with exception {}")]
    seen = Seen(100.0, [*OLD, *NEW], before=log, after=SECOND_LOG, phases=PHASES, posted_at=112.0, back_at=103.0)
    found = shares(cuts_of_new_attempt(seen))
    assert (found[AWAY], found[DETECT], found[AIRFLOW], found[DECIDE]) == (3.0, 5.0, 2.0, 2.0)


def test_a_lost_training_worker() -> None:
    phases = [(Phase.TRAINING, 90.0), (Phase.LOST, 101.5), (Phase.WAITING, 102.0), (Phase.TRAINING, 120.0)]
    seen = Seen(100.0, [*OLD, *NEW], phases=phases)
    assert shares(cuts_of_restarted_workers(seen)) == {DETECT: 1.5, DECIDE: 0.5, START: 19.0, RESTORE: 1.5}


def test_deaths_on_airflows_side() -> None:
    log = [Line(109.0, PRE_EXECUTE), Line(110.0, END_OF_GROUP), Line(111.0, "g1/a1 is RUNNING: attaching to job x")]
    assert shares(cuts_of_attaching(Seen(100.0, OLD, after=log))) == {AIRFLOW: 10.0, DECIDE: 1.0}
    log = [
        Line(99.0, "trigger d/r/t starting"),
        Line(115.0, "trigger d/r/t starting"),
        Line(117.0, "the job is RUNNING"),
    ]
    assert shares(cuts_of_new_triggerer(Seen(100.0, OLD, after=log))) == {AIRFLOW: 15.0, DECIDE: 2.0}


def test_plain_ray() -> None:
    assert shares(cuts_of_plain(Seen(100.0, [*OLD, *NEW], posted_at=100.5))) == {DETECT: 0.5, START: 20.5, RESTORE: 1.5}
    assert shares(cuts_of_plain(Seen(100.0, [*OLD, *NEW]))) == {START: 21.0, RESTORE: 1.5}


def test_figures_of_a_death_that_no_training_noticed() -> None:
    marks = [Mark(90.0 + n / 2, "step", n, 1) for n in range(60)]
    log = [Line(109.0, PRE_EXECUTE), Line(110.0, END_OF_GROUP), Line(111.0, "attaching to job x")]
    found = figures("Airflow worker", seen := Seen(100.0, marks, after=log), cuts_of_attaching(seen))
    assert [found[f"Airflow worker.{name}"] for name in ("total", "lost")] == [11.0, 0.0]


def test_figures_of_replaced_workers() -> None:
    found = figures("driver", seen := Seen(100.0, [*OLD, *NEW], posted_at=100.5), cuts_of_plain(seen))
    assert found["driver.total"] == 22.5
    assert found["driver.lost"] == pytest.approx(23.0 - 99.0 + 100.0 - 1.25)


# --- the table ---------------------------------------------------------------------------------------------------------


def sample(*faults: str, total: float, airflow: float = 0.0, lost: float = 0.0) -> dict[str, float]:
    names = (DETECT, DECIDE, START, RESTORE, AWAY)
    return {
        f"{fault}.{name}": value
        for fault in faults
        for name, value in {**dict.fromkeys(names, 0.0), "total": total, AIRFLOW: airflow, "lost": lost}.items()
    }


SAMPLES = {
    "ours": [sample(*FAULTS, total=30.0, airflow=6.0), sample(*FAULTS, total=26.0, airflow=3.0)],
    "floor": [sample("training worker", "driver", "head", total=22.5)] * 2,
    "peer": [sample("driver", total=40.0), sample("driver", total=40.0)],
}


def test_airflows_scheduling_is_no_share_of_ours() -> None:
    found = above_floor(SAMPLES, "driver")
    assert (found.low, found.high) == (0.5, 1.5)


def test_goals_and_rows() -> None:
    found = report(SAMPLES, state=cast("Machine", {}), rounds=2, is_quick=True)
    assert [goal.is_met for goal in found.goals] == [True, True, True, True]
    assert len(found.rows) == 6 + 3 + 1, "what was not measured has no row"
    assert row("triggerer", "floor", SAMPLES["floor"]) is None
    lost = {**SAMPLES, "ours": [SAMPLES["ours"][0] | {"triggerer.lost": 0.4}, SAMPLES["ours"][1]]}
    assert [g.is_met for g in report(lost, state=cast("Machine", {}), rounds=2, is_quick=True).goals] == [
        True,
        True,
        True,
        False,
    ]
    assert set(SIDES) == set(SAMPLES)
