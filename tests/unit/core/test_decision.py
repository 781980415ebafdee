"""What a try does next, branch by branch: the wrong answer trains twice, loses work, or publishes an old result."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider.core.decision import (
    FRESH_ALIVE_S,
    Attach,
    AttemptFacts,
    ClusterSilent,
    Collect,
    Decision,
    Finished,
    JobSight,
    Refuse,
    Repost,
    Restore,
    Start,
    StopThenRestore,
    TryFacts,
    decide_submission,
    detect_clear,
)
from airflow_provider.core.failure import FailureKind
from tests.support.records import (
    NOW,
    SESSION,
    alive,
    attempt_facts,
    claim,
    collected,
    gone,
    outcome,
    owner,
    ref,
    seen,
    success,
    try_facts,
)

SILENT = ClusterSilent("connection refused")
LIVE = ["PENDING", "RUNNING"]


def decide(newest: AttemptFacts | None, me: TryFacts | None = None, **changes: Any) -> Decision:
    """The decision of a second try that asks for the same thing as the first."""
    known: dict[str, Any] = {"spec_digest": "s", "code_digest": "c"}
    return decide_submission(me or try_facts(), newest, **{**known, **changes})


def test_no_claim_starts_the_first_attempt() -> None:
    assert decide(None) == Start(ref(1, 1), "no attempt yet: starting g1/a1")


@pytest.mark.parametrize("status", LIVE)
def test_a_live_job_is_joined(status: str) -> None:
    """Nothing restarts when a worker was evicted under a healthy training."""
    decision = decide(attempt_facts(seen(status), 2, 3))
    assert decision == Attach(
        ref(2, 3), "raytrain-2-3", f"g2/a3 is {status}: attaching to job raytrain-2-3, nothing restarts"
    )


@pytest.mark.parametrize("status", LIVE)
@pytest.mark.parametrize("stop", [{"stops": frozenset({1})}, {"has_final_stop": True}])
def test_a_live_job_with_a_stop_of_ours_is_stopped_and_then_restored(status: str, stop: dict[str, Any]) -> None:
    """Its driver obeys the stop record sooner or later: an attached try would fail under a healthy training."""
    decision = decide(attempt_facts(seen(status), 1, 4, **stop))
    assert isinstance(decision, StopThenRestore)
    assert (decision.ref, decision.submission_id, decision.next_ref) == (ref(1, 4), "raytrain-1-4", ref(1, 5))
    assert f"g1/a4 is {status}" in decision.reason
    assert f"({len(stop.get('stops', ()))} stop records)" in decision.reason
    assert "g1/a5" in decision.reason


def test_a_job_stopped_outside_is_not_tried_again() -> None:
    """Somebody pressed Stop in Ray's dashboard: retrying would fight a person."""
    decision = decide(attempt_facts(seen("STOPPED")))
    assert isinstance(decision, Refuse)
    assert decision.failure.kind is FailureKind.STOPPED
    assert not decision.failure.is_retryable
    assert "raytrain-1-1" in decision.failure.reason


@pytest.mark.parametrize("stop", [{"stops": frozenset({1})}, {"has_final_stop": True}])
def test_a_job_stopped_by_a_record_of_ours_is_restored(stop: dict[str, Any]) -> None:
    decision = decide(attempt_facts(seen("STOPPED"), **stop))
    assert decision == Restore(ref(1, 2), "g1/a1 ended STOPPED: restoring as g1/a2")


def test_a_failed_job_is_restored_and_the_reason_says_how_it_ended() -> None:
    decision = decide(attempt_facts(seen("FAILED"), 2, 7, outcome=outcome("failed")))
    assert decision == Restore(
        ref(2, 8), "g2/a7 ended FAILED (infrastructure: node 3 died at step 1200): restoring as g2/a8"
    )


def test_a_failed_job_without_an_outcome_is_restored() -> None:
    assert decide(attempt_facts(seen("FAILED"))) == Restore(ref(1, 2), "g1/a1 ended FAILED: restoring as g1/a2")


def test_a_success_that_only_the_jobs_api_knows_is_collected() -> None:
    """The driver was killed between the end of its training and its outcome."""
    decision = decide(attempt_facts(seen("SUCCEEDED"), 1, 2))
    assert isinstance(decision, Collect)
    assert (decision.ref, decision.submission_id) == (ref(1, 2), "raytrain-1-2")
    assert "SUCCEEDED" in decision.reason


