"""Every second of a training is productive or has one cause; the examples show each cause, the properties that none is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.goodput import (
    Cause,
    Goodput,
    TimeSpent,
    combined,
    goodput,
    goodput_sentence,
    goodput_xcom,
    in_words,
)
from airflow_provider.core.lineage import AttemptRecords
from tests.support.time_story import HEALTHY, a_try, alive, at, attempt, name, parts, story


def account(*parts_of_story: Any, now: float = 10_000) -> Goodput:
    return goodput(story(*parts_of_story), now=at(now))


def test_an_unharmed_run() -> None:
    """From the try's beginning to the driver's end, whatever the time of the look at it."""
    run = attempt(
        1,
        claimed=2,
        phases=[*HEALTHY, ("finishing", 118)],
        commits={name(1, 1): 60, name(1, 2): 110},
        ended=("success", 120),
    )
    found = account(a_try(1, 0), run)
    assert parts(found.total) == {"queueing": 10, "start_up": 5, "waiting": 5, "productive": 100}
    assert (found.total.wall_s, found.total.fraction) == (120, pytest.approx(100 / 120))
    assert [one.spent for one in found.attempts] == [found.total] == [one.spent for one in found.tries]


def test_a_lost_worker_costs_rework_since_the_last_commit_and_a_new_start_of_workers() -> None:
    phases = [*HEALTHY, ("lost", 80), ("waiting", 83), ("training", 90), ("finishing", 150)]
    run = attempt(1, claimed=2, phases=phases, commits={name(1, 1): 60, name(1, 2): 100}, ended=("success", 150))
    assert parts(account(a_try(1, 0), run).total) == {
        "queueing": 10,
        "start_up": 5,
        "waiting": 5 + 7,
        "productive": 40 + 60,
        "rework": 20,
        "detection": 3,
    }


def test_a_lost_worker_without_a_commit_loses_all_since_the_start_of_workers() -> None:
    phases = [*HEALTHY, ("lost", 80), ("waiting", 80), ("training", 90)]
    run = attempt(1, claimed=2, phases=phases, commits={name(1, 1): 100}, ended=("failed", 110))
    assert parts(account(a_try(1, 0), run).total) == {
        "queueing": 10,
        "start_up": 5,
        "waiting": 15,
        "productive": 10,
        "rework": 60 + 10,
    }


def test_an_elastic_resize_loses_what_was_not_committed() -> None:
    """Ray starts the workers anew from the newest checkpoint when it changes their number."""
    phases = [*HEALTHY, ("waiting", 80), ("training", 90), ("finishing", 120)]
    run = attempt(1, claimed=2, phases=phases, commits={name(1, 1): 70}, ended=("success", 120))
    found = parts(account(a_try(1, 0), run).total)
    assert (found["rework"], found["productive"], found["waiting"]) == (10, 50 + 30, 5 + 10)


def test_a_failed_driver_is_followed_by_airflows_retry() -> None:
    """Its own word says when it failed: from then on it is Airflow's turn, and the wait belongs to the try it led to."""
    first = attempt(1, claimed=2, phases=HEALTHY, commits={name(1, 1): 60}, ended=("failed", 75))
    second = attempt(
        2,
        claimed=376,
        phases=[("starting", 380), ("waiting", 381), ("training", 385)],
        commits={name(2, 1): 400},
        restored=name(1, 1),
        ended=("success", 400),
    )
    found = account(a_try(1, 0), first, a_try(2, 375), second)
    assert parts(found.total) == {
        "queueing": 10 + 5,
        "start_up": 5 + 1,
        "waiting": 5 + 4,
        "productive": 40 + 15,
        "rework": 15,
        "retrying": 300,
    }
    assert [one.spent.wall_s for one in found.attempts] == [375, 25]
    assert [one.spent.wall_s for one in found.tries] == [75, 325]
    assert parts(found.of_try(2))["retrying"] == 300


