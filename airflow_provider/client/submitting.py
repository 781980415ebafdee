"""Submit a job under its deterministic id, or find it there. Decisions only: the clients carry out each step.

A POST whose answer is lost may have been accepted. So the id is never changed: we look it up, attach to a job that is
ours, refuse one that isn't, and send the same id again only after Ray said that it doesn't know it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from airflow_provider.client.values import (
    AlreadyExists,
    JobInfo,
    JobRequest,
    Package,
    SubmitAccepted,
    SubmitOrigin,
    SubmitOutcome,
)
from airflow_provider.core.errors import (
    ClusterUnreachable,
    ForeignJob,
    NotARayDashboard,
    RayTrainError,
    SubmitUnknown,
)


@dataclass(frozen=True)
class SubmitLimits:
    """How often and how long a submit tries; times in seconds."""

    max_posts: int = 3
    max_lookups: int = 5
    """Questions for the id after one POST before we give up."""
    max_package_tries: int = 3
    first_wait_s: float = 1.0
    """Before the first look-up or repetition; doubles with each."""
    max_wait_s: float = 10.0

    def wait_s(self, tries: int) -> float:
        """Pause before the next try after `tries` (from 1) in vain."""
        return float(min(self.max_wait_s, self.first_wait_s * 2 ** min(tries - 1, 16)))


@dataclass(frozen=True)
class EnsurePackage:
    """Ask for a package, which renews it, and upload it if it isn't there. Answer: None or an error."""

    package: Package


@dataclass(frozen=True)
class Post:
    """Send the job. Answer: SubmitAccepted, AlreadyExists or an error."""

    request: JobRequest


@dataclass(frozen=True)
class LookUp:
    """Ask for the id. Answer: JobInfo, None or an error."""

    submission_id: str


@dataclass(frozen=True)
class Wait:
    """Do nothing for a while. Answer: None."""

    seconds: float


Step = EnsurePackage | Post | LookUp | Wait
Answer = SubmitAccepted | AlreadyExists | JobInfo | RayTrainError | None
Steps = Generator[Step, Answer, SubmitOutcome]


def submit_or_find_steps(
    request: JobRequest, *, packages: Sequence[Package] = (), limits: SubmitLimits = SubmitLimits()
) -> Steps:
    """Yield what to do next; returns the outcome.

    Raises:
        ForeignJob: the id is taken by a job with other metadata.
        SubmitUnknown: a POST may have been accepted and we couldn't find out.
        ClusterUnreachable: no POST can have been accepted.
        ClusterRefused, ClusterAuthFailed, NotARayDashboard, InvalidConfig: at once, as the dashboard said it.

    """
    last: ClusterUnreachable | None = None
    is_open = False  # whether a POST may have been accepted without our knowing
    for num_posts in range(1, limits.max_posts + 1):
        for package in packages:
            yield from _ensure_package(request, package, limits=limits, is_open=is_open)
        answer = yield Post(request)
        if isinstance(answer, SubmitAccepted):
            return _accepted(request, answer, num_posts=num_posts)
        if isinstance(answer, ClusterUnreachable):
            last = answer
            is_open = is_open or not answer.facts.get("never_sent", False)
        elif isinstance(answer, RayTrainError):
            raise answer
        yield Wait(limits.wait_s(num_posts))
        job = yield from _look_up(request, limits=limits, is_open=is_open or isinstance(answer, AlreadyExists))
        if job is not None:
            return _found(request, job, num_posts=num_posts)
    raise _not_submitted(request, last, num_posts=limits.max_posts, is_open=is_open)


def _ensure_package(
    request: JobRequest, package: Package, *, limits: SubmitLimits, is_open: bool
) -> Generator[Step, Answer, None]:
    for tries in range(1, limits.max_package_tries + 1):
        answer = yield EnsurePackage(package)
        if not isinstance(answer, RayTrainError):
            return
        if not isinstance(answer, ClusterUnreachable) or tries == limits.max_package_tries:
            raise _unknown(request, answer, tries=tries) if is_open else answer
        yield Wait(limits.wait_s(tries))


def _look_up(request: JobRequest, *, limits: SubmitLimits, is_open: bool) -> Generator[Step, Answer, JobInfo | None]:
    for tries in range(1, limits.max_lookups + 1):
        answer = yield LookUp(request.submission_id)
        if isinstance(answer, JobInfo):
            return answer
        # A gateway that restarts answers pages; that is no word about the job, so it is asked again like a 5xx.
        if isinstance(answer, (ClusterUnreachable, NotARayDashboard)):
            if tries == limits.max_lookups:
                raise _unknown(request, answer, tries=tries) if is_open else answer
            yield Wait(limits.wait_s(tries))
        elif isinstance(answer, RayTrainError):
            raise answer
        else:
            return None
    return None


def _accepted(request: JobRequest, answer: SubmitAccepted, *, num_posts: int) -> SubmitOutcome:
    if answer.submission_id != request.submission_id:
        raise NotARayDashboard(
            f"the dashboard accepted job {request.submission_id} under another id",
            known=f"it answered {answer.submission_id[:200]}",
            change="check what stands between Airflow and the dashboard",
            submission_id=request.submission_id,
        )
    return SubmitOutcome(
        submission_id=request.submission_id,
        origin=SubmitOrigin.POSTED,
        num_posts=num_posts,
        reason=f"submitted {request.submission_id}" + (f" with POST {num_posts}" if num_posts > 1 else ""),
    )


def _found(request: JobRequest, job: JobInfo, *, num_posts: int) -> SubmitOutcome:
    if not job.has_metadata(request.metadata):
        differing = sorted(key for key, value in request.metadata.items() if job.metadata.get(key) != value)
        raise ForeignJob(
            f"job {request.submission_id} exists on the cluster and is not ours",
            known=f"status {job.status.value}; metadata differs in {', '.join(differing)}",
            change="find out who else submits under this id (another Airflow on this path?); nothing was stopped",
            submission_id=request.submission_id,
            status=job.status.value,
        )
    return SubmitOutcome(
        submission_id=request.submission_id,
        origin=SubmitOrigin.FOUND,
        num_posts=num_posts,
        reason=f"found {request.submission_id} ({job.status.value}) after POST {num_posts} went without a clear answer",
        job=job,
    )


def _unknown(request: JobRequest, error: RayTrainError, *, tries: int) -> SubmitUnknown:
    return SubmitUnknown(
        f"job {request.submission_id} may or may not have been accepted",
        known=f"no usable answer in {tries} tries; the last: {error.what}",
        change="nothing if the cluster comes back: the next try looks up the same id",
        submission_id=request.submission_id,
    )


def _not_submitted(
    request: JobRequest, last: ClusterUnreachable | None, *, num_posts: int, is_open: bool
) -> ClusterUnreachable:
    known = last.what if last else 'Ray said "already exists" and then that it doesn\'t know the id'
    facts = {"submission_id": request.submission_id, "num_posts": num_posts}
    what = f"job {request.submission_id} could not be submitted in {num_posts} POSTs"
    change = "nothing if the cluster comes back: the next try uses the same id"
    if is_open:
        # Ray may still be working on a POST whose answer was lost (ray issue 62766).
        return SubmitUnknown(what, known=f"Ray doesn't know the id yet; {known}", change=change, **facts)
    return ClusterUnreachable(what, known=known, change=change, **facts)
