"""The steps of one try and their order: each step closes a gap through which two processes could both train."""

from __future__ import annotations

import pytest

from airflow_provider.core.errors import (
    ClusterTimeout,
    ForeignExperiment,
    NoUsableCheckpoint,
    RayJobFailed,
    RecordUnreadable,
    StoreUnreachable,
    SubmitUnknown,
    Superseded,
)
from airflow_provider.core.failure import FailureKind
from airflow_provider.operators.training_try import MAX_ROUNDS, Over, Submitted, TrainingTry
from tests.support.experiment import owner, ref
from tests.support.fake_jobs_client import job
from tests.support.training_try import Bench, job_id

CLAIM_1 = "g000001/attempts/000001/claim.json"
CLAIM_2 = "g000001/attempts/000002/claim.json"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def run(training_try: TrainingTry) -> Submitted | Over:
    training_try.own()
    return training_try.step()


def submitted(training_try: TrainingTry) -> Submitted:
    result = run(training_try)
    assert isinstance(result, Submitted)
    return result


def test_a_first_try_owns_then_marks_then_claims_then_looks_at_the_owners_then_posts(bench: Bench) -> None:
    result = submitted(bench.new_try())
    assert bench.steps("create_if_absent", "marker", "POST") == [
        "create_if_absent owners/000001.json",
        "create_if_absent owners/000001.json",  # once per experiment: does the store keep its word?
        "marker 1",
        f"create_if_absent {CLAIM_1}",
        f"POST {job_id(1, 1)}",
    ]
    order = bench.steps("create_if_absent", "read", "POST")
    assert order[-2:] == ["read owners/000002.json", f"POST {job_id(1, 1)}"]
    assert (result.ref, result.submission_id) == (ref(1, 1), job_id(1, 1))


def test_the_claim_says_who_claimed_what_and_when_it_must_be_over(bench: Bench) -> None:
    result = submitted(bench.new_try(timeout_s=3600))
    claim = bench.records.newest_claim()
    assert claim is not None
    assert (claim.k, claim.try_number, claim.submission_id, claim.session_name) == (1, 1, job_id(1, 1), "session_1")
    assert claim.deadline is not None
    assert (claim.deadline - claim.created_at).total_seconds() == 3600
    assert result.deadline == claim.deadline


@pytest.mark.scenario("C56")
def test_the_job_names_its_task_instance_so_that_a_foreign_one_is_noticed(bench: Bench) -> None:
    run(bench.new_try())
    metadata = bench.client.requests[0].metadata
    assert metadata["airflow_dag_id"] == "d"
    assert metadata["airflow_task_id"] == "train"
    assert metadata["airflow_map_index"] == "-1"
    assert metadata["attempt"] == "g1/a1"


