"""Our ears and our one veto inside the Ray Train controller and its workers.

Runs in processes that belong to Ray: nothing here may raise or block, but for the veto. Ray calls the state hook up to
70,000 times a second while it waits for nodes, so an unchanged phase returns at once.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ray.train.v2._internal.execution.callback import (
    ControllerCallback,
    ReportCallback,
    WorkerCallback,
    WorkerGroupCallback,
)

from airflow_provider.core.errors import RayJobFailed
from airflow_provider.core.failure import Failure
from airflow_provider.core.fit_rules import SeenFailure, decide_fit_failure
from airflow_provider.core.records import Phase
from airflow_provider.core.spec import FailureConfig
from airflow_provider.core.strict_json import bounded_metrics
from airflow_provider.runtime.events import (
    CommitEvent,
    FailureEvent,
    PhaseEvent,
    ReportEvent,
    StartEvent,
    append_event,
)
from airflow_provider.runtime.exceptions import classify_exception
from airflow_provider.runtime.held_deletions import RestoreWatch
from airflow_provider.runtime.plain_metrics import to_plain
from airflow_provider.runtime.warm_start import give_parent

if TYPE_CHECKING:
    from ray.train import Checkpoint

    from airflow_provider.runtime.fencing import AttemptStorageContext

logger = logging.getLogger(__name__)

PHASES: Mapping[str, Phase] = {
    "INITIALIZING": Phase.WAITING,
    "SCHEDULING": Phase.WAITING,
    "RESCHEDULING": Phase.WAITING,
    "RESIZING": Phase.WAITING,
    "RUNNING": Phase.TRAINING,
    "PREEMPTING": Phase.TRAINING,
    "RESTARTING": Phase.LOST,
    "SHUTTING_DOWN": Phase.FINISHING,
    "ERRORED": Phase.FINISHING,
    "FINISHED": Phase.FINISHING,
    "ABORTED": Phase.FINISHING,
}


class FitEnded(RayJobFailed):
    """Our rule ended the fit: `failure` says why. Ray turns it into a ControllerError, which it never retries."""


class ControllerEvents(ControllerCallback, ReportCallback, WorkerGroupCallback, WorkerCallback):  # type: ignore[misc]
    """Tells the driver what happens, and ends a fit that can't succeed. Pickled into the controller and the workers."""

    def __init__(
        self,
        events_path: str,
        *,
        run_folder: str,
        failure_config: FailureConfig,
        parent: Checkpoint | None = None,
        storage: AttemptStorageContext | None = None,
        progress_metric: str | None = None,
    ) -> None:
        """`run_folder` is Ray's run directory on the filesystem: checkpoint names are relative to it.

        `parent` is what `ray.train.get_checkpoint()` answers while the run has no checkpoint of its own. With `storage`, the
        fenced one, retention waits for the proof of each restore.
        """
        self.events_path, self.run_folder, self.failure_config = events_path, run_folder, failure_config
        self.parent, self.storage = parent, storage
        self._watch = RestoreWatch(storage.storage_filesystem.fence, declared=progress_metric) if storage else None
        self._phase: Phase | None = None
        self._awaits_first_report = True
        self._num_commits = 0
        self._seen: list[SeenFailure] = []
        self._pending: Failure | None = None

    # --- controller ---------------------------------------------------------------------------------------------

    def after_controller_start(self, train_run_context: Any) -> None:
        """Tell the train run's id."""
        self._tell(lambda at: StartEvent(at=at, train_run_id=str(getattr(train_run_context, "run_id", ""))))
        self._enter(Phase.WAITING)
        self._begin_watch()

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        """Tell a new phase, and the failure behind it."""
        if current_state is previous_state:
            return
        with _swallowed("state update"):
            phase = PHASES.get(current_state._state_type.name)
            if phase is not None:
                self._enter(phase)
            error = getattr(current_state, "training_failed_error", None)
            if error is not None and error is not getattr(previous_state, "training_failed_error", None):
                self._tell_failure(error, state=current_state._state_type)

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """Tell a commit: Ray has written its manifest before it calls this."""
        with _swallowed("report"):
            strict, _ = bounded_metrics(training_report.metrics or {})
            is_first, self._awaits_first_report = self._awaits_first_report, False
            if is_first:
                self._tell(lambda at: ReportEvent(at=at, metrics=strict))
            if training_report.checkpoint is not None:
                self._num_commits += 1
                name = str(training_report.checkpoint.path).removeprefix(self.run_folder + "/")
                self._tell(lambda at: CommitEvent(at=at, checkpoint=name, metrics=strict))
            # Both are told by now: what was held back is deleted next, and the store may be slow.
            if self._watch is not None and is_first:
                self._watch.first_report(strict)
            if self._watch is not None and training_report.checkpoint is not None:
                self._watch.committed(strict)

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """Note why a worker group failed; Ray shows the decision hook no error."""
        if worker_group_status.errors:
            with _swallowed("poll"):
                self._pending = classify_exception(worker_group_status.get_worker_group_error())

    def after_worker_group_start(self, worker_group: Any) -> None:
        """New workers: their first report proves what they restored."""
        self._awaits_first_report = True
        if self._watch is not None:
            self._begin_watch()  # where the store was away at the controller's start
            self._watch.workers_started()

    def before_controller_execute_failure_decision(self, failure_decision: Any) -> None:
        """The veto: raising here ends the fit, since Ray gives a callback's error no retry."""
        failure, self._pending = self._pending, None
        if failure is None:
            return
        self._seen.append(SeenFailure(failure, self._num_commits))
        verdict = decide_fit_failure(self._seen, config=self.failure_config)
        if verdict.ends and verdict.failure is not None:
            ended = verdict.failure
            self._tell(
                lambda at: FailureEvent(
                    at=at, failure=ended, decision=f"ended the fit: {verdict.reason}", is_final=True
                )
            )
            raise FitEnded("The fit was ended", known=verdict.reason, failure=ended)

    # --- workers ------------------------------------------------------------------------------------------------

    def after_init_train_context(self) -> None:
        """Give the parent of a warm start, and make `ray.train.report` accept numpy and torch scalars.

        And put a training's own upload function behind the fence. The first may raise: a worker that trains from scratch in
        silence is worse than one that does not start.
        """
        if self.parent is not None:
            give_parent(self.parent)
        # Ray's manifest can't hold such scalars.
        with _swallowed("worker start"):
            from ray.train.v2._internal.execution.context import get_train_context

            context = get_train_context()
            context.report = adapted_report(context.report, storage=getattr(context, "storage_context", None))

    # --- inside -------------------------------------------------------------------------------------------------

    def _begin_watch(self) -> None:
        if self._watch is not None and self.storage is not None and not self._watch.has_begun:
            with _swallowed("start"):
                self._watch.begin(self.storage.restored_metrics())

    def _enter(self, phase: Phase) -> None:
        if phase is not self._phase:
            self._phase = phase
            self._tell(lambda at: PhaseEvent(at=at, phase=phase))

    def _tell_failure(self, error: BaseException, *, state: Any) -> None:
        if isinstance(getattr(error, "controller_failure", None), FitEnded):
            return  # told already, with the rule's reason
        failure, is_final = classify_exception(error), bool(state.is_terminal)
        decision = f"Ray: {state.name.lower()}"
        self._tell(lambda at: FailureEvent(at=at, failure=failure, decision=decision, is_final=is_final))

    def _tell(self, event: Callable[[datetime], Any]) -> None:
        with _swallowed("event"):
            append_event(self.events_path, event(datetime.now(timezone.utc)))


def adapted_report(report: Callable[..., Any], *, storage: Any) -> Callable[..., Any]:
    """Ray's `report` of a worker with plain metrics, and with its `checkpoint_upload_fn` guarded where there is a fence."""
    parameters, guarded = inspect.signature(report), getattr(storage, "guarded", None)

    def adapted(metrics: dict[str, Any], *args: Any, **options: Any) -> Any:
        given = parameters.bind(to_plain(metrics), *args, **options)
        upload = given.arguments.get("checkpoint_upload_fn")
        if upload is not None and guarded is not None:
            given.arguments["checkpoint_upload_fn"] = guarded(upload)
        return report(*given.args, **given.kwargs)

    return adapted


@contextlib.contextmanager
def _swallowed(what: str) -> Any:
    try:
        yield
    except Exception:  # process edge: an error of ours must never end somebody's training
        logger.exception("The provider's %s hook failed; training goes on", what)
