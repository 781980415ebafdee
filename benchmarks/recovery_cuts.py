"""From what each side left behind to the cuts of its recovery: our records, the task's log, Ray's job, the training's marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider.core.records import Phase
from benchmarks.shares import AIRFLOW, AWAY, DECIDE, DETECT, RESTORE, START, Cut
from benchmarks.step_marks import Mark, first_new_step, first_of
from benchmarks.task_log import Line, executed_at, said_at

FIRED, FAILED, ATTACHING, WATCHING = (
    "Trigger fired event",
    "Task failed with exception",
    "attaching to job",
    "the job is RUNNING",
)
"""What Airflow and the operator say in a task's log at the moments in question."""


@dataclass(frozen=True)
class Seen:
    """What is there to read after a fault."""

    killed_at: float
    marks: Sequence[Mark]
    before: Sequence[Line] = ()
    """Log of the try that was struck."""
    after: Sequence[Line] = ()
    """Log of the try that followed; the same where no other followed."""
    phases: Sequence[tuple[Phase, float]] = ()
    """Of the attempt that trained on."""
    posted_at: float | None = None
    """When Ray took the job that trained on."""
    back_at: float | None = None
    """When a head that was killed answered again."""

    def phase(self, wanted: Phase, *, after: float) -> float | None:
        """When the attempt first entered a phase after a moment."""
        return next((at for phase, at in self.phases if phase is wanted and at > after), None)


def cuts_of_new_attempt(seen: Seen) -> list[Cut]:
    """The driver or its cluster was lost: the waiter sees it, the try fails, the next one posts a job that restores."""
    back_at = seen.back_at or seen.killed_at
    resumed_at = executed_at(seen.before, after=back_at)
    failed_at = said_at(seen.before, FAILED, after=seen.killed_at)
    posted_at = seen.posted_at or seen.killed_at
    restoring_at = seen.phase(Phase.RESTORING, after=posted_at)
    restored_at = seen.phase(Phase.STARTING, after=restoring_at or posted_at)
    return [
        Cut(AWAY, seen.back_at),
        Cut(DETECT, said_at(seen.before, FIRED, after=back_at)),
        # Where the task waits in its worker there is no trigger and no resume: the failure itself ends the detection.
        Cut(AIRFLOW, resumed_at) if resumed_at else Cut(DETECT, failed_at),
        Cut(DECIDE, failed_at),
        Cut(AIRFLOW, executed_at(seen.after, after=failed_at or back_at)),
        Cut(DECIDE, seen.posted_at),
        Cut(START, restoring_at),
        Cut(RESTORE, restored_at),
        *_cuts_of_loop(seen, after=posted_at),
    ]


def cuts_of_restarted_workers(seen: Seen) -> list[Cut]:
    """Ray restarted the workers within the job: the controller sees it, waits for places, starts them, and they load."""
    lost_at = seen.phase(Phase.LOST, after=seen.killed_at)
    return [
        Cut(DETECT, lost_at),
        Cut(DECIDE, seen.phase(Phase.WAITING, after=lost_at or seen.killed_at)),
        *_cuts_of_loop(seen, after=seen.killed_at),
    ]


def cuts_of_attaching(seen: Seen) -> list[Cut]:
    """Airflow's worker was lost and the training went on: Airflow sees it and starts a try, which attaches."""
    return [
        Cut(AIRFLOW, executed_at(seen.after, after=seen.killed_at)),
        Cut(DECIDE, said_at(seen.after, ATTACHING, after=seen.killed_at)),
    ]


def cuts_of_new_triggerer(seen: Seen) -> list[Cut]:
    """The triggerer was lost and the training went on: another one starts the trigger again, which looks at the job."""
    started_at = next((x.at for x in seen.after if x.at > seen.killed_at and x.text.endswith("starting")), None)
    return [
        Cut(AIRFLOW, started_at),
        Cut(DECIDE, said_at(seen.after, WATCHING, after=started_at or seen.killed_at)),
    ]


def cuts_of_plain(seen: Seen) -> list[Cut]:
    """Ray alone: its workers restarted, or a job was posted again."""
    posted_at = seen.posted_at
    return [
        Cut(AWAY, seen.back_at),
        Cut(DETECT, posted_at),
        *_cuts_of_loop(seen, after=posted_at or seen.killed_at),
    ]


def cuts_of_retried_task(seen: Seen) -> list[Cut]:
    """A task that waits in its worker: it sees its job fail, and Airflow starts another try, which posts anew."""
    failed_at = said_at(seen.before, FAILED, after=seen.killed_at)
    return [
        Cut(DETECT, failed_at),
        Cut(AIRFLOW, executed_at(seen.after, after=failed_at or seen.killed_at)),
        Cut(DECIDE, seen.posted_at),
        *_cuts_of_loop(seen, after=seen.posted_at or seen.killed_at),
    ]


def _cuts_of_loop(seen: Seen, *, after: float) -> list[Cut]:
    step = first_new_step(seen.marks, killed_at=seen.killed_at)
    loop = first_of(seen.marks, "loop", after=after)
    return [Cut(START, loop.at if loop else None), Cut(RESTORE, step.at if step else None)]