def test_a_success_that_only_the_jobs_api_knows_comes_after_the_clear_rule() -> None:
    decision = decide(attempt_facts(seen("SUCCEEDED")), try_facts(max_tries=6))
    assert isinstance(decision, Restore)
    assert decision.ref == ref(1, 2)


def test_an_exit_code_0_against_a_failure_outcome_is_restored() -> None:
    """The driver's word counts more than its exit code."""
    decision = decide(attempt_facts(seen("SUCCEEDED"), outcome=outcome("failed")))
    assert isinstance(decision, Restore)


JOBS: list[JobSight] = [*(seen(s) for s in ("RUNNING", "SUCCEEDED", "FAILED", "STOPPED")), gone(), gone("new"), SILENT]


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("max_tries", [3, 6])
def test_an_unaccepted_success_is_collected_first_whatever_the_cluster_says(job: JobSight, max_tries: int) -> None:
    """Also before a clear: else a training finished minutes ago is thrown away unseen."""
    decision = decide(attempt_facts(job, 1, 3, outcome=outcome()), try_facts(max_tries=max_tries))
    assert isinstance(decision, Collect)
    assert (decision.ref, decision.submission_id) == (ref(1, 3), "raytrain-1-3")
    assert "g1/a3" in decision.reason


def test_a_success_that_collect_filled_in_counts_like_the_drivers() -> None:
    late = collected(None, outcome=outcome())
    assert isinstance(decide(attempt_facts(gone("new"), collected=late)), Collect)
    assert isinstance(decide(attempt_facts(gone("new"), collected=collected(True, outcome=outcome()))), Finished)


def test_the_drivers_own_word_wins_over_what_collect_filled_in() -> None:
    facts = attempt_facts(seen("FAILED"), outcome=outcome("failed"), collected=collected(None, outcome=outcome()))
    assert isinstance(decide(facts), Restore)


@pytest.mark.parametrize("job", JOBS)
def test_an_accepted_success_is_published_again_and_trains_nothing(job: JobSight) -> None:
    decision = decide(attempt_facts(job, 2, 3, **success(True)))
    assert isinstance(decision, Finished)
    assert (decision.ref, decision.submission_id) == (ref(2, 3), "raytrain-2-3")
    assert "g2/a3" in decision.reason


def test_a_refused_success_fails_again_with_the_same_reason() -> None:
    facts = attempt_facts(
        seen("SUCCEEDED"), outcome=outcome(), collected=collected(False, refused_because="0 new checkpoints")
    )
    decision = decide(facts)
    assert isinstance(decision, Refuse)
    assert decision.failure.kind is FailureKind.USER
    assert decision.failure.reason == "g1/a1 trained but was refused: 0 new checkpoints"


def test_a_refusal_without_a_reason_still_makes_a_sentence() -> None:
    decision = decide(attempt_facts(seen("SUCCEEDED"), **success(False)))
    assert isinstance(decision, Refuse)
    assert decision.failure.reason.endswith("its result was refused")


# --- claimed, but the cluster doesn't know the job --------------------------------------------------------------


def test_a_claim_whose_job_never_arrived_is_sent_again_under_its_id() -> None:
    """The POST's time-out said nothing: a new id could make two jobs."""
    decision = decide(attempt_facts(gone(), 1, 2))
    assert isinstance(decision, Repost)
    assert (decision.ref, decision.submission_id) == (ref(1, 2), "raytrain-1-2")
    assert "g1/a2" in decision.reason


TRACES: dict[str, dict[str, Any]] = {
    "alive": {"alive": alive(), "alive_age_s": 5.0},
    "manifest": {"has_manifest": True},
    "outcome": {"outcome": outcome("failed")},
    "collected outcome": {"collected": collected(None, outcome=outcome("failed"))},
    "stop record": {"stops": frozenset({1})},
    "final owner": {"has_final_stop": True},
}


@pytest.mark.parametrize("trace", TRACES)
def test_any_trace_of_a_driver_forbids_sending_again(trace: str) -> None:
    """Story 4: the job had run; a second run would start from scratch over its own manifest."""
    decision = decide(attempt_facts(gone(), **TRACES[trace]))
    # An outcome says more than that the cluster forgot the job.
    how = "ended failed (infrastructure)" if "outcome" in trace else "is lost (the cluster no longer knows its job)"
    assert decision == Restore(ref(1, 2), f"g1/a1 {how}: restoring as g1/a2")


