"""One run of the operator in a worker process: wires Airflow's context to the steps of a try."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from airflow_provider.core.decision import TryFacts
from airflow_provider.core.errors import RayJobFailed, RayTrainError, WriteConflict
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.kill import decide_kill
from airflow_provider.core.records import AttemptRef, OutcomeState
from airflow_provider.core.waiting import WaitEnd, WaitLimits, WaitOver
from airflow_provider.hooks.experiment import open_experiment
from airflow_provider.hooks.final_stop import JOB_RECORD_KEY
from airflow_provider.hooks.ray import RayHook
from airflow_provider.hooks.stop import stop_attempt
from airflow_provider.links.ray_train import EXPERIMENT_URL_KEY, JOB_URL_KEY, experiment_url, job_url
from airflow_provider.operators.budgets import budget_table
from airflow_provider.operators.collecting import (
    Ended,
    collected_record,
    complete_records,
    conclude_attempt,
    project_results,
    read_experiment,
    refusal,
)
from airflow_provider.operators.parameters import build_request
from airflow_provider.operators.training_try import Over, Submitted, TrainingTry
from airflow_provider.storage.experiment_records import ExperimentRecords

if TYPE_CHECKING:
    from types import TracebackType

    from airflow.sdk import Context

    from airflow_provider.client.jobs_client import SyncJobsClient
    from airflow_provider.operators.ray_train import RayTrainOperator
    from airflow_provider.operators.request import TrainingRequest

MARKER_KEY = "ray_train_owner"
LINEAGE_KEY = "checkpoint_lineage"
FAILURE_KEY = "ray_train_failure"
KILL_READ_S = 2.0
"""Airflow gives on_kill 5 s: what can't be read in 2 is treated as unknown."""
MAX_JOBS_PER_TRY = 5
"""A try starts another attempt only when its job was stopped or superseded under it."""
_END_KINDS = {
    WaitEnd.TIMEOUT: FailureKind.TIMEOUT,
    WaitEnd.PENDING_TOO_LONG: FailureKind.CAPACITY,
    WaitEnd.UNREACHABLE: FailureKind.NETWORK,
}


