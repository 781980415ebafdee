"""Typed errors. Each says what happened, what is known and what to change, and carries its failure kind."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.redaction import redact
from airflow_provider.core.strict_json import shortened, storable

MAX_PART = 4_000
"""Characters of one part of a message: an error may quote what a server or a record holds."""


class RayTrainError(Exception):
    """Base of every error this provider raises.

    `what` is one sentence, `known` the facts behind it, `change` what a person can do.
    Keyword facts become attributes, survive pickling, and must never hold a secret.
    """

    kind: ClassVar[FailureKind] = FailureKind.INFRASTRUCTURE

    def __init__(self, what: str, *, known: str = "", change: str = "", **facts: Any) -> None:
        what, known, change = (shortened(storable(part), limit=MAX_PART) for part in (what, known, change))
        self.what, self.known, self.change, self.facts = what, known, change, facts
        parts = [what.rstrip(".") + "."]
        if known:
            parts.append(f"Known: {known.rstrip('.')}.")
        if change:
            parts.append(f"To do: {change.rstrip('.')}.")
        super().__init__(" ".join(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling between processes with all facts."""
        return (_rebuild, (type(self), self.what, self.known, self.change, self.facts))

    def __getattr__(self, name: str) -> Any:
        """Read a fact as an attribute."""
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    @property
    def failure(self) -> Failure:
        """The error as a classified failure, for records and the retry policy."""
        return Failure(kind=self.kind, reason=redact(str(self)), exception_type=type(self).__name__)


def _rebuild(cls: type[RayTrainError], what: str, known: str, change: str, facts: dict[str, Any]) -> RayTrainError:
    return cls(what, known=known, change=change, **facts)


class InvalidConfig(RayTrainError):
    """A parameter, connection or spec is wrong; found before anything was submitted."""

    kind = FailureKind.CONFIG


class InvalidCondition(InvalidConfig):
    """A condition on metrics does not parse; the fact `column` says where, from 1."""


class FunctionNotShippable(InvalidConfig):
    """A function of a DAG file uses something that can't travel to the cluster; found when the DAG is parsed."""


class FileChanged(RayTrainError):
    """A file was written or went away while we read it, for example by a deployment; the next try reads it anew."""


# --- cluster -----------------------------------------------------------------------------------------------------


class ClusterUnreachable(RayTrainError):
    """No usable answer from the dashboard: refused, reset, timed out or 5xx. Says nothing about the job."""

    kind = FailureKind.NETWORK


class ClusterTimeout(ClusterUnreachable):
    """The dashboard accepted the request and did not answer in time: a POST may have been accepted."""


class ClusterAuthFailed(RayTrainError):
    """The dashboard answered 401 or 403."""

    kind = FailureKind.AUTH


class NotARayDashboard(RayTrainError):
    """Something answered 200 that is not Ray's Jobs API, for example a proxy's HTML page."""

    kind = FailureKind.CONFIG


class ClusterRefused(RayTrainError):
    """The dashboard answered a 4xx that is neither authentication nor "not found"; the request must change."""

    kind = FailureKind.CONFIG


class ForeignJob(RayTrainError):
    """A job with our submission id exists but its metadata is not ours."""

    kind = FailureKind.CONFIG


class SubmitUnknown(ClusterUnreachable):
    """The POST may or may not have been accepted and the job could not be looked up; never submit another id."""


# --- object store ------------------------------------------------------------------------------------------------


class StoreUnreachable(RayTrainError):
    """The object store did not give a usable answer. Never means "nothing there"."""

    kind = FailureKind.NETWORK


class StoreThrottled(StoreUnreachable):
    """The object store asked to slow down (503 SlowDown, 429)."""

    kind = FailureKind.THROTTLING


class StoreCredentialsExpired(RayTrainError):
    """Temporary credentials ran out."""

    kind = FailureKind.CREDENTIALS_EXPIRED


class StorePermissionDenied(RayTrainError):
    """The object store refused an action; the message names the action and the prefix."""

    kind = FailureKind.PERMISSION


class BucketNotFound(RayTrainError):
    """The bucket (or local root) does not exist."""

    kind = FailureKind.CONFIG


class WriteConflict(RayTrainError):
    """A conditional write lost against another writer."""


class RecordUnreadable(RayTrainError):
    """A record or manifest is present but can't be read: torn, foreign, or newer than this release."""

    kind = FailureKind.CHECKPOINT


class MessageUnreadable(RayTrainError):
    """What Airflow kept between two of our processes (an event, a trigger's row, an XCom) can't be read.

    The bucket knows all that it said, so another try finds its way.
    """


class AssetEventUnreadable(RayTrainError):
    """An asset event doesn't say which checkpoint it is about: somebody else emitted it, or the training had none."""

    kind = FailureKind.CONFIG


# --- decisions ---------------------------------------------------------------------------------------------------


class NoUsableCheckpoint(RayTrainError):
    """Checkpoints exist but none can be restored under the chosen policy; nothing was overwritten."""

    kind = FailureKind.CHECKPOINT


class NoParentCheckpoint(NoUsableCheckpoint):
    """A warm start found no checkpoint that can be used, and `missing="fail"` forbids to begin from the start."""


class ForeignLayout(RayTrainError):
    """A warm start's parent is there, but it is no Ray Train checkpoint: another framework's, or a folder of many."""

    kind = FailureKind.CONFIG


class ForeignExperiment(RayTrainError):
    """The experiment path belongs to another task instance."""

    kind = FailureKind.CONFIG


class Superseded(RayTrainError):
    """A newer try owns the experiment; this process touches nothing and publishes nothing."""

    kind = FailureKind.SUPERSEDED


class RayJobFailed(RayTrainError):
    """The training ended without success; `failure` carries the kind, the reason and the inner exception."""

    def __init__(self, what: str, *, known: str = "", change: str = "", failure: Failure, **facts: Any) -> None:
        super().__init__(what, known=known, change=change, **facts)
        self.facts["failure"] = failure

    @property
    def failure(self) -> Failure:
        """The classified failure that ended the training."""
        failure: Failure = self.facts["failure"]
        return failure