@pytest.mark.parametrize("digests", [{"spec_digest": "s2"}, {"code_digest": "c2"}])
def test_a_changed_request_is_not_sent_under_the_old_id(digests: dict[str, str]) -> None:
    decision = decide(attempt_facts(gone()), **digests)
    assert isinstance(decision, Restore)
    assert decision.ref == ref(1, 2)


@pytest.mark.parametrize("session", ["session_other", None])
def test_another_session_means_that_the_cluster_was_replaced(session: str | None) -> None:
    decision = decide(attempt_facts(gone(session)))
    assert decision == Restore(ref(1, 2), "g1/a1 is lost (the cluster was replaced): restoring as g1/a2")


def test_two_unknown_sessions_are_not_the_same_session() -> None:
    """None equals None, but nobody knows whether the claim's cluster is this one."""
    decision = decide(attempt_facts(gone(None), claim=claim(1, 1, session_name=None)))
    assert isinstance(decision, Restore)


# --- the cluster doesn't answer ---------------------------------------------------------------------------------


def test_a_fresh_sign_of_life_attaches_without_the_cluster() -> None:
    decision = decide(attempt_facts(SILENT, alive=alive(), alive_age_s=FRESH_ALIVE_S - 1))
    assert isinstance(decision, Attach)
    assert (decision.ref, decision.submission_id) == (ref(1, 1), "raytrain-1-1")
    assert "connection refused" in decision.reason
    assert "59 s ago" in decision.reason


UNSURE: list[tuple[dict[str, Any], str]] = [
    ({}, "never gave a sign of life"),
    ({"alive": alive(), "alive_age_s": FRESH_ALIVE_S}, "60 s old"),
    ({"alive": alive(), "alive_age_s": 3600.0}, "3600 s old"),
    ({"alive": alive(), "alive_age_s": 5.0, "stops": frozenset({1})}, "5 s old"),
    ({"alive": alive(), "alive_age_s": 5.0, "has_final_stop": True}, "5 s old"),
    ({"alive": alive(), "alive_age_s": 5.0, "outcome": outcome("failed")}, "5 s old"),
]


@pytest.mark.parametrize(("facts", "words"), UNSURE)
def test_a_silent_cluster_without_proof_of_life_fails_retryably(facts: dict[str, Any], words: str) -> None:
    """Neither a new attempt (the old may run) nor a verdict: Airflow's retry asks again."""
    decision = decide(attempt_facts(SILENT, 1, 4, **facts))
    assert isinstance(decision, Refuse)
    assert decision.failure.kind is FailureKind.NETWORK
    assert decision.failure.is_retryable
    for part in ("connection refused", "g1/a4", words):
        assert part in decision.failure.reason


# --- clears -----------------------------------------------------------------------------------------------------

CLEARS: list[tuple[TryFacts, str]] = [
    (try_facts(dag_run_identity="i2"), "the DAG run was created again"),
    (try_facts(max_tries=4), "max_tries went from 3 to 4"),
    (try_facts(1, own_ks=frozenset({2})), "try_number 1 is not above 1"),
    (try_facts(0, own_ks=frozenset({2})), "try_number 0 is not above 1"),
]


@pytest.mark.parametrize(("me", "why"), CLEARS)
def test_a_clear_is_seen_by_each_counter(me: TryFacts, why: str) -> None:
    clear = detect_clear(me, owner(1), on_clear="auto")
    assert (clear.is_clear, clear.why) == (True, why)


def test_an_automatic_retry_is_no_clear() -> None:
    assert not detect_clear(try_facts(), owner(1), on_clear="auto").is_clear


@pytest.mark.parametrize(("on_clear", "is_clear"), [("auto", False), ("restore", False), ("fresh", True)])
def test_the_clear_number_alone_counts_only_with_fresh(on_clear: Any, is_clear: bool) -> None:
    """It is run-wide: clearing a neighbour raises it too."""
    clear = detect_clear(try_facts(clear_number=1), owner(1), on_clear=on_clear)
    assert clear.is_clear is is_clear
    assert clear.why == ("clear_number went from 0 to 1" if is_clear else "")


def test_an_attempt_that_this_very_try_acted_on_is_never_a_clear() -> None:
    """A try decides again after a lost race: its own try_number isn't above its own."""
    me = try_facts(2, own_ks=frozenset({4, 5}))
    assert not detect_clear(me, owner(5, try_number=2), on_clear="fresh").is_clear
    assert detect_clear(me, owner(3, try_number=2), on_clear="fresh").is_clear


