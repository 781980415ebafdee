"""Invariants of the decision over arbitrary facts, and over lives of an experiment that obeys it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider.core.decision import (
    Attach,
    AttemptFacts,
    ClusterSilent,
    Collect,
    Decision,
    Finished,
    JobSeen,
    JobUnknown,
    Refuse,
    Repost,
    Restore,
    Start,
    StopThenRestore,
    TryFacts,
    decide_submission,
    detect_clear,
    replaced_by,
)
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.job import JobStatus
from airflow_provider.core.kill import KillFacts, decide_kill, decide_trigger_kill
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import OutcomeState
from tests.support.records import alive, attempt_facts, claim, collected, gone, outcome, owner, ref, seen, try_facts

ON_CLEAR: Any = st.sampled_from(["auto", "restore", "fresh"])
SESSIONS = st.sampled_from([None, "s1", "s2"])
OUTCOMES = st.none() | st.sampled_from([outcome(s.value) for s in OutcomeState])
TRIES = st.builds(
    TryFacts,
    dag_run_identity=st.sampled_from(["i1", "i2"]),
    try_number=st.integers(0, 4),
    max_tries=st.integers(0, 2),
    clear_number=st.integers(0, 1),
    own_ks=st.frozensets(st.integers(1, 4), max_size=3),
)
JOBS = st.one_of(
    st.builds(JobSeen, st.sampled_from(JobStatus)),
    st.builds(JobUnknown, SESSIONS),
    st.just(ClusterSilent("timed out")),
)


@st.composite
def attempts(draw: st.DrawFn) -> AttemptFacts:
    """Any combination, also those that no run of the protocol should reach."""
    k = draw(st.integers(1, 4))
    is_alive = draw(st.booleans())
    acting = owner(
        k,
        dag_run_identity=draw(st.sampled_from(["i1", "i2"])),
        try_number=draw(st.integers(0, 4)),
        max_tries=draw(st.integers(0, 2)),
        clear_number=draw(st.integers(0, 1)),
    )
    made = claim(draw(st.integers(1, 9)), draw(st.integers(1, 9)), k=k, session_name=draw(SESSIONS))
    late = draw(st.none() | st.builds(collected, st.none() | st.booleans(), outcome=OUTCOMES))
    return AttemptFacts(
        claim=made,
        acting_owner=acting,
        job=draw(JOBS),
        stops=draw(st.frozensets(st.integers(1, 4), max_size=2)),
        has_final_stop=draw(st.booleans()),
        alive=alive() if is_alive else None,
        alive_age_s=draw(st.floats(0, 200)) if is_alive else None,
        has_manifest=draw(st.booleans()),
        outcome=draw(OUTCOMES),
        collected=late,
    )


def next_ref(decision: Decision) -> AttemptRef | None:
    """The attempt that a decision claims, or None."""
    if isinstance(decision, StopThenRestore):
        return decision.next_ref
    return decision.ref if isinstance(decision, (Start, Restore)) else None


@settings(max_examples=600)
@given(
    me=TRIES, newest=attempts(), on_clear=ON_CLEAR, spec=st.sampled_from(["s", "t"]), code=st.sampled_from(["c", "d"])
)
def test_the_rules_hold_for_any_facts(me: TryFacts, newest: AttemptFacts, on_clear: Any, spec: str, code: str) -> None:
    decision = decide_submission(me, newest, on_clear=on_clear, spec_digest=spec, code_digest=code)
    is_clear = detect_clear(me, newest.acting_owner, on_clear=on_clear).is_clear
    is_live = isinstance(newest.job, JobSeen) and not newest.job.status.is_terminal
    assert isinstance(decision, get_args(Decision))
    if replaced_by(me, newest.acting_owner) is not None:
        assert isinstance(decision, Refuse)
        assert decision.failure.kind is FailureKind.SUPERSEDED
        return
    target = next_ref(decision)
    if target is not None:
        assert target.rank > newest.claim.ref.rank
        assert not is_live or isinstance(decision, StopThenRestore), "claimed over a live job"
    elif not isinstance(decision, Refuse):
        assert decision.ref == newest.claim.ref
        assert decision.submission_id == newest.claim.submission_id
    match decision:
        case Start():
            assert target == ref(newest.claim.generation + 1, 1)
            assert is_clear
        case Restore():
            assert target == ref(newest.claim.generation, newest.claim.attempt + 1)
        case StopThenRestore():
            assert is_live
            assert is_clear or newest.is_stop_wanted
        case Attach():
            assert not is_clear
            assert not newest.is_stop_wanted
            assert is_live or (isinstance(newest.job, ClusterSilent) and (newest.alive_age_s or 0) < 60)
        case Repost():
            assert not is_clear
            assert (spec, code) == (newest.claim.spec_digest, newest.claim.code_digest)
            assert newest.job == JobUnknown(newest.claim.session_name)
            assert newest.claim.session_name is not None
            assert not any([newest.alive, newest.has_manifest, newest.final_outcome, newest.is_stop_wanted])
        case Finished():
            assert newest.collected is not None
            assert newest.collected.accepted
            assert not is_clear


@given(me=TRIES, newest=attempts(), on_clear=ON_CLEAR)
def test_every_reason_is_a_sentence_that_names_an_attempt_or_a_job(
    me: TryFacts, newest: AttemptFacts, on_clear: Any
) -> None:
    """The sentence is all that a person finds in the log at night."""
    decision = decide_submission(me, newest, on_clear=on_clear)
    reason = decision.failure.reason if isinstance(decision, Refuse) else decision.reason
    assert len(reason.split()) >= 5
    assert re.search(r"g\d+/a\d+|raytrain-\d+-\d+", reason)


STATES = st.none() | st.sampled_from(["running", "deferred", "restarting", "failed", "success", "skipped", "removed"])
NUMBERS = st.integers(0, 999_999)


@given(
    at=st.builds(AttemptRef, generation=st.integers(1, 99), attempt=st.integers(1, 99)),
    k=NUMBERS,
    newest=st.none() | NUMBERS,
    state=STATES,
    switches=st.tuples(*[st.booleans()] * 3),
)
def test_every_kill_names_the_attempt_and_the_owners_it_compared(
    at: AttemptRef, k: int, newest: int | None, state: str | None, switches: tuple[bool, bool, bool]
) -> None:
    """And never stops what a newer owner has, or what can't be known to be its own."""
    is_timed_out, is_enabled, is_readable = switches
    verdict = decide_kill(KillFacts(at, k, newest), task_state=state, is_timed_out=is_timed_out, is_enabled=is_enabled)
    of_trigger = decide_trigger_kill(ref=at, k=k, task_state=state, is_readable=is_readable)
    for one in (verdict, of_trigger):
        assert len(one.reason.split()) >= 5
        assert one.reason.endswith(f"({at}, owner {k})")
        assert one.is_stop is not one.reason.startswith("leaving the job: ")
    if verdict.is_stop:
        assert is_enabled
        assert newest == k > 0
    elif is_enabled and newest is not None and 0 < k != newest:
        assert f"owner {newest} came after" in verdict.reason


