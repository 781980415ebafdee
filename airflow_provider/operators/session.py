"""One run of the operator in a worker process: wires Airflow's context to the steps of a try."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from airflow_provider.core.decision import TryFacts
from airflow_provider.core.errors import RayJobFailed, RayTrainError, Superseded, WriteConflict
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import bounded_result
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import OutcomeState
from airflow_provider.core.waiting import (
    ALIVE_CHECK_S,
    KIND_OF_END,
    STOPPING_ENDS,
    WaitEnd,
    WaitEvent,
    WaitLimits,
    WaitOver,
)
from airflow_provider.hooks.experiment import open_experiment
from airflow_provider.hooks.ray import RayHook
from airflow_provider.hooks.stop import stop_attempt
from airflow_provider.operators.asset_events import emit, missing_metric, model_of
from airflow_provider.operators.blocking import wait_in_worker
from airflow_provider.operators.budgets import budget_table
from airflow_provider.operators.collecting import (
    Ended,
    collected_record,
    complete_records,
    conclude_attempt,
    job_failed,
    mark_published,
    project_results,
    read_experiment,
    refusal,
)
from airflow_provider.operators.killing import KillSwitch, read_state, state_or_none
from airflow_provider.operators.marker import dag_run_identity, keep_identity, set_marker
from airflow_provider.operators.parameters import build_request
from airflow_provider.operators.publication import Publication
from airflow_provider.operators.training_try import Over, Submitted, TrainingTry
from airflow_provider.operators.warm_start import warm_starter
from airflow_provider.policies.retry import is_deadline_of_wait
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.triggers.waiter import Following

if TYPE_CHECKING:
    from types import TracebackType

    from airflow.sdk import Context

    from airflow_provider.client.address import ClusterAddress
    from airflow_provider.client.credentials import ClusterCredentials
    from airflow_provider.client.jobs_client import SyncJobsClient
    from airflow_provider.operators.ray_train import RayTrainOperator
    from airflow_provider.operators.request import TrainingRequest

MAX_JOBS_PER_TRY = 5
"""A try starts another attempt only when its job was stopped or superseded under it."""


@dataclass
class TrainingSession:
    """Everything one `execute` or `execute_complete` works with."""

    operator: RayTrainOperator
    context: Context
    request: TrainingRequest
    target: tuple[ClusterAddress, ClusterCredentials]
    client: SyncJobsClient
    records: ExperimentRecords
    attempt: TrainingTry
    publication: Publication
    is_timed_out: bool = False

    @classmethod
    def open(cls, operator: RayTrainOperator, context: Context) -> Self:
        """Resolve parameters and connections. Raises typed errors before anything is touched."""
        publication = Publication(context["ti"], operator.log, store=context["task_state_store"])
        try:
            return cls._open(operator, context, publication)
        except RayTrainError as error:
            publication.error(error)
            raise

    @classmethod
    def _open(cls, operator: RayTrainOperator, context: Context, publication: Publication) -> Self:
        ti = context["ti"]
        key = TaskInstanceKey(ti.dag_id, ti.run_id, ti.task_id, ti.map_index if ti.map_index is not None else -1)
        request = build_request(operator, key)
        records = ExperimentRecords(
            open_experiment(request.uri, aws_conn_id=request.aws_conn_id, storage_path=operator.storage_path)
        )
        store = context["task_state_store"]
        identity = dag_run_identity(store)
        target = RayHook(request.conn_id).target()
        client = _client(target)
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
            warm_starter=warm_starter(request, run_after=context["dag_run"].run_after, log=operator.log.info),
            set_marker=lambda k: set_marker(store, k=k, identity=identity),
            log=operator.log.info,
            task_state=lambda: state_or_none(ti),
        )
        return cls(operator, context, request, target, client, records, attempt, publication)

    def __enter__(self) -> Self:
        """Give the session itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say the failure where a person can read it, then close the connection pool.

        A replaced process publishes nothing.
        """
        if isinstance(error, RayTrainError) and not isinstance(error, Superseded):
            self.publication.error(error)
            self._give_up(error.failure)
        self.client.close()

    def _give_up(self, failure: Failure) -> None:
        try:
            self.attempt.give_up(failure)
        except RayTrainError as error:
            self.operator.log.warning("The experiment's records can't say that the task ended: %s", error)

    # --- the way through a try -----------------------------------------------------------------------------------

    def start(self) -> dict[str, Any]:
        """From `execute`: own, decide, act, wait."""
        self.operator.log.info(budget_table(self.request, retries=self.operator.retries))
        self.operator.log.info("experiment %s", self.request.uri)
        if not keep_identity(self.context["task_state_store"], self.attempt.facts.dag_run_identity):
            raise Superseded("Airflow has replaced this process", known="its state store refused the DAG run's mark")
        self.publication.experiment(
            self.request,
            identity=self.attempt.facts.dag_run_identity,
            stop_on_kill=self.operator.stop_on_kill,
        )
        self.attempt.own()
        return self._go_on()

    def resume(self, event: dict[str, Any]) -> dict[str, Any]:
        """From `execute_complete`: this process answers for the owner number that deferred."""
        seen = WaitEvent.parse(event)
        self.attempt.k = seen.k
        self.attempt.facts = replace(self.attempt.facts, own_ks=self.attempt.facts.own_ks | {seen.k})
        self.attempt.current = Submitted(seen.ref, seen.submission_id, None, None, seen.reason)
        if seen.end is WaitEnd.ERROR:
            raise self._failed(Failure(kind=seen.kind, reason=f"the trigger failed: {seen.reason}"))
        return self._after_wait(WaitOver(seen.end, seen.reason))

    def _go_on(self) -> dict[str, Any]:
        for _ in range(MAX_JOBS_PER_TRY):
            step = self.attempt.step()
            if isinstance(step, Over):
                result = self._finish(step.ref, step.submission_id)
            else:
                self.publication.job(
                    self.request,
                    step,
                    identity=self.attempt.facts.dag_run_identity,
                    stop_on_kill=self.operator.stop_on_kill,
                    address=str(self.client.address),
                )
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
        following = self.attempt.current
        if following is None:
            raise RayTrainError("There is no job to conclude")
        self.operator.log.info("%s: %s", following.submission_id, over.reason)
        kind = KIND_OF_END.get(over.end)
        if kind is FailureKind.NETWORK:
            raise self._failed(Failure(kind=kind, reason=over.reason))
        if kind is not None:
            return self._finish(following.ref, following.submission_id, fallback=Failure(kind=kind, reason=over.reason))
        return self._finish(following.ref, following.submission_id)

    def _limits(self) -> WaitLimits:
        operator = self.operator
        silence = operator.silent_driver_timeout_s
        return WaitLimits(
            poll_interval_s=operator.poll_interval_s,
            pending_timeout_s=operator.pending_timeout_s,
            unreachable_timeout_s=operator.unreachable_timeout_s,
            silent_driver_timeout_s=silence,
            alive_check_s=ALIVE_CHECK_S if silence is None else min(ALIVE_CHECK_S, silence / 2),
            lost_after_s=operator.lost_after_s,
        )

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
        over = wait_in_worker(
            Following(step.ref, step.submission_id, step.session_name, step.deadline, self._limits()),
            conn_id=self.request.conn_id,
            records=self.records,
            log=self.operator.log,
            stream_logs=self.operator.stream_logs,
        )
        self._reconnect()
        if over.end in STOPPING_ENDS:
            self._stop(step, reason=over.reason, ends=KIND_OF_END.get(over.end))
        return over

    def _reconnect(self) -> None:
        """Credentials of now: those from before a wait of days may be gone."""
        self.client.close()
        self.target = RayHook(self.request.conn_id).target()
        self.client = self.attempt.client = _client(self.target)

    def _stop(self, step: Submitted, *, reason: str, ends: FailureKind | None = None) -> None:
        """Stop our job. Failing to is said, never raised: the next try stops or fences it.

        With a client of its own: on_kill comes after `execute` has closed the session's, or while that one is in use.
        """
        try:
            with _client(self.target) as client:
                result = stop_attempt(
                    self.records,
                    client,
                    ref=step.ref,
                    submission_id=step.submission_id,
                    k=self.attempt.k,
                    reason=reason,
                    ends=ends,
                )
            self.operator.log.info(result.reason)
        except RayTrainError as error:
            self.operator.log.warning("The job could not be stopped: %s", error)

    # --- collect and publish -------------------------------------------------------------------------------------

    def _finish(self, ref: AttemptRef, submission_id: str, *, fallback: Failure | None = None) -> dict[str, Any] | None:
        """Collect the attempt: publish a success, raise a failure, or None to decide again within this try."""
        if fallback is not None:
            # It was asked to end just now, and its driver completes the records first.
            self.attempt.wait_until_over(submission_id)
        if not self.attempt.is_owner() or not self.attempt.is_newest(ref):
            return None
        now = datetime.now(timezone.utc)
        ended = conclude_attempt(
            self.records, self.client, ref=ref, submission_id=submission_id, now=now, fallback=fallback
        )
        if ended is None:
            self.operator.log.info("the job is not over: deciding again")
            return None
        if ended.outcome.state is OutcomeState.SUCCESS:
            self._complete(ref, now)
            return self._accept(ended, now)
        if self._was_taken_away(ended):
            self.operator.log.info("the job was stopped or superseded by an older owner: deciding again")
            return None
        self._record_failed(ended, now)
        self.publication.lineage_of_failure(self.records, k=self.attempt.k, now=now, is_over=not self._may_go_on(ended))
        failure = ended.outcome.failure or Failure(kind=FailureKind.INFRASTRUCTURE, reason="the driver gave no reason")
        # A driver that obeyed our stop knows only of the stop.
        is_our_stop = fallback is not None and ended.outcome.state is OutcomeState.CANCELLED
        raise self._failed(fallback if fallback is not None and is_our_stop else failure)

    def _complete(self, ref: AttemptRef, now: datetime) -> None:
        late = complete_records(self.records, ref, k=self.attempt.k, now=now, warn=self.attempt.log)
        if late:
            self.operator.log.info("completed the records of %d checkpoints from the manifest", late)

    def _record_failed(self, ended: Ended, now: datetime) -> None:
        """Complete the records of a failed attempt. A store that is away must not replace the training's failure."""
        try:
            self._complete(ended.ref, now)
            self._record(ended, accepted=None, now=now)
        except RayTrainError as error:
            self.operator.log.warning("The attempt's records can't be completed now; the next try does it: %s", error)

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
        published = project_results(read_experiment(self.records, concluded=ended, warn=self.attempt.log), now=now)
        model = model_of(published, self.request, ended.ref)
        collected, refused = ended.collected.record if ended.collected else None, None
        counted_by = collected.k if collected is not None and collected.accepted is not None else None
        if counted_by is None:
            refused = refusal(
                ended,
                new_checkpoints=published.new_checkpoints,
                require_new_checkpoint=self.request.require_new_checkpoint,
            )
            refused = refused or missing_metric(self.operator.outlets, model)
            self._record(ended, accepted=refused is None, now=now, refused_because=refused)
        elif collected is not None and not collected.accepted:
            refused = collected.refused_because or "its result was refused"
        if refused is not None:
            self.publication.lineage_of_failure(self.records, k=self.attempt.k, now=now, counted_by=counted_by)
            raise self._failed(Failure(kind=FailureKind.USER, reason=refused))
        self.attempt.confirm()
        self.publication.lineage(published.lineage_xcom)
        self.operator.log.info("%s finished: %s", ended.ref, published.summary)
        if published.warning:
            self.operator.log.warning(published.warning)
        events = emit(self.operator.outlets, model, context=self.context, log=self.operator.log)
        self.publication.goodput(published.goodput, k=self.attempt.k, counted_by=counted_by)
        mark_published(self.records, ended.ref)
        return bounded_result({**published.result, "published": events})

    def _record(
        self, ended: Ended, *, accepted: bool | None, now: datetime, refused_because: str | None = None
    ) -> None:
        if accepted is None and (ended.is_recorded or self._may_go_on(ended)):
            return
        record = collected_record(ended, k=self.attempt.k, now=now, accepted=accepted, refused_because=refused_because)
        try:
            self.records.set_collected(ended.ref, record=record, etag=ended.collected.etag if ended.collected else None)
        except WriteConflict:
            # Another owner concluded first; its word stands, and the owner check already let only the newest through.
            self.operator.log.info("%s was collected by another process", ended.ref)

    def _may_go_on(self, ended: Ended) -> bool:
        """A job that was given up and could not be stopped still trains: its end is not ours to write."""
        is_live = ended.job_status is not None and not ended.job_status.is_terminal
        return is_live and self.attempt.k not in ended.stops

    def _failed(self, failure: Failure) -> RayJobFailed:
        """The failure as an exception."""
        job_id = self.attempt.current.submission_id if self.attempt.current else None
        committed = self.publication.is_committed
        return job_failed(failure, uri=self.request.uri, submission_id=job_id, is_committed=committed)

    # --- kill ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Inside a signal handler: see `KillSwitch`."""
        switch = KillSwitch(
            attempt=self.attempt,
            read_state=lambda: read_state(self.context["ti"]),
            stop=lambda step, verdict: self._stop(step, reason=verdict.reason, ends=verdict.ends),
            is_enabled=self.operator.stop_on_kill,
            log=self.operator.log.info,
        )
        switch.kill(is_timed_out=self.is_timed_out, is_deadline=is_deadline_of_wait(self.operator))


def _client(target: tuple[ClusterAddress, ClusterCredentials]) -> SyncJobsClient:
    from airflow_provider.client.jobs_client import SyncJobsClient

    return SyncJobsClient(target[0], credentials=target[1])
