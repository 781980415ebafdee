"""What a training does in a test: one outcome for each job, in the order in which the jobs are submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider.core.failure import Failure, FailureKind

Metrics = Mapping[str, Any]


class Outcome:
    """Base of all outcomes. Each of `reports` is the metrics of one `ray.train.report` with a checkpoint."""

    def __init__(self, *reports: Metrics) -> None:
        self.reports = tuple(dict(report) for report in reports)

    def __repr__(self) -> str:
        """As it is written in a test."""
        return f"{type(self).__name__}({', '.join(map(repr, self.reports))})"


class Succeeds(Outcome):
    """The training ends with success after its reports; without any it commits one checkpoint without metrics."""

    def __init__(self, *reports: Metrics) -> None:
        super().__init__(*(reports or ({},)))


class CommitsNothing(Outcome):
    """The job ends with success and has committed no checkpoint."""


class FailsWith(Outcome):
    """The driver ends with a failure of one kind, which decides about a retry (`FailureKind.PREEMPTION`, ...)."""

    def __init__(self, kind: FailureKind, *reports: Metrics, reason: str = "", exception_type: str = "") -> None:
        super().__init__(*reports)
        self.failure = Failure(
            kind=kind, reason=reason or f"a test says: {kind.value}", exception_type=exception_type or None
        )


class UserError(FailsWith):
    """An error in the training code, after its reports: trying again can't help."""

    def __init__(self, *reports: Metrics, exception: str = "ValueError: the test's own error") -> None:
        name = exception.partition(":")[0].strip()
        super().__init__(FailureKind.USER, *reports, reason=exception, exception_type=name)


class DriverLost(Outcome):
    """The driver dies with its node after its reports, and leaves no word: the next try restores what was committed."""


class NeverEnds(Outcome):
    """The training goes on after its reports, with a driver that is alive, until `stall_timeout_s` or the deadline ends it."""


class Unreachable(Outcome):
    """After the submit neither dashboard nor driver can be reached for the rest of the try; the training goes on.

    The next try reaches the cluster, attaches to the job, and sees `then`.
    """

    def __init__(self, *reports: Metrics, then: Outcome | None = None) -> None:
        super().__init__(*reports)
        self.then = then or Succeeds()
