"""A try that must not submit any more, or that would submit for ever."""

from __future__ import annotations

import pytest

from airflow_provider.core.errors import RayTrainError, Superseded
from airflow_provider.operators.training_try import ENDED_STATES, MAX_ATTEMPTS_PER_OWNER
from tests.support.fake_jobs_client import job
from tests.support.training_try import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("state", sorted(ENDED_STATES))
def test_a_mark_that_reached_no_listener_keeps_the_post_from_being_sent(bench: Bench, state: str) -> None:
    """Marked before the first owner record: nobody else can stop what would be submitted now."""
    training_try = bench.new_try()
    training_try.task_state = lambda: state
    training_try.own()
    with pytest.raises(Superseded, match="Nothing is submitted any more"):
        training_try.step()
    assert bench.client.posted == []


@pytest.mark.parametrize("state", [None, "running"])
def test_a_running_or_unknown_state_submits(bench: Bench, state: str | None) -> None:
    training_try = bench.new_try()
    training_try.task_state = lambda: state
    training_try.own()
    training_try.step()
    assert len(bench.client.posted) == 1


def test_one_owner_claims_a_bounded_number_of_attempts(bench: Bench) -> None:
    """A cluster that does not see our bucket ends each job as superseded; each deferral starts a new process."""
    training_try = bench.new_try()
    training_try.own()
    for number in range(1, MAX_ATTEMPTS_PER_OWNER + 1):
        training_try.step()
        assert len(bench.client.posted) == number
        posted = bench.client.posted[-1]
        bench.client.jobs[posted] = job(posted, "FAILED")
    with pytest.raises(RayTrainError, match="jobs of this try ended without a word"):
        training_try.step()
    assert len(bench.client.posted) == MAX_ATTEMPTS_PER_OWNER