@dataclass
class TrainingSession:
    """Everything one `execute` or `execute_complete` works with."""

    operator: RayTrainOperator
    context: Context
    request: TrainingRequest
    client: SyncJobsClient
    records: ExperimentRecords
    attempt: TrainingTry
    is_timed_out: bool = False
    following: Submitted | None = None
    """The job this process answers for; what on_kill stops."""
    waiting: Future[WaitOver] | None = field(default=None, repr=False)

    @classmethod
    def open(cls, operator: RayTrainOperator, context: Context) -> TrainingSession:
        """Resolve parameters and connections. Raises typed errors before anything is touched."""
        ti = context["ti"]
        key = TaskInstanceKey(ti.dag_id, ti.run_id, ti.task_id, ti.map_index if ti.map_index is not None else -1)
        request = build_request(operator, key)
        records = ExperimentRecords(
            open_experiment(request.uri, aws_conn_id=request.aws_conn_id, storage_path=operator.storage_path)
        )
        client = RayHook(request.conn_id).client()
        store = context["task_state_store"]
        identity = _dag_run_identity(store.get(MARKER_KEY))
        facts = TryFacts(
            dag_run_identity=identity,
            try_number=ti.try_number,
            max_tries=ti.max_tries,
            clear_number=context["dag_run"].clear_number or 0,
            own_ks=frozenset(),
        )
        attempt = TrainingTry(
            request=request,
            facts=facts,
            records=records,
            client=client,
            set_marker=lambda k: _set_marker(store, {"k": k, "identity": identity}),
            log=operator.log.info,
        )
        return cls(operator, context, request, client, records, attempt)

    def __enter__(self) -> Self:
        """Give the session itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection pool."""
        self.client.close()

    # --- the way through a try -----------------------------------------------------------------------------------

    def start(self) -> dict[str, Any]:
        """From `execute`: own, decide, act, wait."""
        self.operator.log.info(budget_table(self.request, retries=self.operator.retries))
        self.operator.log.info("experiment %s", self.request.uri)
        self.attempt.own()
        return self._go_on()

    def resume(self, event: dict[str, Any]) -> dict[str, Any]:
        """From `execute_complete`: this process answers for the owner number that deferred."""
        k = int(event["k"])
        self.attempt.k = k
        self.attempt.facts = _with_k(self.attempt.facts, k)
        ref = AttemptRef(generation=event["generation"], attempt=event["attempt"])
        over = _wait_over(event)
        self.following = Submitted(ref, event["submission_id"], None, None, over.reason)
        return self._after_wait(over)

    def _go_on(self) -> dict[str, Any]:
        for _ in range(MAX_JOBS_PER_TRY):
            step = self.attempt.step()
            if isinstance(step, Over):
                result = self._finish(step.ref, step.submission_id)
            else:
                self.following = step
                self._announce(step)
                if self.operator.deferrable:
                    self._defer(step)
                result = self._after_wait_or_none(self._block(step))
            if result is not None:
                return result
        raise RayTrainError(f"{MAX_JOBS_PER_TRY} jobs of this try were stopped or superseded by other processes")

    def _after_wait(self, over: WaitOver) -> dict[str, Any]:
        result = self._after_wait_or_none(over)
        return result if result is not None else self._go_on()

    def _after_wait_or_none(self, over: WaitOver) -> dict[str, Any] | None:
        """The result, or None when all must be decided again. Raises the failure otherwise."""
        following = self.following
        if following is None:
            raise RayTrainError("There is no job to conclude")
        self.operator.log.info("%s: %s", following.submission_id, over.reason)
        kind = _END_KINDS.get(over.end)
        if kind is FailureKind.NETWORK:
            raise self._failed(Failure(kind=kind, reason=over.reason))
        if kind is not None:
            return self._finish(following.ref, following.submission_id, fallback=Failure(kind=kind, reason=over.reason))
        return self._finish(following.ref, following.submission_id)

    def _announce(self, step: Submitted) -> None:
        """Links and the listener's record, right after submitting: visible while the task waits."""
        ti = self.context["ti"]
        endpoint = self.request.storage.endpoint_url
        ti.xcom_push(key=JOB_URL_KEY, value=job_url(str(self.client.address), step.submission_id))
        ti.xcom_push(key=EXPERIMENT_URL_KEY, value=experiment_url(self.request.uri, endpoint_url=endpoint))
        record = {
            "conn_id": self.request.conn_id,
            "aws_conn_id": self.request.aws_conn_id,
            "experiment": self.request.uri,
            "submission_id": step.submission_id,
            "generation": step.ref.generation,
            "attempt": step.ref.attempt,
        }
        ti.xcom_push(key=JOB_RECORD_KEY, value=record)

    def _limits(self) -> WaitLimits:
        return WaitLimits(poll_interval_s=self.operator.poll_interval_s)

    def _defer(self, step: Submitted) -> None:
        from airflow_provider.triggers.ray_train import RayTrainTrigger

        self.operator.defer(
            trigger=RayTrainTrigger(
                conn_id=self.request.conn_id,
                aws_conn_id=self.request.aws_conn_id,
                experiment_uri=self.request.uri,
                generation=step.ref.generation,
                attempt=step.ref.attempt,
                k=self.attempt.k,
                submission_id=step.submission_id,
                session_name=step.session_name,
                deadline=step.deadline.isoformat() if step.deadline else None,
                limits=self._limits().model_dump(),
                stream_logs=self.operator.stream_logs,
                stop_on_kill=self.operator.stop_on_kill,
            ),
            method_name="execute_complete",
        )

    def _block(self, step: Submitted) -> WaitOver:
        """The same waiter in a thread of its own: signals reach the main thread, which only waits."""
        from airflow_provider.triggers.waiter import Following, JobWaiter

        address, credentials = RayHook(self.request.conn_id).target()

        async def open_client() -> Any:
            from airflow_provider.client.jobs_client import AsyncJobsClient

            return AsyncJobsClient(address, credentials=credentials)

        waiter = JobWaiter(
            Following(step.ref, step.submission_id, step.session_name, step.deadline, self._limits()),
            open_client=open_client,
            records=self.records,
            say=self.operator.log.info,
            emit=self.operator.log.info if self.operator.stream_logs else None,
        )
        with ThreadPoolExecutor(1, thread_name_prefix="ray-train-wait") as pool:
            loop_stop: Future[WaitOver] = pool.submit(asyncio.run, waiter.wait())
            try:
                over = loop_stop.result()
            except BaseException:
                waiter.cancel()
                raise
        if over.end in (WaitEnd.TIMEOUT, WaitEnd.PENDING_TOO_LONG):
            self._stop(step, reason=over.reason)
        return over

    def _stop(self, step: Submitted, *, reason: str) -> None:
        result = stop_attempt(
            self.records, self.client, ref=step.ref, submission_id=step.submission_id, k=self.attempt.k, reason=reason
        )
        self.operator.log.info(result.reason)

    # --- collect and publish -------------------------------------------------------------------------------------

    def _finish(self, ref: AttemptRef, submission_id: str, *, fallback: Failure | None = None) -> dict[str, Any] | None:
        """Collect the attempt: publish a success, raise a failure, or None to decide again within this try."""
        if not self.attempt.is_owner():
            return None
        now = datetime.now(timezone.utc)
        ended = conclude_attempt(self.records, self.client, ref=ref, submission_id=submission_id, now=now)
        late = complete_records(self.records, ref, k=self.attempt.k, now=now)
        if late:
            self.operator.log.info("completed the records of %d checkpoints from the manifest", late)
        if ended.outcome.state is OutcomeState.SUCCESS:
            return self._accept(ended, now)
        if self._was_taken_away(ended):
            self.operator.log.info("the job was stopped or superseded by an older owner: deciding again")
            return None
        self._record(ended, accepted=None, now=now)
        self._publish_lineage()
        failure = ended.outcome.failure or Failure(kind=FailureKind.INFRASTRUCTURE, reason="the driver gave no reason")
        raise self._failed(fallback if fallback is not None and not ended.is_recorded else failure)

    def _was_taken_away(self, ended: Ended) -> bool:
        """Stopped by an older owner's record, or superseded although this try is the newest owner."""
        if ended.outcome.state is OutcomeState.SUPERSEDED:
            return True
        failure = ended.outcome.failure
        if failure is not None and failure.kind is FailureKind.SUPERSEDED:
            return True
        return bool(ended.stops) and max(ended.stops) < self.attempt.k

    def _accept(self, ended: Ended, now: datetime) -> dict[str, Any]:
        """Check a success, set `accepted`, set the marker again, then publish: a replaced process publishes nothing."""
        published = project_results(read_experiment(self.records))
        was_accepted = ended.collected.record.accepted if ended.collected else None
        if was_accepted is None:
            refused = refusal(
                ended,
                new_checkpoints=published.new_checkpoints,
                require_new_checkpoint=self.request.require_new_checkpoint,
            )
            self._record(ended, accepted=refused is None, now=now, refused_because=refused)
            if refused is not None:
                self._publish_lineage()
                raise self._failed(Failure(kind=FailureKind.USER, reason=refused))
        self.attempt.confirm()
        self._push_lineage(published.lineage_xcom)
        self.operator.log.info("%s finished: %s", ended.ref, published.summary)
        return published.result

    def _record(
        self, ended: Ended, *, accepted: bool | None, now: datetime, refused_because: str | None = None
    ) -> None:
        if accepted is None and ended.is_recorded:
            return
        record = collected_record(ended, k=self.attempt.k, now=now, accepted=accepted, refused_because=refused_because)
        try:
            self.records.set_collected(ended.ref, record=record, etag=ended.collected.etag if ended.collected else None)
        except WriteConflict:
            # Another owner concluded first; its word stands, and the owner check already let only the newest through.
            self.operator.log.info("%s was collected by another process", ended.ref)

    def _publish_lineage(self) -> None:
        self._push_lineage(project_results(read_experiment(self.records)).lineage_xcom)

    def _push_lineage(self, value: dict[str, Any]) -> None:
        self.context["ti"].xcom_push(key=LINEAGE_KEY, value=value)

    def _failed(self, failure: Failure) -> RayJobFailed:
        """The failure as an exception; its sentence reaches an XCom first, since Airflow shows a policy's reason nowhere."""
        following = self.following
        value = {"kind": failure.kind.value, "reason": failure.reason, "retryable": failure.is_retryable}
        self.context["ti"].xcom_push(key=FAILURE_KEY, value=value)
        what_next = (
            "the next try restores from the newest verified checkpoint" if failure.is_retryable else "not retried"
        )
        return RayJobFailed(
            failure.reason,
            known=f"{failure.kind.value}; {what_next}; experiment {self.request.uri}",
            failure=failure,
            submission_id=following.submission_id if following else None,
        )

    # --- kill ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Inside a signal handler, 5 s: read the task's state and the owner in threads, then stop or leave."""
        step = self.following
        if step is None:
            return
        pool = ThreadPoolExecutor(2, thread_name_prefix="ray-train-kill")
        state = pool.submit(self._task_state)
        owner = pool.submit(self.records.owner, self.attempt.k + 1)
        verdict = decide_kill(
            task_state=_in_time(state),
            is_owner=_is_none_in_time(owner),
            is_timed_out=self.is_timed_out,
            is_enabled=self.operator.stop_on_kill,
        )
        self.operator.log.info(verdict.reason)
        if verdict.is_stop:
            stopping = pool.submit(self._stop, step, reason=verdict.reason)
            _in_time(stopping)
        pool.shutdown(wait=False, cancel_futures=True)

    def _task_state(self) -> str | None:
        ti = self.context["ti"]
        states = ti.get_task_states(
            dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
        )
        return _find_state(states, run_id=ti.run_id, task_id=ti.task_id)


