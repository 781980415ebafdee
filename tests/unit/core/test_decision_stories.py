"""The protocol's shortest interleavings, as far as the decision ends them: each once broke a model of these rules."""

from __future__ import annotations

import pytest

from airflow_provider.core.decision import (
    Attach,
    ClusterSilent,
    Collect,
    Finished,
    Refuse,
    Repost,
    Restore,
    Start,
    StopThenRestore,
    decide_submission,
)
from airflow_provider.core.restore import AttemptCheckpoints, candidates
from airflow_provider.core.restore_policy import RestorePolicy
from tests.support.records import (
    alive,
    attempt_facts,
    claim,
    collected,
    entry,
    gone,
    manifest,
    outcome,
    owner,
    ref,
    seen,
    success,
    try_facts,
)

FIRST = "attempts/000001"


def test_story_1_a_thawed_older_try_does_not_take_its_own_number_for_a_clear() -> None:
    """Try 2 (owner 2) trains; a frozen try 1 wrote owner 3 and exited at the marker: try 2 owns again as 4 and attaches.

    Comparing with the *last* owner (try 1) or counting an own older number as foreign would stop try 2's job.
    """
    facts = attempt_facts(seen("RUNNING"), claim=claim(1, 1, k=2), acting_owner=owner(2, try_number=2))
    assert isinstance(decide_submission(try_facts(2, own_ks=frozenset({2, 4})), facts), Attach)


def test_story_2_a_retry_after_a_cleared_try_that_never_claimed_still_sees_the_clear() -> None:
    """The cleared try 2 (max_tries 6) died before claiming; its retry matches that owner, but not the one that acted."""
    facts = attempt_facts(seen("SUCCEEDED"), **success(True))
    decision = decide_submission(try_facts(3, max_tries=6, own_ks=frozenset({3})), facts)
    assert isinstance(decision, Start)
    assert decision.ref == ref(2, 1)


def test_story_3_the_second_try_of_a_recreated_run_does_not_publish_the_old_result() -> None:
    """Its first try died before owning: try_number grew and max_tries is equal; only the identity differs."""
    facts = attempt_facts(seen("SUCCEEDED"), **success(True))
    decision = decide_submission(try_facts(2, dag_run_identity="i2"), facts)
    assert isinstance(decision, Start)
    assert "created again" in decision.reason


def test_story_4_a_job_that_left_traces_is_not_posted_twice() -> None:
    """The reply to the POST was lost, the first commit made, the cluster replaced by one of the same session name."""
    facts = attempt_facts(gone(), has_manifest=True, alive=alive(), alive_age_s=400.0)
    assert isinstance(decide_submission(try_facts(), facts, spec_digest="s", code_digest="c"), Restore)


def test_story_5_a_job_cancelled_by_an_older_try_is_restored_within_the_same_try() -> None:
    """A late on_kill hit the attached PENDING job: the try decides again, and its own attach is no clear."""
    me = try_facts(2, own_ks=frozenset({2}))
    facts = attempt_facts(seen("STOPPED"), acting_owner=owner(2, try_number=2), stops=frozenset({1}))
    decision = decide_submission(me, facts)
    assert isinstance(decision, Restore)
    assert decision.ref == ref(1, 2)


def test_story_6_a_thawed_try_that_looks_again_after_the_newest_owner_finished_trains_nothing() -> None:
    """The owners are read again before the POST; what the older try then decides on fresh facts must not start a job."""
    facts = attempt_facts(seen("SUCCEEDED"), claim=claim(1, 1, k=2), acting_owner=owner(2), **success(True))
    assert isinstance(decide_submission(try_facts(3, own_ks=frozenset({1, 3})), facts), Finished)


def test_story_7_a_job_under_a_final_owner_is_never_joined_nor_sent_again() -> None:
    """Marked failed before the claim was posted: on_kill missed it, the driver ends itself, and a later clear goes on."""
    live = attempt_facts(seen("PENDING"), has_final_stop=True)
    assert isinstance(decide_submission(try_facts(), live), StopThenRestore)
    never_arrived = attempt_facts(gone(), has_final_stop=True)
    assert isinstance(decide_submission(try_facts(), never_arrived, spec_digest="s", code_digest="c"), Restore)