def test_a_killed_driver_costs_detection_until_airflow_noticed() -> None:
    """What it could not write any more is in its last sign of life: the present phase and the newest commit."""
    first = attempt(
        1,
        claimed=2,
        phases=HEALTHY[:3],
        noticed=("failed", 130),
        alive=alive("training", 20, written=95, last_checkpoint=name(1, 4), last_commit_at=at(70)),
    )
    second = attempt(2, claimed=191, phases=[("starting", 200), ("waiting", 201)], restored=name(1, 4))
    found = account(a_try(1, 0), first, a_try(2, 190), second, now=201)
    assert parts(found.attempts[0].spent) == {
        "queueing": 10,
        "start_up": 5,
        "waiting": 5,
        "productive": 50,
        "rework": 25,
        "detection": 35,
        "retrying": 60,
    }


def test_a_driver_that_died_with_its_worker_was_noticed_by_the_next_try() -> None:
    first = attempt(1, claimed=2, phases=HEALTHY, commits={name(1, 1): 60}, alive=alive("training", 20, written=80))
    second = attempt(2, claimed=182, restored=name(1, 1), phases=[("starting", 190), ("waiting", 191)])
    found = account(a_try(1, 0), first, a_try(2, 180), second, now=191)
    assert parts(found.attempts[0].spent)["detection"] == 100
    assert "retrying" not in parts(found.total)
    assert [one.spent.wall_s for one in found.tries] == [80, 100 + 11]


def test_an_attached_try_splits_tries_and_loses_nothing() -> None:
    run = attempt(1, claimed=2, phases=[*HEALTHY, ("finishing", 100)], commits={name(1, 1): 60}, ended=("success", 100))
    found = account(a_try(1, 0), run, a_try(2, 70, acted_on=run.claim.ref))
    assert parts(found.total) == {"queueing": 10, "start_up": 5, "waiting": 5, "productive": 80}
    assert [parts(one.spent) for one in found.tries] == [
        {"queueing": 10, "start_up": 5, "waiting": 5, "productive": 50},
        {"productive": 30},
    ]
    assert found.collected_by(2) == found.total, "the first never collected it"
    assert found.collected_by(1) == found.of_try(1)
    assert found.collected_by(3) == TimeSpent()


def test_a_try_counts_for_itself_where_the_one_before_collected_another_attempt() -> None:
    first = attempt(1, claimed=2, phases=HEALTHY, ended=("failed", 75))
    second = attempt(2, claimed=120, phases=[("starting", 130), ("waiting", 131)], ended=("failed", 140))
    found = account(a_try(1, 0), first, a_try(2, 110), second)
    assert found.collected_by(2) == found.of_try(2)
    assert found.collected_by(1).wall_s + found.collected_by(2).wall_s == found.total.wall_s
    died = account(a_try(1, 0), first, a_try(2, 100), a_try(3, 110), replace_claim(second, k=3))
    assert died.of_try(2).wall_s == 35
    assert died.collected_by(3).wall_s == 35 + 30, "a try that died before it acted collected nothing"


def replace_claim(one: AttemptRecords, **changes: Any) -> AttemptRecords:
    return replace(one, claim=one.claim.model_copy(update=changes))


@pytest.mark.parametrize(
    ("changes", "is_counted"),
    [
        ({"answers_clear": False}, True),
        ({"answers_clear": True}, False),
        ({"answers_clear": None}, True),
    ],
)
def test_nobody_waits_until_a_person_clears(changes: dict[str, Any], is_counted: bool) -> None:
    first = attempt(1, claimed=2, phases=HEALTHY, ended=("failed", 75))
    second = attempt(2, claimed=5_000, phases=[("starting", 5_010)], **changes)
    found = account(a_try(1, 0), first, a_try(2, 4_990), second, now=5_010)
    assert parts(found.total).get("retrying", 0) == (4_915 if is_counted else 0)
    assert found.total.wall_s == (5_010 if is_counted else 75 + 20)


def test_claims_of_older_releases_tell_a_clear_by_their_owners() -> None:
    first = attempt(1, claimed=2, phases=HEALTHY, ended=("failed", 75))
    second = attempt(2, claimed=5_000, phases=[("starting", 5_010)], answers_clear=None)
    for cleared in ({"max_tries": 7}, {"dag_run_identity": "another"}, {"try_number": 1}):
        assert account(a_try(1, 0), first, a_try(2, 4_990, **cleared), second, now=5_010).total.wall_s == 95


