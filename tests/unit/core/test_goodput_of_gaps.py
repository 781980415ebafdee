"""Goodput from records that say less: of older releases, of killed drivers, and by clocks that differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.goodput import Goodput, goodput
from airflow_provider.core.records import RecordSegment, RestartEntry
from tests.support.time_story import HEALTHY, a_try, alive, at, attempt, name, parts, segment, story


def account(*parts_of_story: Any, now: float = 10_000) -> Goodput:
    return goodput(story(*parts_of_story), now=at(now))


def test_records_without_phases_say_what_they_can() -> None:
    """An older release: between commits it trained, unless it restarted there; the rest is unknown, and called so."""
    failure = Failure(kind=FailureKind.INFRASTRUCTURE, reason="node lost")
    restart = RestartEntry(failure=failure, decision="Ray: restarting", at=at(95))
    commits = {name(1, n): 30 + 20 * n for n in range(1, 6)}  # 50 to 130
    old = attempt(
        1,
        claimed=2,
        ended=("failed", 150),
        restored=None,
        segments=(segment(commits=commits, restarts=(restart,)),),
    )
    began = attempt(1, claimed=2, phases=[("waiting", 15)]).restored
    found = account(a_try(1, 0), replace(old, restored=began))
    assert parts(found.total) == {"queueing": 15, "productive": 40 + 20, "unaccounted": 35 + 20 + 20}
    success = replace(old, restored=began, outcome=attempt(1, claimed=2, ended=("success", 150)).outcome)
    assert parts(account(a_try(1, 0), success).total)["productive"] == 40 + 20 + 20


def test_phases_that_a_ray_does_not_tell_are_no_wait_for_nodes() -> None:
    """A Ray that moved its callbacks: the driver knows only that it waits for the fit's end."""
    phases = [("starting", 10), ("restoring", 12), ("waiting", 15), ("finishing", 118)]
    run = attempt(1, claimed=2, phases=phases, commits={name(1, 1): 60, name(1, 2): 110}, ended=("success", 120))
    assert parts(account(a_try(1, 0), run).total) == {
        "queueing": 10,
        "start_up": 5,
        "unaccounted": 45,
        "productive": 60,
    }


def test_a_commit_whose_time_nobody_recorded_leaves_the_end_open() -> None:
    """It was found later: somewhere after the last recorded one, the training stopped being rework."""
    late = replace(segment(commits={name(1, 2): 500}).checkpoints[0], late=True)
    run = attempt(
        1,
        claimed=2,
        phases=HEALTHY,
        noticed=("failed", 95),
        segments=(segment(HEALTHY, {name(1, 1): 60}), RecordSegment(checkpoints=(late,), written_at=at(500))),
        alive=alive("training", 20, written=90),
    )
    assert parts(account(a_try(1, 0), run).total) == {
        "queueing": 10,
        "start_up": 5,
        "waiting": 5,
        "productive": 40,
        "unaccounted": 30,
        "detection": 5,
    }


def test_a_claim_without_a_trace_of_a_driver_is_unaccounted() -> None:
    found = account(a_try(1, 0), attempt(1, claimed=2), a_try(2, 300), attempt(2, claimed=302), now=310)
    assert parts(found.total) == {"unaccounted": 300, "queueing": 10}


# --- clocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [-3_600.0, -30.0, 0.0, 200.0, 9_000.0])
def test_a_drivers_clock_never_changes_what_it_did(skew: float) -> None:
    """What lies between its own records stays; only the wait before its first record takes up the difference."""
    first = attempt(1, claimed=2, phases=HEALTHY, commits={name(1, 1): 60}, ended=("failed", 75), skew=skew)
    second = attempt(2, claimed=312, phases=[("starting", 320), ("waiting", 321)], restored=name(1, 1))
    found = account(a_try(1, 0), first, a_try(2, 300), second, now=330).attempts[0].spent
    kept = {one: seconds for one, seconds in parts(found).items() if one not in {"queueing", "retrying"}}
    assert kept == {"start_up": 5, "waiting": 5, "productive": 40, "rework": 15}
    assert found.wall_s == (312 if skew > 1_000 else 300), "at the latest it ended as the next attempt was claimed"