def _find_state(states: dict[str, Any], *, run_id: str, task_id: str) -> str | None:
    run = states.get(run_id, {})
    for name, state in run.items():
        if name == task_id or name.startswith(f"{task_id}_"):
            return str(state) if state is not None else None
    return None


def _in_time(future: Future[Any]) -> Any:
    try:
        return future.result(timeout=KILL_READ_S)
    except Exception:  # noqa: BLE001 - process edge inside a signal handler: unknown is an answer here
        return None


def _is_none_in_time(future: Future[Any]) -> bool | None:
    """Whether the future's value is None; None itself when it couldn't be read in time."""
    try:
        return future.result(timeout=KILL_READ_S) is None
    except Exception:  # noqa: BLE001 - process edge inside a signal handler: unknown is an answer here
        return None


def _wait_over(event: dict[str, Any]) -> WaitOver:
    end = WaitEnd(event["end"])
    if end is WaitEnd.ERROR:
        failure = Failure(kind=FailureKind(event["kind"]), reason=f"the trigger failed: {event['reason']}")
        raise RayJobFailed(failure.reason, failure=failure)
    return WaitOver(end, event["reason"])


def _with_k(facts: TryFacts, k: int) -> TryFacts:
    return TryFacts(
        dag_run_identity=facts.dag_run_identity,
        try_number=facts.try_number,
        max_tries=facts.max_tries,
        clear_number=facts.clear_number,
        own_ks=facts.own_ks | {k},
    )


def _dag_run_identity(marker: object) -> str:
    """The mark of this DAG run: kept in the state store, which is deleted with the run."""
    if isinstance(marker, dict) and isinstance(marker.get("identity"), str):
        return str(marker["identity"])
    return uuid.uuid4().hex


def _set_marker(store: Any, value: dict[str, Any]) -> bool:
    """Store the marker; False when Airflow says that this task instance is archived (404)."""
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    try:
        store.set(MARKER_KEY, value, retention=NEVER_EXPIRE)
    except AirflowRuntimeError as error:
        if (error.error.detail or {}).get("status_code") == 404:
            return False
        raise
    return True