def test_time_after_a_success_is_nobodys() -> None:
    first = attempt(1, claimed=2, phases=HEALTHY, commits={name(1, 1): 60}, ended=("success", 75))
    fresh = attempt(1, generation=2, k=2, claimed=9_000, phases=[("starting", 9_005)], ended=("failed", 9_006))
    found = account(a_try(1, 0), first, a_try(2, 9_000), fresh)
    assert found.total.wall_s == 75 + 6
    assert "retrying" not in parts(found.total)


def test_a_restore_from_an_older_checkpoint_makes_the_newer_ones_rework() -> None:
    """Rolled back over c3 (corrupt): what was trained for it is trained again. The attempt between committed, in vain."""
    first = attempt(
        1,
        claimed=2,
        phases=HEALTHY,
        commits={name(1, 1): 40, name(1, 2): 60, name(1, 3): 80},
        ended=("failed", 80),
    )
    second = attempt(
        2,
        claimed=90,
        phases=[("starting", 90), ("waiting", 90), ("training", 90)],
        commits={name(2, 1): 120},
        restored=name(1, 3),
        ended=("failed", 120),
    )
    copied = layout.copy_name(3, name(1, 2))
    third = attempt(
        3,
        claimed=130,
        phases=[("starting", 130), ("waiting", 130), ("training", 130)],
        commits={name(3, 1): 170},
        restored=copied,
        ended=("success", 170),
    )
    story_of = (a_try(1, 0), first, a_try(2, 90), second, a_try(3, 130), third)
    productive = [one.spent.productive_s for one in account(*story_of).attempts]
    rework = [one.spent.lost_s[Cause.REWORK] for one in account(*story_of).attempts]
    assert (productive, rework) == ([40, 0, 40], [20, 30, 0])


@pytest.mark.parametrize(("base", "lost"), [(name(1, 1), 40 + 20), ("attempts/000009/c", 60 + 20)])
def test_a_fit_that_goes_back_over_a_poisoned_checkpoint_makes_its_training_rework(base: str, lost: float) -> None:
    """c2 was committed and is not built on; nor is c1, where the fit went back to another attempt's checkpoint."""
    phases = [*HEALTHY, ("finishing", 100), ("restoring", 100), ("waiting", 100), ("training", 100)]
    run = attempt(
        1,
        claimed=2,
        phases=phases,
        commits={name(1, 1): 40, name(1, 2): 80, name(1, 3): 150},
        ended=("success", 160),
    )
    (made,) = run.segments
    entries = [
        replace(entry, parent=parent) for entry, parent in zip(made.checkpoints, (None, name(1, 1), base), strict=True)
    ]
    back = replace(run, segments=(made.model_copy(update={"checkpoints": tuple(entries)}),))
    assert parts(account(a_try(1, 0), run).total)["rework"] == 20
    found = parts(account(a_try(1, 0), back).total)
    assert (found["rework"], found["productive"]) == (lost, 140 - lost)


def test_a_start_from_scratch_makes_all_before_it_rework() -> None:
    first = attempt(1, claimed=2, phases=HEALTHY, commits={name(1, 1): 60}, ended=("failed", 75))
    again = attempt(2, claimed=80, phases=[("starting", 80), ("waiting", 80), ("training", 80)], ended=("failed", 90))
    found = account(a_try(1, 0), first, a_try(2, 80), again)
    assert [one.spent.lost_s[Cause.REWORK] for one in found.attempts] == [55, 10]
    waits = attempt(2, claimed=80)
    assert account(a_try(1, 0), first, a_try(2, 80), waits, now=90).total.productive_s == 40, "it has not begun"


def test_a_running_attempt_is_measured_up_to_now() -> None:
    run = attempt(1, claimed=2, phases=HEALTHY, commits={name(1, 1): 60}, alive=alive("training", 20, written=90))
    found = account(a_try(1, 0), run, now=100)
    assert parts(found.total) == {"queueing": 10, "start_up": 5, "waiting": 5, "productive": 80}
    assert found.attempts[0].is_running
    silent = account(a_try(1, 0), run, now=400)
    assert parts(silent.total)["detection"] == 310, "nobody has acted on its silence yet"
    assert parts(silent.total)["rework"] == 30
    assert not silent.attempts[0].is_running
    by_the_stores_clock = account(a_try(1, 0), replace(run, alive_age_s=5.0), now=400)
    assert by_the_stores_clock.attempts[0].is_running, "the driver's clock is behind"