def test_a_retry_after_a_failure_restores_as_the_next_attempt(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    (newest,) = bench.commit("checkpoint_1")
    bench.end("failed")
    result = submitted(bench.new_try(2))
    assert result.ref == ref(1, 2)
    claim = bench.records.newest_claim()
    assert claim is not None
    assert claim.checkpoint_seen == newest
    assert bench.client.posted == [job_id(1, 2)]


def test_the_restore_point_is_looked_for_before_the_claim(bench: Bench) -> None:
    """GPUs are not taken, and no attempt is used up, for a restore that can't work."""
    bench.own(1)
    bench.claim(1)
    bench.commit("checkpoint_1")
    bench.end("failed")
    run(bench.new_try(2))
    order = bench.steps("list", "create_if_absent")
    assert order.index("list g000001/attempts/000001/checkpoint_1/") < order.index(f"create_if_absent {CLAIM_2}")


def test_a_corrupt_newest_checkpoint_falls_back_to_the_one_before_and_says_so(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    older, newest = bench.commit("checkpoint_1", "checkpoint_2", missing=("checkpoint_2",))
    bench.end("failed")
    run(bench.new_try(2))
    claim = bench.records.newest_claim()
    assert claim is not None
    assert claim.checkpoint_seen == older
    assert any(newest in line and "can't be restored" in line for line in bench.said)


def test_no_usable_checkpoint_is_an_error_and_nothing_is_claimed(bench: Bench) -> None:
    """Starting over would quietly lose what was committed."""
    bench.own(1)
    bench.claim(1)
    bench.commit("checkpoint_1", missing=("checkpoint_1",))
    bench.end("failed")
    with pytest.raises(NoUsableCheckpoint):
        run(bench.new_try(2))
    assert CLAIM_2 not in bench.written()
    assert bench.client.posted == []


def test_a_running_job_is_attached_to(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "RUNNING")
    result = submitted(bench.new_try(2))
    assert (result.ref, result.session_name) == (ref(1, 1), "session_1")
    assert bench.client.posted == []
    own = bench.records.owner(2)
    assert own is not None
    assert (own.record.acted_on, own.record.submission_id) == (ref(1, 1), job_id(1, 1))


def test_a_claimed_job_that_never_arrived_is_posted_under_its_own_id(bench: Bench) -> None:
    first = bench.new_try(1)
    bench.client.before_post = lambda: (_ for _ in ()).throw(ClusterTimeout("no answer"))
    with pytest.raises(SubmitUnknown):
        run(first)
    bench.client.before_post = lambda: None
    result = submitted(bench.new_try(2))
    assert result.ref == ref(1, 1)
    assert bench.client.posted == [job_id(1, 1)]
    assert CLAIM_2 not in bench.written()


def test_after_a_clear_the_live_job_is_stopped_before_the_next_claim(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "RUNNING")
    result = submitted(bench.new_try(2, max_tries=6))
    assert result.ref == ref(1, 2)
    assert bench.steps("create_if_absent", "stop", "POST")[1:] == [
        "create_if_absent g000001/attempts/000001/stop-000002.json",
        f"stop {job_id(1, 1)}",
        f"create_if_absent {CLAIM_2}",
        f"POST {job_id(1, 2)}",
    ]


@pytest.mark.parametrize("max_tries", [3, 6])
def test_the_claim_says_whether_a_clear_asked_for_it(bench: Bench, max_tries: int) -> None:
    """Its driver finds an accepted success of before only then to be trained on from."""
    bench.own(1)
    bench.claim(1)
    bench.end("failed")
    submitted(bench.new_try(2, max_tries=max_tries))
    claim = bench.records.newest_claim()
    assert claim is not None
    assert (claim.ref, claim.answers_clear) == (ref(1, 2), max_tries == 6)


def test_a_stopped_driver_gets_time_to_complete_its_records_but_not_for_ever(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    bench.client.ends_on_stop = False
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "RUNNING")
    run(bench.new_try(2, max_tries=6))
    assert sum(bench.slept) == 60
    assert any("the next claim fences it" in line for line in bench.said)


def test_a_pending_job_is_not_waited_for(bench: Bench) -> None:
    """Ray ignores a stop of a PENDING job; its driver obeys the record when it starts."""
    bench.own(1)
    bench.claim(1)
    bench.client.ends_on_stop = False
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "PENDING")
    assert submitted(bench.new_try(2, max_tries=6)).ref == ref(1, 2)
    assert bench.slept == []


def test_a_finished_attempt_is_published_again_without_a_post(bench: Bench) -> None:
    from tests.support.experiment import collected

    bench.own(1)
    bench.claim(1)
    bench.end("success")

    bench.store.put_raw("g000001/attempts/000001/collected.json", collected(accepted=True).body())
    result = run(bench.new_try(2))
    assert isinstance(result, Over)
    assert bench.client.posted == []
    own = bench.records.owner(2)
    assert own is not None
    assert own.record.acted_on == ref(1, 1)


def test_a_foreign_experiment_is_refused_before_anything_is_written(bench: Bench) -> None:
    bench.own(1, task_id="other")
    before = bench.written()
    with pytest.raises(ForeignExperiment, match=r"d\.other") as caught:
        bench.new_try().own()
    assert caught.value.failure.kind is FailureKind.CONFIG
    assert bench.written() == before
    assert bench.steps("marker") == []


def test_a_replaced_process_ends_at_the_marker_and_touches_nothing_more(bench: Bench) -> None:
    with pytest.raises(Superseded):
        run(bench.new_try(is_archived=True))
    assert bench.written() == ["owners/000001.json"]
    assert bench.client.posted == []


def test_a_final_stop_aimed_at_this_try_ends_it_before_it_owns(bench: Bench) -> None:
    bench.own(1, final=True, try_number=1)
    with pytest.raises(Superseded):
        bench.new_try(1).own()
    assert bench.written() == ["owners/000001.json"]


@pytest.mark.parametrize("changes", [{"identity": "i2"}, {"max_tries": 6}, {"clear_number": 1}, {"try_number": 2}])
def test_a_final_stop_does_not_end_a_try_that_came_after_a_clear(bench: Bench, changes: dict[str, int | str]) -> None:
    bench.own(1, final=True, try_number=1)
    bench.new_try(**{"try_number": 1, **changes}).own()  # type: ignore[arg-type]
    assert "owners/000002.json" in bench.written()


def test_a_lost_race_for_the_owner_number_takes_the_next_one(bench: Bench) -> None:
    def other_owns(verb: str, key: str) -> None:
        if (verb, key) == ("create_if_absent", "owners/000001.json"):
            bench.store.put_raw(key, owner(1).body())

    bench.interfere = other_owns
    training_try = bench.new_try(2)
    training_try.own()
    assert training_try.k == 2


def test_a_newer_owner_between_claim_and_post_means_no_post(bench: Bench) -> None:
    """Story 6: a replaced try thaws, claims and would post after the newest owner finished: an orphan."""

    def newer_try(verb: str, key: str) -> None:
        if (verb, key) == ("create_if_absent", CLAIM_1):
            bench.own(2, try_number=2)

    bench.interfere = newer_try
    with pytest.raises(Superseded, match="A newer try owns"):
        run(bench.new_try(1))
    assert bench.client.posted == []


def test_a_newer_try_seen_at_the_stop_means_no_stop_and_no_claim(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "RUNNING")
    training_try = bench.new_try(2, max_tries=6)
    training_try.own()
    bench.own(3, try_number=3)
    with pytest.raises(Superseded):
        training_try.step()
    assert bench.steps("stop", "POST") == []
    assert CLAIM_2 not in bench.written()


def test_an_owner_that_is_not_a_newer_try_is_owned_over_and_all_is_decided_again(bench: Bench) -> None:
    """Story 1: an older try that thawed owns a higher number; ours must not yield to it."""

    def thawed(verb: str, key: str) -> None:
        if (verb, key) == ("create_if_absent", CLAIM_1):
            bench.own(2, try_number=1)

    bench.interfere = thawed
    training_try = bench.new_try(2)
    result = submitted(training_try)
    assert training_try.k == 3
    assert bench.steps("marker") == ["marker 1", "marker 1", "marker 3"]
    # The claim was its own already, so the same attempt is posted, once.
    assert result.ref == ref(1, 1)
    assert bench.client.posted == [job_id(1, 1)]


def test_another_identity_is_never_newer_once_the_marker_is_accepted(bench: Bench) -> None:
    training_try = bench.new_try(1)
    training_try.own()
    bench.own(2, dag_run_identity="i0", try_number=9)
    assert not training_try.is_owner()
    assert training_try.k == 3


def test_a_final_owner_between_claim_and_post_ends_the_try(bench: Bench) -> None:
    """Story 7: a person marks the task failed while the claim is on its way."""

    def marked_failed(verb: str, key: str) -> None:
        if (verb, key) == ("create_if_absent", CLAIM_1):
            bench.own(2, try_number=1, final=True)

    bench.interfere = marked_failed
    with pytest.raises(Superseded, match="stopped for good"):
        run(bench.new_try(1))
    assert bench.client.posted == []
    assert bench.steps("marker") == ["marker 1"]
    assert "owners/000003.json" not in bench.written()


def test_a_lost_claim_race_decides_again(bench: Bench) -> None:
    def other_claims(verb: str, key: str) -> None:
        if (verb, key) == ("create_if_absent", CLAIM_1):
            bench.claim(1, k=1)
            bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "RUNNING")

    bench.interfere = other_claims
    result = submitted(bench.new_try(1))
    assert result.ref == ref(1, 1)
    assert bench.client.posted == []
    assert any("claimed g1/a1 first" in line for line in bench.said)


