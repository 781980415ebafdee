"""`restore` names a checkpoint: the next attempt begins from it, and a retry after it loses nothing that was committed since."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.cli.next_try import NextTry
from airflow_provider.cli.restore_plan import make_plan
from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, NoUsableCheckpoint
from airflow_provider.core.job import meaning_of_clear
from airflow_provider.core.records import ClaimRecord
from airflow_provider.core.restore import policy_of_attempt
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.operators.parameters import build_request
from airflow_provider.operators.training_try import Submitted
from tests.support.experiment import claim
from tests.support.records import collected
from tests.support.training_try import KEY, Bench
from tests.unit.cli.test_restore_plan import failed, next_try
from tests.unit.operators.test_parameters import operator

NAMED = RestorePolicy(mode="explicit", checkpoint="attempts/000001/c1")
OTHER = RestorePolicy(mode="explicit", checkpoint="attempts/000001/c2")
BEST = RestorePolicy(mode="best", metric="loss")
LATEST = RestorePolicy()


def before(policy: RestorePolicy, asked: RestorePolicy | None = None) -> ClaimRecord:
    return claim(1, 2, restore_policy=policy, asked_before=asked)


@pytest.mark.parametrize(
    ("asked", "newest", "has_committed", "answers_clear", "policy"),
    [
        pytest.param(NAMED, None, False, False, NAMED, id="the first attempt"),
        pytest.param(NAMED, before(LATEST), True, False, NAMED, id="the DAG was edited to name it"),
        pytest.param(NAMED, before(NAMED), False, False, NAMED, id="whoever restored it committed nothing"),
        pytest.param(NAMED, before(NAMED), True, False, LATEST, id="committed since"),
        pytest.param(NAMED, before(LATEST, NAMED), False, False, LATEST, id="committed by the one before"),
        pytest.param(NAMED, before(LATEST, NAMED), True, True, NAMED, id="a clear names it anew"),
        pytest.param(OTHER, before(LATEST, NAMED), True, False, OTHER, id="the DAG was edited to name another"),
        pytest.param(BEST, before(BEST), True, False, BEST, id="best is sought each time"),
        pytest.param(LATEST, before(LATEST), True, False, LATEST, id="latest"),
    ],
)
def test_a_named_checkpoint_is_begun_from_once(
    asked: RestorePolicy, newest: ClaimRecord | None, has_committed: bool, answers_clear: bool, policy: RestorePolicy
) -> None:
    found = policy_of_attempt(asked, before=newest, has_committed=has_committed, answers_clear=answers_clear)
    assert found == policy


def test_what_a_person_wants_where_it_is_damaged_goes_on_with_it() -> None:
    asked = NAMED.model_copy(update={"on_corrupt": "fail"})
    assert policy_of_attempt(asked, before=before(NAMED), has_committed=True, answers_clear=False).on_corrupt == "fail"


def seen(bench: Bench) -> tuple[str, str | None, str | None]:
    newest = bench.records.newest_claim()
    assert newest is not None
    asked = newest.asked_before.checkpoint if newest.asked_before else None
    return newest.restore_policy.mode, newest.checkpoint_seen, asked


def retried(bench: Bench, try_number: int, **changes: Any) -> tuple[str, str | None, str | None]:
    training_try = bench.new_try(try_number, restore=NAMED, **changes)
    training_try.own()
    assert isinstance(training_try.step(), Submitted)
    return seen(bench)


def test_retries_go_on_from_what_was_committed_under_it_until_a_clear(bench: Bench) -> None:
    """G2: days of training behind a named checkpoint were done again by each retry."""
    bench.own(1)
    bench.claim(1)
    c1, c2 = bench.commit("c1", "c2")
    bench.end(num_commits=2)
    assert retried(bench, 2, clear_number=1) == ("explicit", c1, None), "the clear with which a person named it"
    [c3] = bench.commit("c3", attempt=2)
    bench.end(attempt=2, num_commits=1)
    assert retried(bench, 3, clear_number=1) == ("latest", c3, c1)
    assert any("goes on from what was committed under it" in line for line in bench.said)
    bench.end(attempt=3, num_commits=0)  # it died before it had a manifest
    assert retried(bench, 4, clear_number=1) == ("latest", c3, c1)
    [c4] = bench.commit("c4", attempt=4)
    bench.end(attempt=4, num_commits=1)
    assert retried(bench, 5, clear_number=2, max_tries=7) == ("explicit", c1, None), "cleared again"
    assert c2 not in {c3, c4}


def test_the_plan_and_the_try_restore_it_when_a_success_is_cleared(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1, restore_policy=NAMED)
    c1, _ = bench.commit("c1", "c2")
    bench.end("success", num_commits=2)
    bench.store.put_raw(layout.collected(1, 1), collected(True, published=True).body())
    facts = bench.new_try(2, max_tries=6).facts
    plan = make_plan(bench.records, bench.client, key=KEY, next_try=NextTry(facts, "clear", None, ()), on_clear="auto")
    assert (str(plan.attempt), plan.point and plan.point.candidate and plan.point.candidate.name) == ("g1/a2", c1)
    assert retried(bench, 2, max_tries=6, on_clear=meaning_of_clear("auto", NAMED)) == ("explicit", c1, None)


@pytest.mark.parametrize(
    ("max_tries", "checkpoint"), [(3, "attempts/000002/checkpoint_c"), (6, "attempts/000001/checkpoint_a")]
)
def test_what_was_committed_under_a_named_checkpoint_is_gone_on_from_but_after_a_clear(
    max_tries: int, checkpoint: str
) -> None:
    bench, named = Bench(), RestorePolicy(mode="explicit", checkpoint="attempts/000001/checkpoint_a")
    failed(bench)
    bench.claim(2, restore_policy=named)
    bench.commit("checkpoint_c", attempt=2)
    bench.end("failed", attempt=2)
    plan = make_plan(bench.records, bench.client, key=KEY, next_try=next_try(max_tries=max_tries), on_clear="auto")
    assert plan.point is not None
    assert plan.point.candidate is not None
    training_try = bench.new_try(2, max_tries=max_tries, restore=named)
    training_try.own()
    training_try.step()
    claim = bench.records.newest_claim()
    assert claim is not None
    assert (plan.point.candidate.name, claim.checkpoint_seen) == (checkpoint, checkpoint)


def test_what_committed_nothing_names_it_again(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    c1, _ = bench.commit("c1", "c2")
    bench.end(num_commits=2)
    assert retried(bench, 2) == ("explicit", c1, None)
    bench.end(attempt=2, num_commits=0)
    assert retried(bench, 3) == ("explicit", c1, None)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_training_that_has_no_attempt_yet_is_refused_before_a_claim(bench: Bench) -> None:
    """Nothing of another training has that name; a claim would begin a generation that hides the one before."""
    training_try = bench.new_try(1, restore=NAMED)
    training_try.own()
    with pytest.raises(NoUsableCheckpoint, match="no attempt yet"):
        training_try.step()
    assert bench.records.newest_claim() is None
    assert bench.client.jobs == {}


def test_a_clear_after_a_success_goes_on_from_what_is_named() -> None:
    """By itself `auto` would begin a new generation then, in which nothing has that name."""
    named = operator(restore={"mode": "explicit", "checkpoint": NAMED.checkpoint})
    assert named.on_clear == "auto"
    assert build_request(named, KEY).on_clear == "restore"
    assert build_request(operator(), KEY).on_clear == "auto"


def test_a_name_and_a_fresh_beginning_contradict_each_other() -> None:
    with pytest.raises(InvalidConfig, match="on_clear='fresh' would begin without one"):
        operator(restore={"mode": "explicit", "checkpoint": NAMED.checkpoint}, on_clear="fresh")