def test_a_pending_job_queues_until_now_or_until_it_is_given_up() -> None:
    assert parts(account(a_try(1, 0), attempt(1, claimed=2), now=50).total) == {"queueing": 50}
    given_up = attempt(1, claimed=2, noticed=("failed", 90))
    assert parts(account(a_try(1, 0), given_up).total) == {"queueing": 90}


def test_a_stop_by_hand_ends_the_account_of_a_driver_that_left_no_word() -> None:
    run = attempt(1, claimed=2, phases=HEALTHY, alive=alive("training", 20, written=90))
    found = account(a_try(1, 0), run, a_try(2, 100, final=True, created_by="listener"))
    assert found.total.wall_s == 100
    assert [one.k for one in found.tries] == [1]


def test_nobody_waits_for_what_its_task_gave_up() -> None:
    run = attempt(1, claimed=2, phases=HEALTHY, alive=alive("training", 20, written=90))
    failure = Failure(kind=FailureKind.TIMEOUT, reason="the deadline passed")
    assert account(a_try(1, 0, gave_up=failure), run).total.wall_s == 90
    assert account(a_try(1, 0), run).total.wall_s == 10_000


def test_a_refit_in_the_same_job() -> None:
    """The controller died: the time until the driver fits again is detection, the fit's uncommitted training rework."""
    phases = [*HEALTHY, ("finishing", 80), ("restoring", 85), ("waiting", 87), ("training", 90), ("finishing", 130)]
    run = attempt(1, claimed=2, phases=phases, commits={name(1, 1): 60}, ended=("success", 130))
    assert parts(account(a_try(1, 0), run).total) == {
        "queueing": 10,
        "start_up": 5 + 2,
        "waiting": 5 + 3,
        "productive": 40 + 40,
        "rework": 20,
        "detection": 5,
    }


def test_a_commit_that_is_told_after_the_loss_still_secures_the_training_before_it() -> None:
    phases = [*HEALTHY, ("lost", 80), ("waiting", 83), ("training", 90)]
    run = attempt(1, claimed=2, phases=phases, commits={name(1, 1): 81}, ended=("failed", 90))
    assert "rework" not in parts(account(a_try(1, 0), run).total)


# --- together, and shown -----------------------------------------------------------------------------------------------


def some() -> Iterator[Goodput]:
    for end in (120, 220):
        yield account(a_try(1, 0), attempt(1, claimed=2, phases=HEALTHY, ended=("success", end)))


def test_trainings_of_a_dag_run_are_added() -> None:
    together = combined(some())
    assert together.wall_s == 340
    assert parts(together) == {"queueing": 20, "start_up": 10, "waiting": 10, "productive": 300}
    assert together.fraction == pytest.approx(300 / 340)
    assert combined([]) == TimeSpent()
    assert TimeSpent().fraction is None


def test_values_for_xcom_and_for_people() -> None:
    phases = [*HEALTHY, ("lost", 80), ("waiting", 83), ("training", 90), ("finishing", 4_000)]
    run = attempt(1, claimed=2, phases=phases, commits={name(1, 1): 60}, ended=("success", 4_000.04))
    spent = account(a_try(1, 0), run).total
    assert goodput_xcom(spent) == {
        "fraction": 0.9875,
        "wall_s": 4_000.0,
        "productive_s": 3_950.0,
        "lost_s": {
            "detection": 3.0,
            "retrying": 0.0,
            "queueing": 10.0,
            "start_up": 5.0,
            "waiting": 12.0,
            "rework": 20.0,
            "unaccounted": 0.0,
        },
    }
    assert goodput_sentence(spent) == (
        "goodput 99% of 1 h 6 min: 1 h 5 min productive; lost: 20 s rework, 12 s waiting, 10 s queueing, 5 s start-up, "
        "3 s detection"
    )
    assert goodput_sentence(TimeSpent()) == "goodput: no time has passed"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3_600, "1 h"), (3_605, "1 h"), (183_600, "2 d 3 h")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_the_story_is_in_seconds() -> None:
    assert at(60) - at(0) == timedelta(minutes=1)
