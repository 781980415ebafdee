"""One poll after another: giving up too early kills a healthy training, too late burns a day."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider.core.decision import FRESH_ALIVE_S, ClusterSilent, JobSight
from airflow_provider.core.waiting import (
    SILENCE_TO_TELL_S,
    GoOn,
    WaitEnd,
    WaitLimits,
    WaitOver,
    WaitState,
    alive_pause_s,
    judge_poll,
)
from tests.support.records import NOW, SESSION, gone, seen

SILENT = ClusterSilent("timed out")
LIMITS = WaitLimits()


def judge(sight: JobSight, state: WaitState | None = None, *, at: float = 0.0, **changes: Any) -> GoOn | WaitOver:
    known: dict[str, Any] = {"limits": LIMITS, "session_name": SESSION}
    return judge_poll(state or WaitState(NOW), sight, now=NOW + timedelta(seconds=at), **{**known, **changes})


def streak(sight: JobSight, times: list[float], **changes: Any) -> list[GoOn | WaitOver]:
    """The same answer at these seconds."""
    state, verdicts = WaitState(NOW), []
    for at in times:
        verdict = judge(sight, state, at=at, **changes)
        verdicts.append(verdict)
        state = verdict.state if isinstance(verdict, GoOn) else state
    return verdicts


def over(verdict: GoOn | WaitOver) -> tuple[WaitEnd, str]:
    assert isinstance(verdict, WaitOver)
    return verdict.end, verdict.reason


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_a_terminal_job_ends_the_wait_at_once(status: str) -> None:
    assert over(judge(seen(status))) == (WaitEnd.ENDED, f"the job is {status}")


def test_a_terminal_job_wins_over_a_deadline_that_passed() -> None:
    """It finished: nobody has to stop it, and a success counts."""
    verdict = judge(seen("SUCCEEDED"), deadline=NOW - timedelta(days=1))
    assert over(verdict)[0] is WaitEnd.ENDED


@pytest.mark.parametrize("sight", [SILENT, gone(), seen("RUNNING")])
def test_an_outcome_in_the_bucket_ends_the_wait_without_the_cluster(sight: JobSight) -> None:
    assert over(judge(sight, is_outcome_there=True)) == (WaitEnd.ENDED, "the driver left its outcome in the bucket")


def test_reasons_are_given_on_change_only() -> None:
    """A log line per poll would bury the one that matters."""
    verdicts = streak(seen("RUNNING"), [0, 10, 20])
    assert [v.reason for v in verdicts if isinstance(v, GoOn)] == ["the job is RUNNING", None, None]
    last = verdicts[-1]
    assert isinstance(last, GoOn)
    changed = judge(SILENT, last.state, at=30)
    assert changed == GoOn(WaitState(NOW + timedelta(seconds=30), "the cluster gives no answer", 1), changed.reason)
    assert changed.reason == "the cluster gives no answer"


def test_another_answer_starts_the_streak_anew() -> None:
    """29 minutes of silence, one answer, silence again: the clock starts again."""
    state = WaitState(NOW, "the cluster gives no answer", 200)
    answered = judge(seen("RUNNING"), state, at=1790)
    assert isinstance(answered, GoOn)
    assert (answered.state.polls, answered.state.since) == (1, NOW + timedelta(seconds=1790))
    silent = judge(SILENT, answered.state, at=1810)
    assert isinstance(silent, GoOn)
    assert (silent.state.polls, silent.state.since) == (1, NOW + timedelta(seconds=1810))


def test_pending_and_running_are_different_streaks() -> None:
    pending = judge(seen("PENDING"))
    assert isinstance(pending, GoOn)
    running = judge(seen("RUNNING"), pending.state, at=3000)
    assert isinstance(running, GoOn)
    assert running.state.polls == 1
    assert running.reason == "the job is RUNNING"


def test_an_unknown_job_is_lost_after_three_polls_and_thirty_seconds() -> None:
    *before, last = streak(gone(), [0, 15, 30])
    assert all(isinstance(v, GoOn) for v in before)
    end, reason = over(last)
    assert end is WaitEnd.LOST
    assert reason == "the cluster does not know the job in 3 polls over 30 s"


@pytest.mark.parametrize("times", [[0, 100], [0, 1, 2, 3, 4, 29.9]])
def test_an_unknown_job_needs_both_count_and_time(times: list[float]) -> None:
    """A head that restarts forgets for a few seconds; a long poll interval isn't evidence either."""
    assert all(isinstance(v, GoOn) for v in streak(gone(), times))


def test_a_replaced_cluster_is_named() -> None:
    *_, last = streak(gone("session_new"), [0, 15, 30])
    assert "the cluster was replaced (session session_new)" in over(last)[1]


def test_forgetting_and_being_replaced_are_different_streaks() -> None:
    first = streak(gone(), [0, 20])[-1]
    assert isinstance(first, GoOn)
    replaced = judge(gone("session_new"), first.state, at=40)
    assert isinstance(replaced, GoOn)
    assert replaced.state.polls == 1


UNREACHABLE = WaitState(NOW, "the cluster gives no answer", 9)


def test_a_silent_cluster_is_given_up_after_thirty_minutes_and_ten_polls() -> None:
    end, reason = over(judge(SILENT, UNREACHABLE, at=1800))
    assert end is WaitEnd.UNREACHABLE
    assert reason == "no answer in 10 polls over 1800 s and no sign of life"


