"""A try below the one that acted last on the newest attempt: Airflow replaced its process, whatever it finds."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.core.decision import (
    ClusterSilent,
    JobSight,
    Refuse,
    TryFacts,
    decide_submission,
    detect_clear,
    replaced_by,
)
from airflow_provider.core.failure import FailureKind
from tests.support.records import attempt_facts, claim, gone, owner, seen, success, try_facts

SILENT = ClusterSilent("connection refused")
JOBS: list[JobSight] = [seen("RUNNING"), seen("FAILED"), seen("SUCCEEDED"), gone(), SILENT]


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("word", [{}, success(None), success(True), success(False)])
@pytest.mark.parametrize("on_clear", ["auto", "restore", "fresh"])
def test_a_try_below_the_one_that_acted_last_is_a_replaced_process_and_no_clear(
    job: JobSight, word: dict[str, Any], on_clear: Any
) -> None:
    """Its claim would be sent again by the current try: a finished training would be trained again from the start."""
    facts = attempt_facts(job, claim=claim(1, 1, k=2), acting_owner=owner(2), **word)
    me = try_facts(1, own_ks=frozenset({1}))
    decision = decide_submission(me, facts, on_clear=on_clear, spec_digest="s", code_digest="c")
    assert isinstance(decision, Refuse)
    assert decision.failure.kind is FailureKind.SUPERSEDED
    assert not decision.failure.is_retryable
    for part in ("g1/a1", "owner 2 is try 2, this is try 1", "max_tries 3"):
        assert part in decision.failure.reason


@pytest.mark.parametrize(
    "me",
    [
        try_facts(2, own_ks=frozenset({3})),
        try_facts(1, own_ks=frozenset({2})),
        try_facts(1, own_ks=frozenset({3}), max_tries=4),
        try_facts(1, own_ks=frozenset({3}), dag_run_identity="i2"),
        try_facts(1, own_ks=frozenset({3}), clear_number=1),
    ],
    ids=["equal numbers", "own", "max_tries", "another run", "made anew and cleared"],
)
def test_a_low_number_alone_is_not_a_replaced_process(me: TryFacts) -> None:
    """Counters of another run or after a clear don't compare; a person may have deleted the task instance."""
    acting = owner(2, try_number=2)
    assert replaced_by(me, acting) is None
    assert detect_clear(me, acting, on_clear="auto").is_clear is (acting.k not in me.own_ks)