def test_a_lost_answer_to_the_post_finds_the_job_and_never_posts_another(bench: Bench) -> None:
    bench.client.after_post = lambda: (_ for _ in ()).throw(ClusterTimeout("the answer was lost"))
    result = submitted(bench.new_try())
    assert result.submission_id == job_id(1, 1)
    assert bench.client.posted == [job_id(1, 1)]
    assert any("found" in line for line in bench.said)


@pytest.mark.parametrize("key", ["owners/000001.json", CLAIM_1, "g000001/attempts/000001/outcome.json"])
def test_an_unreadable_record_raises_and_starts_nothing(bench: Bench, key: str) -> None:
    """Could not read is never "nothing there"."""
    bench.own(1)
    bench.claim(1)
    bench.end("failed")
    bench.store.put_raw(key, b'{"torn')
    before = set(bench.written())
    with pytest.raises(RecordUnreadable):
        run(bench.new_try(2))
    assert set(bench.written()) - before <= {"owners/000002.json"}
    assert bench.client.posted == []


def test_a_store_that_is_away_raises_and_starts_nothing(bench: Bench) -> None:
    bench.store.fail_call(1)
    with pytest.raises(StoreUnreachable):
        run(bench.new_try())
    assert bench.store.fired
    assert bench.written() == []


def test_a_refusal_carries_its_failure(bench: Bench) -> None:
    bench.own(1)
    bench.claim(1)
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "STOPPED")
    with pytest.raises(RayJobFailed) as caught:
        run(bench.new_try(2))
    assert caught.value.failure.kind is FailureKind.STOPPED


def test_a_try_that_never_comes_to_an_end_gives_up(bench: Bench) -> None:
    training_try = bench.new_try(2)
    training_try.own()
    training_try._claim_and_submit = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(Exception, match=f"in {MAX_ROUNDS} rounds"):
        training_try.step()
