"""What a test looks at after a run: tries, what was submitted, what Airflow was told."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.spec import ScalingConfig

if TYPE_CHECKING:
    from airflow_provider.testing.driver import FakeDriver


@dataclass(frozen=True)
class Submission:
    """One job as the cluster got it."""

    submission_id: str
    spec: JobSpec
    """All that travelled to the driver: experiment, attempt, deadline, restore policy, what to train."""
    request: Mapping[str, Any]
    """The body of the POST."""
    files: tuple[str, ...]
    """The author's `working_dir`, as packed."""
    restored_checkpoint: str | None
    """URI of the checkpoint that this attempt began from, its own experiment's."""
    warm_started_from: str | None
    """URI of the parent's checkpoint, where the attempt began from that."""

    @property
    def runtime_env(self) -> dict[str, Any]:
        """Ray's runtime environment."""
        return dict(self.request.get("runtime_env") or {})

    @property
    def entrypoint(self) -> str:
        """The job's command."""
        return str(self.request["entrypoint"])

    @property
    def scaling(self) -> ScalingConfig:
        """The workers that were asked for."""
        return self.spec.training.scaling

    @property
    def train_loop_config(self) -> dict[str, Any] | None:
        """The rendered config, or a decorated function's arguments."""
        return self.spec.training.train_loop_config


@dataclass(frozen=True)
class EmittedEvent:
    """An asset event that the task's success registers."""

    asset: str
    uri: str
    extra: dict[str, Any]


@dataclass
class TryRun:
    """One try of the task, over its deferrals."""

    try_number: int
    state: str = "running"
    """As Airflow calls it: `success`, `up_for_retry`, `failed`, `skipped`."""
    error: BaseException | None = None
    decisions: list[str] = field(default_factory=list)
    """Each decision's own sentence: start, restore, attach, ... with the numbers behind it."""
    submissions: list[Submission] = field(default_factory=list)
    num_deferrals: int = 0
    retry_reason: str | None = None
    """What the retry policy said."""
    xcoms: dict[str, Any] = field(default_factory=dict)
    """What this try left; Airflow deletes it when the next one starts."""
    rendered: dict[str, Any] = field(default_factory=dict)
    """The template fields, rendered."""
    asset_events: list[EmittedEvent] = field(default_factory=list)


@dataclass
class TaskRun:
    """A task instance over its tries. What is asked without naming a try is the last one's."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    tries: list[TryRun] = field(default_factory=list)

    @property
    def last(self) -> TryRun:
        """The last try."""
        return self.tries[-1]

    @property
    def state(self) -> str:
        """How the task ended."""
        return self.last.state

    @property
    def error(self) -> BaseException | None:
        """What ended the last try; None after a success."""
        return self.last.error

    @property
    def xcoms(self) -> dict[str, Any]:
        """XComs by key."""
        return self.last.xcoms

    @property
    def return_value(self) -> Any:
        """The task's result."""
        return self.last.xcoms.get("return_value")

    @property
    def asset_events(self) -> list[EmittedEvent]:
        """Asset events, gated ones only where the gate let them out."""
        return self.last.asset_events

    @property
    def submissions(self) -> list[Submission]:
        """All jobs of all tries, in order."""
        return [submission for one in self.tries for submission in one.submissions]

    @property
    def decision(self) -> str:
        """The last try's last decision."""
        return self.last.decisions[-1] if self.last.decisions else ""


def submission_of(driver: FakeDriver, packages: Mapping[str, bytes]) -> Submission:
    """A job as a test sees it."""
    request = driver.job.request
    code = str((request.get("runtime_env") or {}).get("working_dir"))
    files: tuple[str, ...] = ()
    if code in packages:
        with zipfile.ZipFile(io.BytesIO(packages[code])) as package:
            # Ray packs the folder itself: what a job sees lies below it.
            files = tuple(sorted(name for name in package.namelist() if not name.endswith("/")))
    restored = driver.records.restored(driver.spec.ref)
    name = restored.checkpoint if restored else None
    folder = f"{driver.spec.experiment_uri}/g{driver.spec.ref.generation:06d}"
    return Submission(
        submission_id=driver.spec.submission_id,
        spec=driver.spec,
        request=request,
        files=files,
        restored_checkpoint=f"{folder}/{name}" if name else None,
        warm_started_from=restored.warm_started_from if restored else None,
    )