@pytest.mark.parametrize(("polls", "at"), [(8, 1800), (9, 1799), (0, 99_999), (10_000, 60)])
def test_a_silent_cluster_needs_both_count_and_time(polls: int, at: float) -> None:
    assert isinstance(judge(SILENT, WaitState(NOW, "the cluster gives no answer", polls), at=at), GoOn)


def test_a_fresh_sign_of_life_outlasts_any_silence() -> None:
    """The dashboard is down for a day and the training goes on."""
    state = WaitState(NOW, "the cluster gives no answer", 5000)
    assert isinstance(judge(SILENT, state, at=86_400, alive_age_s=FRESH_ALIVE_S - 0.1), GoOn)


def test_a_stale_sign_of_life_does_not() -> None:
    end, reason = over(judge(SILENT, UNREACHABLE, at=1800, alive_age_s=FRESH_ALIVE_S))
    assert end is WaitEnd.UNREACHABLE
    assert reason.endswith("last sign of life 60 s ago")


@pytest.mark.parametrize("sight", [seen("RUNNING"), seen("PENDING"), SILENT, gone()])
def test_the_deadline_has_a_grace_in_which_the_driver_ends_itself(sight: JobSight) -> None:
    deadline = NOW
    assert isinstance(judge(sight, at=30, deadline=deadline), GoOn)
    end, reason = over(judge(sight, at=31, deadline=deadline))
    assert end is WaitEnd.TIMEOUT
    assert reason == "the deadline 2026-11-29T12:00:00+00:00 passed 31 s ago"


def test_a_deadline_missed_by_days_says_so() -> None:
    """Airflow was down over a weekend: `.seconds` of a timedelta would forget the days."""
    assert "passed 172830 s ago" in over(judge(seen("RUNNING"), at=172_830, deadline=NOW))[1]


def test_pending_too_long_is_a_matter_of_capacity() -> None:
    state = WaitState(NOW, "the job is PENDING", 1)
    assert isinstance(judge(seen("PENDING"), state, at=3599), GoOn)
    end, reason = over(judge(seen("PENDING"), state, at=3600))
    assert end is WaitEnd.PENDING_TOO_LONG
    assert "3600 s" in reason


def test_pending_may_be_unlimited_and_zero_is_a_limit() -> None:
    state = WaitState(NOW, "the job is PENDING", 1)
    assert isinstance(judge(seen("PENDING"), state, at=1e6, limits=WaitLimits(pending_timeout_s=None)), GoOn)
    assert isinstance(judge(seen("PENDING"), state, at=1, limits=WaitLimits(pending_timeout_s=0)), WaitOver)


def test_running_for_weeks_is_no_reason_to_stop() -> None:
    assert isinstance(judge(seen("RUNNING"), WaitState(NOW, "the job is RUNNING", 9), at=3e6), GoOn)


def test_a_job_that_runs_without_a_sign_of_life_from_its_driver_is_given_up() -> None:
    """Frozen with its node: Ray goes on calling it RUNNING."""
    limit = LIMITS.silent_driver_timeout_s
    assert limit is not None
    end, reason = over(judge(seen("RUNNING"), alive_age_s=limit))
    assert end is WaitEnd.SILENT_DRIVER
    assert "1800 s old" in reason
    assert isinstance(judge(seen("RUNNING"), alive_age_s=limit - 1), GoOn)
    assert isinstance(judge(seen("RUNNING"), alive_age_s=None), GoOn), "it may not have started yet"
    never = WaitLimits(silent_driver_timeout_s=None)
    assert isinstance(judge(seen("RUNNING"), alive_age_s=limit, limits=never), GoOn)
    assert over(judge(seen("SUCCEEDED"), alive_age_s=limit))[0] is WaitEnd.ENDED


def test_a_silent_driver_is_told_once_before_it_is_given_up() -> None:
    verdicts = streak(seen("RUNNING"), [0, 10], alive_age_s=400.0)
    assert [v.reason for v in verdicts if isinstance(v, GoOn)] == [
        "the job is RUNNING, but its driver gave no sign of life for 300 s",
        None,
    ]


@pytest.mark.parametrize(
    ("silent", "age", "expected"),
    [
        (1800.0, 0.0, SILENCE_TO_TELL_S),
        (1800.0, 10.0, SILENCE_TO_TELL_S - 10),
        (1800.0, SILENCE_TO_TELL_S - 1, 20.0),
        (1800.0, SILENCE_TO_TELL_S, 60.0),
        (1800.0, 1770.0, 30.0),
        (1800.0, 1790.0, 20.0),
        (310.0, 290.0, 20.0),
        (None, 10.0, SILENCE_TO_TELL_S - 10),
        (None, 5000.0, 60.0),
        (400.0, 0.0, 200.0),
        (45.0, 0.0, 22.5),
        (45.0, 20.0, 22.5),
        (45.0, 44.0, 20.0),
        (45.0, 50.0, 22.5),
    ],
)
def test_a_sign_of_life_is_read_again_when_it_can_be_too_old(silent: float | None, age: float, expected: float) -> None:
    """Not before, since each read costs; at most a writing period later. A limit has two reads at least: a bucket may be away."""
    assert alive_pause_s(age, LIMITS.model_copy(update={"silent_driver_timeout_s": silent})) == expected