@given(me=TRIES, newest=attempts(), on_clear=ON_CLEAR)
def test_a_success_is_never_trained_again_without_a_clear(me: TryFacts, newest: AttemptFacts, on_clear: Any) -> None:
    decision = decide_submission(me, newest, on_clear=on_clear)
    done = newest.final_outcome
    if done is None or done.state is not OutcomeState.SUCCESS or replaced_by(me, newest.acting_owner) is not None:
        return
    if newest.collected is None or newest.collected.accepted is None:
        assert isinstance(decision, Collect)
    elif not detect_clear(me, newest.acting_owner, on_clear=on_clear).is_clear:
        assert isinstance(decision, (Finished, Refuse))


class Experiment(RuleBasedStateMachine):
    """Submit, crash, retry, clear, replace and stop around the decision; records change only as the protocol says."""

    def __init__(self) -> None:
        super().__init__()
        self.me = try_facts(1, own_ks=frozenset({1}))
        self.k = 1
        self.newest: AttemptFacts | None = None
        self.live: set[str] = set()
        self.accepted: set[str] = set()
        self.claimed: list[AttemptRef] = []
        self.was_cleared = False

    @rule(on_clear=ON_CLEAR, dies_before_post=st.booleans())
    def decide_and_act(self, on_clear: Any, dies_before_post: bool) -> None:
        decision = decide_submission(self.me, self.newest, on_clear=on_clear, spec_digest="s", code_digest="c")
        acting = owner(self.k, try_number=self.me.try_number, max_tries=self.me.max_tries)
        target = next_ref(decision)
        if target is not None:
            assert target not in self.claimed
            if isinstance(decision, Start) and self.claimed:
                assert self.was_cleared, "from scratch without a clear"
            if isinstance(decision, StopThenRestore):
                self.live.discard(decision.submission_id)
            assert not self.live, "a second live job"
            made = claim(target.generation, target.attempt, k=self.k, session_name="s1")
            self.claimed.append(target)
            self.newest = attempt_facts(gone("s1"), claim=made, acting_owner=acting)
            self.was_cleared = False
            if not dies_before_post:
                self._post()
        elif self.newest is not None and not isinstance(decision, Refuse):
            assert not (self.was_cleared and isinstance(decision, (Attach, Finished, Repost)))
            self.newest = replace(self.newest, acting_owner=acting)
            if isinstance(decision, Repost):
                self._post()
            if isinstance(decision, Collect):
                self._collect()

    def _collect(self) -> None:
        assert self.newest is not None
        self.accepted.add(self.newest.claim.submission_id)
        done = self.newest.outcome or outcome()
        self.newest = replace(self.newest, outcome=done, collected=collected(True))
        # Collecting acts, so an earlier clear is answered with the result it asked to drop only if that was unseen.
        self.was_cleared = False

    def _post(self) -> None:
        assert self.newest is not None
        assert self.newest.claim.submission_id not in self.live
        self.live.add(self.newest.claim.submission_id)
        self.newest = replace(self.newest, job=seen("RUNNING"))

    def _is_live(self) -> bool:
        return self.newest is not None and self.newest.claim.submission_id in self.live

    @precondition(_is_live)
    @rule(end=st.sampled_from(["success", "failed", "silent failure", "silent success"]))
    def job_ends(self, end: str) -> None:
        assert self.newest is not None
        self.live.clear()
        is_success = end.endswith("success")
        word = None if end.startswith("silent") else outcome(end)
        self.newest = replace(self.newest, job=seen("SUCCEEDED" if is_success else "FAILED"), outcome=word)

    @precondition(_is_live)
    @rule()
    def cluster_is_replaced(self) -> None:
        assert self.newest is not None
        self.live.clear()
        self.newest = replace(self.newest, job=gone("s2"), has_manifest=True)

    @precondition(_is_live)
    @rule()
    def a_stop_of_ours_is_written(self) -> None:
        assert self.newest is not None
        self.newest = replace(self.newest, stops=frozenset({self.k}))

    @rule()
    def automatic_retry(self) -> None:
        self.k += 1
        self.me = replace(self.me, try_number=self.me.try_number + 1, own_ks=frozenset({self.k}))

    @precondition(lambda self: self.newest is not None)
    @rule()
    def clear(self) -> None:
        self.automatic_retry()
        self.me = replace(self.me, max_tries=self.me.max_tries + 3)
        self.was_cleared = True

    @invariant()
    def at_most_one_job_lives_and_it_is_the_newest(self) -> None:
        assert len(self.live) <= 1
        assert self.claimed == sorted(self.claimed, key=lambda r: r.rank)
        if self.newest is not None:
            assert self.live <= {self.newest.claim.submission_id}


TestExperiment = Experiment.TestCase
TestExperiment.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