@pytest.mark.parametrize("job", [None, seen("FAILED"), seen("RUNNING"), gone("new")])
def test_without_a_clear_no_attempt_claims_to_answer_one(job: JobSight | None) -> None:
    decision = decide(None if job is None else attempt_facts(job, stops=frozenset({1})))
    assert isinstance(decision, (Start, Restore, StopThenRestore))
    assert not decision.answers_clear


@pytest.mark.parametrize(
    ("on_clear", "accepted", "expected"),
    [
        ("auto", True, Start),
        ("auto", False, Restore),
        ("restore", True, Restore),
        ("restore", False, Restore),
        ("fresh", True, Start),
        ("fresh", False, Start),
    ],
)
def test_a_clear_after_success_is_fresh_and_after_refusal_restores(
    on_clear: Any, accepted: bool, expected: Any
) -> None:
    """C15: Ray would restore a finished experiment, do nothing and succeed."""
    decision = decide(
        attempt_facts(seen("SUCCEEDED"), 2, 3, **success(accepted)), try_facts(max_tries=6), on_clear=on_clear
    )
    assert isinstance(decision, expected)
    assert decision.answers_clear
    assert decision.ref == (ref(3, 1) if expected is Start else ref(2, 4))
    for part in ("cleared", "max_tries went from 3 to 6", f"on_clear={on_clear}", str(decision.ref)):
        assert part in decision.reason


@pytest.mark.parametrize(("on_clear", "expected"), [("auto", Restore), ("restore", Restore), ("fresh", Start)])
@pytest.mark.parametrize("job", [seen("FAILED"), seen("STOPPED"), gone(), gone("new")])
def test_a_clear_of_a_failed_training_restores_unless_fresh(job: JobSight, on_clear: Any, expected: Any) -> None:
    """Also STOPPED: who clears after a stop by hand wants it to run. Never Repost: a clear may bring other code."""
    decision = decide(attempt_facts(job), try_facts(max_tries=6), on_clear=on_clear)
    assert isinstance(decision, expected)
    assert decision.ref == (ref(2, 1) if expected is Start else ref(1, 2))


@pytest.mark.parametrize("status", LIVE)
@pytest.mark.parametrize(("on_clear", "target"), [("auto", (1, 2)), ("restore", (1, 2)), ("fresh", (2, 1))])
def test_a_clear_stops_the_live_job_first(status: str, on_clear: Any, target: tuple[int, int]) -> None:
    """C58: cleared while deferred; on_kill didn't run and the job lives: exactly one may."""
    me = try_facts(1, own_ks=frozenset({2}))
    decision = decide(attempt_facts(seen(status)), me, on_clear=on_clear)
    assert isinstance(decision, StopThenRestore)
    assert (decision.ref, decision.submission_id, decision.next_ref) == (ref(1, 1), "raytrain-1-1", ref(*target))
    assert decision.answers_clear
    assert f"g1/a1 is {status}" in decision.reason


@pytest.mark.parametrize("on_clear", ["auto", "restore", "fresh"])
def test_a_clear_waits_for_a_cluster_that_can_stop_the_old_job(on_clear: Any) -> None:
    facts = attempt_facts(SILENT, alive=alive(), alive_age_s=5.0)
    decision = decide(facts, try_facts(max_tries=6), on_clear=on_clear)
    assert isinstance(decision, Refuse)
    assert decision.failure.kind is FailureKind.NETWORK
    assert "connection refused" in decision.failure.reason
    assert "g1/a1" in decision.failure.reason


@pytest.mark.parametrize(
    ("deadline_s", "now_s", "is_reposted"),
    [(None, 0, True), (60, 59, True), (60, 60, False), (60, 61, False), (60, None, True)],
)
def test_a_claim_is_not_posted_again_once_its_deadline_has_passed(
    deadline_s: int | None, now_s: int | None, is_reposted: bool
) -> None:
    """Its driver would end itself with a time-out that no training ever had."""
    deadline = None if deadline_s is None else NOW + timedelta(seconds=deadline_s)
    facts = attempt_facts(gone(), claim=claim(1, 1, session_name=SESSION, deadline=deadline))
    decision = decide(facts, now=None if now_s is None else NOW + timedelta(seconds=now_s))
    assert isinstance(decision, Repost if is_reposted else Restore)
    assert decision.ref == ref(1, 1 if is_reposted else 2)
