"""The trigger behind a deferred RayTrainOperator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from pydantic import TypeAdapter, ValidationError

from airflow_provider.core.failure import FailureKind
from airflow_provider.core.field_types import UtcTime
from airflow_provider.core.kill import decide_trigger_kill
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.waiting import KIND_OF_END, STOPPING_ENDS, WaitLimits, WaitOver, unreadable_message
from airflow_provider.hooks.experiment import open_experiment
from airflow_provider.hooks.ray import RayHook
from airflow_provider.hooks.stop import record_stop
from airflow_provider.hooks.task_state import read_task_state
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.triggers.waiter import Following, JobWaiter, error_event

READ_S = 10.0
"""How long Airflow may take to say what the task's state is; it gives a trigger's on_kill 30 s in all."""
_TIME = TypeAdapter(UtcTime)


class RayTrainTrigger(BaseTrigger):
    """Waits for one Ray job and resumes the task with what it saw.

    Everything in its row is a JSON primitive and no secret: credentials come from the connections at use. A triggerer that
    stops, dies or freezes leaves the job alone; another one starts this trigger again. `on_kill` (a person marked or cleared
    the task) stops the job if this try still owns the experiment. Known limitation: after a triggerer crash the log starts
    again from `log_position`.
    """

    def __init__(
        self,
        *,
        conn_id: str,
        aws_conn_id: str | None,
        experiment_uri: str,
        generation: int,
        attempt: int,
        k: int,
        submission_id: str,
        session_name: str | None,
        deadline: str | None,
        limits: dict[str, Any],
        stream_logs: bool = True,
        stop_on_kill: bool = True,
        log_position: int = 0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped
        self.conn_id = conn_id
        self.aws_conn_id = aws_conn_id
        self.experiment_uri = experiment_uri
        self.generation = generation
        self.attempt = attempt
        self.k = k
        self.submission_id = submission_id
        self.session_name = session_name
        self.deadline = deadline
        self.limits = limits
        self.stream_logs = stream_logs
        self.stop_on_kill = stop_on_kill
        self.log_position = log_position
        self._has_fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The row that Airflow keeps."""
        names = (
            "conn_id aws_conn_id experiment_uri generation attempt k submission_id session_name deadline limits "
            "stream_logs stop_on_kill log_position"
        )
        return f"{type(self).__module__}.{type(self).__qualname__}", {n: getattr(self, n) for n in names.split()}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait and fire exactly one event, whatever happens."""
        waiting = asyncio.create_task(self._wait())
        try:
            # Never `await waiting`: libraries below may replace the cancellation's message, by which Airflow tells a person's
            # wish from a triggerer's end; without it there is no on_kill.
            await asyncio.wait([waiting])
        except asyncio.CancelledError:
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                waiting.exception()  # asked for, or asyncio reports it as an error that nobody looked at
            raise
        try:
            event = waiting.result()
        except Exception as error:  # noqa: BLE001 - process edge: an exception here would lose its kind
            event = error_event(error)
        self._has_fired = True
        yield TriggerEvent(event | self._identity())  # type: ignore[no-untyped-call]  # Airflow leaves it untyped

    def _identity(self) -> dict[str, Any]:
        """What `execute_complete` needs; `dag.test()` drops the kwargs given to `defer`."""
        return {
            "generation": self.generation,
            "attempt": self.attempt,
            "k": self.k,
            "submission_id": self.submission_id,
        }

    async def _wait(self) -> dict[str, Any]:
        waiter = JobWaiter(
            self._following(),
            open_client=RayHook(self.conn_id).aclient,
            records=self._records(),
            say=self.log.info,
            emit=self.log.info if self.stream_logs else None,
            log_position=self.log_position,
        )
        over: WaitOver = await waiter.wait()
        if over.end in STOPPING_ENDS:
            await self._stop(over.reason, ends=KIND_OF_END.get(over.end))
        return {"end": over.end.value, "reason": over.reason}

    def _following(self) -> Following:
        try:
            return Following(
                ref=self._ref,
                submission_id=self.submission_id,
                session_name=self.session_name,
                deadline=_TIME.validate_python(self.deadline) if self.deadline else None,
                limits=WaitLimits.model_validate(self.limits),
            )
        except ValidationError as error:
            raise unreadable_message("The trigger's row", error) from None

    @property
    def _ref(self) -> AttemptRef:
        return AttemptRef(generation=self.generation, attempt=self.attempt)

    def _records(self) -> ExperimentRecords:
        return ExperimentRecords(open_experiment(self.experiment_uri, aws_conn_id=self.aws_conn_id))

    async def on_kill(self) -> None:
        """A person marked or cleared the deferred task: stop the job if this try still owns the experiment.

        A trigger that merely moved to another triggerer is ended in the same way: only the task's state tells.
        """
        if self._has_fired or not self.stop_on_kill:
            return
        try:
            state = await asyncio.wait_for(read_task_state(self.task_instance), READ_S)
        except Exception as error:  # noqa: BLE001 - process edge: Airflow's API may be away, and says so in many ways
            self.log.warning("The task's state can't be read: %s", str(error) or f"no answer within {READ_S:g} s")
            verdict = decide_trigger_kill(ref=self._ref, k=self.k, task_state=None, is_readable=False)
        else:
            verdict = decide_trigger_kill(ref=self._ref, k=self.k, task_state=state, is_readable=True)
        if verdict.is_stop:
            await self._stop(verdict.reason, ends=verdict.ends)
        else:
            self.log.info(verdict.reason)

    async def _stop(self, reason: str, *, ends: FailureKind | None) -> None:
        """Owner check, stop record, POST. Failing to stop is said, never raised: the next try stops or fences it."""
        try:
            record = sync_to_async(record_stop, thread_sensitive=False)
            result = await record(self._records(), ref=self._ref, k=self.k, reason=reason, ends=ends)
            self.log.info(result.reason)
            if result.is_sent:
                async with await RayHook(self.conn_id).aclient() as client:
                    await client.stop(self.submission_id)
        except Exception as error:  # noqa: BLE001 - process edge: why the wait ended counts more
            self.log.warning("The job could not be stopped: %s", error)
