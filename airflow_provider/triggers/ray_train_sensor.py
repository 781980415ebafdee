"""The trigger behind a deferred RayTrainSensor."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from pydantic import TypeAdapter, ValidationError

from airflow_provider.core.experiment_wait import WaitSpec
from airflow_provider.core.field_types import UtcTime
from airflow_provider.core.sensor_event import SensorEvent
from airflow_provider.core.waiting import POLL_JITTER, unreadable_message
from airflow_provider.triggers.experiment_waiter import ExperimentWaiter, WatchedExperiment

_TIME = TypeAdapter(UtcTime)
_LEAST_PAUSE_S = 0.1
"""Airflow allows `poke_interval=0`, which must not keep a triggerer busy."""
BACKSTOP = timedelta(minutes=5)
"""Airflow ends a deferral that overruns by so much: only where no triggerer runs that would keep the deadline."""


class RayTrainSensorTrigger(BaseTrigger):
    """Looks at one experiment's records until the wait is over, and fires exactly one event, whatever happens.

    Everything in its row is a JSON primitive and no secret: the bucket's credentials come from the connection at use. It only
    reads, so it needs neither `on_kill` nor an owner, and a triggerer that dies costs a look. The store is read in threads, never
    in the triggerer's loop. `deadline` is absolute: another triggerer keeps it.
    """

    def __init__(
        self,
        *,
        experiment_uri: str,
        aws_conn_id: str | None,
        storage_path: str | None,
        spec: dict[str, Any],
        deadline: str | None,
        poke_interval: float,
        unreachable_timeout_s: float | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped
        self.experiment_uri = experiment_uri
        self.aws_conn_id = aws_conn_id
        self.storage_path = storage_path
        self.spec = spec
        self.deadline = deadline
        self.poke_interval = poke_interval
        self.unreachable_timeout_s = unreachable_timeout_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The row that Airflow keeps."""
        names = "experiment_uri aws_conn_id storage_path spec deadline poke_interval unreachable_timeout_s"
        return f"{type(self).__module__}.{type(self).__qualname__}", {n: getattr(self, n) for n in names.split()}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait and fire one event."""
        try:
            event = await self._wait()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - process edge: an exception here would lose its type and kind
            event = SensorEvent.of_error(error)
        yield TriggerEvent(event.model_dump(mode="json"))  # type: ignore[no-untyped-call]  # Airflow leaves it untyped

    async def _wait(self) -> SensorEvent:
        waiter, deadline = self._read_row()
        step = sync_to_async(waiter.step, thread_sensitive=False)
        while True:
            event = await step(_now(), deadline=deadline)
            if event is not None:
                return event
            await asyncio.sleep(self._pause_s(deadline))

    def _read_row(self) -> tuple[ExperimentWaiter, datetime | None]:
        try:
            spec = WaitSpec.model_validate(self.spec)
            deadline = _TIME.validate_python(self.deadline) if self.deadline else None
        except ValidationError as error:
            raise unreadable_message("The trigger's row", error) from None
        waiter = ExperimentWaiter(
            WatchedExperiment(self.experiment_uri, self.aws_conn_id, self.storage_path),
            spec,
            unreachable_timeout_s=self.unreachable_timeout_s,
            say=self.log.info,
            warn=self.log.warning,
        )
        return waiter, deadline

    def _pause_s(self, deadline: datetime | None) -> float:
        """The interval, spread a little so that many sensors don't look together; the last look is at the deadline."""
        chance = random.random()  # noqa: S311 - spreads load, keeps no secret
        pause = self.poke_interval * (1 + POLL_JITTER * (2 * chance - 1))
        if deadline is not None:
            pause = min(pause, (deadline - _now()).total_seconds())
        return max(pause, _LEAST_PAUSE_S)


def _now() -> datetime:
    return datetime.now(timezone.utc)
