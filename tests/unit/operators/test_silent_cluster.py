"""A try that finds a cluster which does not answer, or refuses it: attach to what lives, else say the true reason."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import (
    ClusterAuthFailed,
    ClusterRefused,
    ClusterTimeout,
    ClusterUnreachable,
    InvalidConfig,
    NotARayDashboard,
    RayJobFailed,
    RayTrainError,
    SubmitUnknown,
)
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.records import RestoredRecord
from airflow_provider.operators.training_try import Submitted
from tests.support.experiment import NOW, collected, ref
from tests.support.fake_jobs_client import job
from tests.support.memory_store import MemoryStore
from tests.support.records import alive, manifest, outcome
from tests.support.training_try import URI, Bench, job_id

CLAIM_2 = layout.claim(1, 2)
REFUSED: list[RayTrainError] = [ClusterAuthFailed("403"), InvalidConfig("unknown certificate"), ClusterRefused("400")]
SILENT: list[RayTrainError] = [NotARayDashboard("a page"), ClusterUnreachable("refused"), ClusterTimeout("too late")]


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(clock: Clock) -> Bench:
    bench = Bench(MemoryStore(URI, clock=clock))
    bench.own(1)
    bench.claim(1)
    return bench


def raised(bench: Bench, **changes: int) -> RayTrainError:
    training_try = bench.new_try(2, **changes)  # type: ignore[arg-type]
    training_try.own()
    with pytest.raises(RayTrainError) as caught:
        training_try.step()
    assert CLAIM_2 not in bench.written()
    assert bench.steps("POST", "stop") == []
    return caught.value


@pytest.mark.parametrize("error", REFUSED)
@pytest.mark.parametrize("age_s", [None, 61])
def test_what_the_cluster_refused_is_raised_itself(
    bench: Bench, clock: Clock, error: RayTrainError, age_s: float | None
) -> None:
    """ "The network is away" would be retried for hours against a wrong token."""
    if age_s is not None:
        bench.store.put_raw(layout.alive(1, 1), alive().body())
        clock.now += timedelta(seconds=age_s)
    bench.client.silence = error
    found = raised(bench)
    assert found is error
    assert not found.failure.is_retryable


@pytest.mark.parametrize("error", REFUSED)
def test_after_a_clear_it_is_raised_too(bench: Bench, error: RayTrainError) -> None:
    """The live job could not be stopped."""
    bench.store.put_raw(layout.alive(1, 1), alive().body())
    bench.client.silence = error
    assert raised(bench, max_tries=6) is error


@pytest.mark.parametrize("error", SILENT)
def test_silence_is_a_failure_of_the_network(bench: Bench, error: RayTrainError) -> None:
    bench.client.silence = error
    found = raised(bench)
    assert isinstance(found, RayJobFailed)
    assert (found.failure.kind, found.failure.is_retryable) == (FailureKind.NETWORK, True)
    assert error.what in found.failure.reason


@pytest.mark.parametrize("error", [*REFUSED, *SILENT])
def test_with_a_fresh_sign_of_life_the_try_attaches(bench: Bench, clock: Clock, error: RayTrainError) -> None:
    bench.store.put_raw(layout.alive(1, 1), alive().body())
    clock.now += timedelta(seconds=59)
    bench.client.silence = error
    training_try = bench.new_try(2)
    training_try.own()
    result = training_try.step()
    assert isinstance(result, Submitted)
    assert (result.ref, result.submission_id) == (ref(1, 1), job_id(1, 1))
    assert bench.steps("POST") == []
    assert CLAIM_2 not in bench.written()


@pytest.mark.parametrize("error", REFUSED)
def test_a_refusal_that_the_bucket_decided_is_not_hidden_by_the_clusters(bench: Bench, error: RayTrainError) -> None:
    """A result that was refused stays the reason, whatever has become of the token."""
    bench.end("success")
    record = collected(accepted=False, refused_because="no new checkpoint")
    bench.store.put_raw(layout.collected(1, 1), record.body())
    bench.client.silence = error
    found = raised(bench)
    assert found.failure.kind is FailureKind.USER
    assert "no new checkpoint" in found.failure.reason


def test_a_refusal_that_is_over_is_forgotten(bench: Bench) -> None:
    bench.client.silence = REFUSED[0]
    training_try = bench.new_try(2)
    training_try.own()
    with pytest.raises(ClusterAuthFailed):
        training_try.step()
    bench.client.silence = None
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "STOPPED")
    with pytest.raises(RayJobFailed) as caught:
        training_try.step()
    assert caught.value.failure.kind is FailureKind.STOPPED


@pytest.mark.parametrize(("late_s", "attempt"), [(-1, 1), (0, 2), (1, 2)])
def test_a_claim_whose_deadline_has_passed_is_not_posted_again(late_s: float, attempt: int) -> None:
    """Its driver would end itself at once, and the try with it."""
    bench = Bench()
    first = bench.new_try(1, timeout_s=3600)
    bench.client.before_post = lambda: (_ for _ in ()).throw(ClusterTimeout("no answer"))
    first.own()
    with pytest.raises(SubmitUnknown):
        first.step()
    bench.client.before_post = lambda: None
    claim = bench.records.newest_claim()
    assert claim is not None
    deadline = claim.deadline
    assert deadline is not None
    second = bench.new_try(2, timeout_s=3600)
    second.now = lambda: deadline + timedelta(seconds=late_s)
    second.own()
    result = second.step()
    assert isinstance(result, Submitted)
    assert result.ref == ref(1, attempt)
    assert bench.client.posted == [job_id(1, attempt)]


@pytest.mark.parametrize("is_fenced", [False, True])
def test_an_unfenced_attempts_checkpoints_are_found_in_the_generations_folder(bench: Bench, is_fenced: bool) -> None:
    """Ray kept its manifest where plain Ray does; a try reads the newest attempt without what its driver restored."""
    restored = RestoredRecord(checkpoint=None, reason="start", fenced=is_fenced, created_at=NOW)
    bench.store.put_raw(layout.restored(1, 1), restored.body())
    body = manifest("checkpoint_a").body(ray_version="2.60.0")
    bench.store.put_raw(layout.published_manifest(1), body)
    bench.store.put_raw("g000001/checkpoint_a/model.pt", b"weights")
    bench.end("failed")
    training_try = bench.new_try(2)
    training_try.own()
    training_try.step()
    claim = bench.records.claim(ref(1, 2))
    assert claim is not None
    assert claim.checkpoint_seen == (None if is_fenced else "checkpoint_a")


def test_an_outcome_counts_before_a_cluster_that_refuses(bench: Bench) -> None:
    bench.store.put_raw(layout.outcome(1, 1), outcome("success").body())
    bench.client.silence = REFUSED[0]
    training_try = bench.new_try(2)
    training_try.own()
    assert not isinstance(training_try.step(), Submitted)
