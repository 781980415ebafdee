"""No answer ever leads to a second id, a second job, or an attach to somebody else's (C23, G1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.client import AlreadyExists, JobInfo, JobRequest, JobStatus, Package, SubmitAccepted, SubmitOrigin
from airflow_provider.client.submitting import Answer, EnsurePackage, LookUp, Post, Step, Wait, submit_or_find_steps
from airflow_provider.client.values import SubmitOutcome
from airflow_provider.core.errors import (
    ClusterAuthFailed,
    ClusterRefused,
    ClusterTimeout,
    ClusterUnreachable,
    ForeignJob,
    InvalidConfig,
    NotARayDashboard,
    RayTrainError,
    SubmitUnknown,
)

REQUEST = JobRequest("job-1", "python x.py", {"dag": "d", "try": "1"})
OURS = JobInfo("job-1", JobStatus.RUNNING, metadata={"dag": "d", "try": "1", "job_name": "added by Ray"})
FOREIGN = JobInfo("job-1", JobStatus.RUNNING, metadata={"dag": "other", "try": "1"})
LOST = ClusterTimeout("no answer")
DOWN = ClusterUnreachable("refused", never_sent=True)
ACCEPTED = SubmitAccepted("job-1")


def play(
    posts: list[Answer], lookups: list[Answer], *, packages: list[Package] | None = None
) -> tuple[SubmitOutcome, list[Step]]:
    """Answer the procedure's steps from two scripts; running out of a script is a failure."""
    taken: list[Step] = []
    steps = submit_or_find_steps(REQUEST, packages=packages or [])
    answer: Answer = None
    posts, lookups = list(posts), list(lookups)
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return end.value, taken
        taken.append(step)
        assert len(taken) < 200
        if isinstance(step, Post):
            assert step.request is REQUEST, "never another id"
            answer = posts.pop(0)
        elif isinstance(step, LookUp):
            answer = lookups.pop(0)
        else:
            answer = None


def test_accepted_at_once() -> None:
    """The plain case asks nothing more."""
    outcome, steps = play([ACCEPTED], [])
    assert (outcome.origin, outcome.num_posts, len(steps)) == (SubmitOrigin.POSTED, 1, 1)


@pytest.mark.parametrize(
    "answer", [LOST, ClusterUnreachable("reset"), ClusterUnreachable("502", status=502), AlreadyExists(500)]
)
def test_lost_answer_then_found(answer: Answer) -> None:
    """The first POST was accepted: attach instead of a second job."""
    outcome, steps = play([answer], [OURS])
    assert (outcome.origin, outcome.job) == (SubmitOrigin.FOUND, OURS)
    assert sum(isinstance(step, Post) for step in steps) == 1


def test_lost_then_unknown_then_already_exists_then_found() -> None:
    """Ray was still working on the first POST when we asked."""
    outcome, _ = play([LOST, AlreadyExists(500)], [None, OURS])
    assert (outcome.origin, outcome.num_posts) == (SubmitOrigin.FOUND, 2)


def test_foreign_job_is_refused() -> None:
    """Attaching to it would report another's result; the message names the keys that differ."""
    with pytest.raises(ForeignJob, match="differs in dag") as error:
        play([AlreadyExists(400)], [FOREIGN])
    assert not error.value.kind.is_retryable


def test_three_posts_at_most() -> None:
    """With an open POST the outcome is unknown; with none it is plainly unreachable."""
    with pytest.raises(SubmitUnknown):
        play([LOST, LOST, LOST], [None, None, None])
    with pytest.raises(ClusterUnreachable) as error:
        play([DOWN, DOWN, DOWN], [None, None, None])
    assert not isinstance(error.value, SubmitUnknown)


def test_lookup_is_bounded() -> None:
    """The cluster went away after the POST: unknown, and never another id."""
    with pytest.raises(SubmitUnknown) as error:
        play([LOST], [DOWN] * 5)
    assert error.value.submission_id == "job-1"
    outcome, _ = play([LOST], [DOWN, NotARayDashboard("a page"), OURS])
    assert outcome.origin is SubmitOrigin.FOUND


@pytest.mark.parametrize(
    "error", [ClusterRefused("400"), ClusterAuthFailed("401"), NotARayDashboard("page"), InvalidConfig("x")]
)
def test_other_refusals_end_at_once(error: RayTrainError) -> None:
    """Repeating them can't help."""
    with pytest.raises(type(error)):
        play([error], [])
    if not isinstance(error, NotARayDashboard):
        with pytest.raises(type(error)):
            play([LOST], [error])


def test_packages_are_renewed_before_each_post() -> None:
    """Ray drops a package after 10 minutes; a repeated POST may come later than that."""
    _, steps = play([LOST, ACCEPTED], [None], packages=[Package("gcs://a.zip", b"")])
    assert [type(step) for step in steps] == [EnsurePackage, Post, Wait, LookUp, EnsurePackage, Post]


_ANSWERS = st.sampled_from([LOST, DOWN, AlreadyExists(500), ClusterRefused("x"), ClusterAuthFailed("x"), ACCEPTED])
_LOOKUPS = st.sampled_from([None, OURS, FOREIGN, LOST, DOWN, NotARayDashboard("x"), ClusterAuthFailed("x")])


@given(posts=st.lists(_ANSWERS, min_size=3, max_size=3), lookups=st.lists(_LOOKUPS, min_size=15, max_size=15))
def test_any_script_ends_in_an_outcome_or_a_typed_error(posts: list[Answer], lookups: list[Answer]) -> None:
    """Bounded, and a found job is always ours."""
    try:
        outcome, steps = play(posts, lookups)
    except RayTrainError as error:
        ended = error
    else:
        assert outcome.job is None or outcome.job is OURS
        assert sum(isinstance(step, Post) for step in steps) <= 3
        return
    assert type(ended) is not ClusterUnreachable or posts[0] is not LOST