def test_story_8_a_stop_that_ray_ignored_while_pending_still_counts() -> None:
    decision = decide_submission(try_facts(), attempt_facts(seen("PENDING"), stops=frozenset({1})))
    assert isinstance(decision, StopThenRestore)


def test_story_9_an_outcome_beats_a_cluster_that_forgot_the_job() -> None:
    """Facts read, outcome written, cluster replaced: 404 reads as LOST, yet the work is finished."""
    assert isinstance(decide_submission(try_facts(), attempt_facts(gone("new"), outcome=outcome())), Collect)
    assert isinstance(decide_submission(try_facts(), attempt_facts(gone("new"), **success(True))), Finished)


def test_story_10_a_checkpoint_that_the_newest_manifest_dropped_is_marked_for_a_copy() -> None:
    """A frozen older driver may still delete it after its check: it is never restored in place."""
    left = AttemptCheckpoints(
        ref=ref(1, 1), manifest=manifest(f"{FIRST}/c2"), recorded=(entry(f"{FIRST}/c1"), entry(f"{FIRST}/c2", 1))
    )
    ranked = candidates([left], policy=RestorePolicy())
    assert [(c.name, c.is_retired) for c in ranked] == [(f"{FIRST}/c2", False), (f"{FIRST}/c1", True)]


def test_story_11_what_the_old_driver_committed_before_the_claim_is_ranked_first() -> None:
    """The manifest is read after the claim; with the one from before, c2 would be ignored."""
    before = AttemptCheckpoints(ref=ref(1, 1), manifest=manifest(f"{FIRST}/c1"))
    after = AttemptCheckpoints(ref=ref(1, 1), manifest=manifest(f"{FIRST}/c1", f"{FIRST}/c2"))
    assert candidates([before], policy=RestorePolicy())[0].name == f"{FIRST}/c1"
    assert candidates([after], policy=RestorePolicy())[0].name == f"{FIRST}/c2"


def test_story_12_a_fresh_clear_stops_the_driver_of_the_old_generation() -> None:
    facts = attempt_facts(seen("RUNNING"), 1, 2)
    decision = decide_submission(try_facts(max_tries=6), facts, on_clear="fresh")
    assert isinstance(decision, StopThenRestore)
    assert decision.next_ref == ref(2, 1)


def test_a_cluster_wide_outage_at_start_keeps_the_training(  # G5
) -> None:
    silent = ClusterSilent("502 Bad Gateway")
    attached = decide_submission(try_facts(), attempt_facts(silent, alive=alive(), alive_age_s=12.0))
    assert isinstance(attached, Attach)
    refused = decide_submission(try_facts(), attempt_facts(silent, alive=alive(), alive_age_s=120.0))
    assert isinstance(refused, Refuse)
    assert refused.failure.is_retryable


@pytest.mark.scenario("C55")
def test_a_clear_of_a_mapped_sibling_touches_nothing_here() -> None:
    """C55: `clear_number` is the DAG run's; this instance's own counters did not move."""
    facts = attempt_facts(seen("RUNNING"))
    assert isinstance(decide_submission(try_facts(2, clear_number=1), facts), Attach)


def test_a_refused_result_is_not_trained_again_by_a_retry_but_by_a_clear() -> None:
    facts = attempt_facts(
        seen("SUCCEEDED"), outcome=outcome(), collected=collected(False, refused_because="restore not proven")
    )
    assert isinstance(decide_submission(try_facts(), facts), Refuse)
    assert isinstance(decide_submission(try_facts(max_tries=6), facts), Restore)


def test_the_first_post_of_a_cleared_try_may_be_repeated_by_that_try() -> None:
    """It claimed g2/a1 itself: no clear against itself, the POST never arrived, the same id again."""
    me = try_facts(3, max_tries=6, own_ks=frozenset({7}))
    mine = claim(2, 1, k=7, session_name="session_2026-11-29_01")
    facts = attempt_facts(gone(), claim=mine, acting_owner=owner(7, try_number=3, max_tries=6))
    decision = decide_submission(me, facts, spec_digest="s", code_digest="c")
    assert isinstance(decision, Repost)
    assert decision.submission_id == "raytrain-2-1"
