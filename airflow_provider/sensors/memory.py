"""What a wait keeps over its tries and pokes in the task's state store: what was old when it began."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from airflow_provider.core.experiment_wait import Baseline
from airflow_provider.core.field_types import Shown, UtcTime
from airflow_provider.core.sensor_event import ReadTrouble

if TYPE_CHECKING:
    from airflow.sdk import Context

MEMORY_KEY = "ray_train_wait"


class WaitMemory(BaseModel):
    """Of one wait. A retry or the next poke goes on with it; a clear begins a new one, which other counters tell."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    wait: tuple[int, int]
    """`max_tries` and the DAG run's `clear_number`: a clear changes one of them, a retry neither."""
    experiment: Shown
    baseline: Baseline | None = None
    unreadable_since: UtcTime | None = None
    unreadable_looks: int = 0
    unreadable_why: Shown = ""

    @classmethod
    def load(cls, context: Context, *, experiment: str) -> WaitMemory:
        """The memory of this wait, or an empty one."""
        new = cls(wait=(context["ti"].max_tries, context["dag_run"].clear_number or 0), experiment=experiment)
        try:
            found = cls.model_validate(context["task_state_store"].get(MEMORY_KEY))
        except ValidationError:  # nothing is there, or another release's: the wait begins now
            return new
        return found if (found.wait, found.experiment) == (new.wait, new.experiment) else new

    @property
    def trouble(self) -> ReadTrouble | None:
        """Looks in a row that could not read the store."""
        if self.unreadable_since is None:
            return None
        return ReadTrouble(self.unreadable_since, self.unreadable_looks, self.unreadable_why)

    def keep(self, context: Context, *, baseline: Baseline | None, trouble: ReadTrouble | None) -> None:
        """Store it where it changed."""
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        since: datetime | None = trouble.since if trouble is not None else None
        changes: dict[str, Any] = {"baseline": baseline, "unreadable_since": since}
        if trouble is not None:
            changes |= {"unreadable_looks": trouble.looks, "unreadable_why": trouble.what}
        new = self.model_copy(update=changes)
        if new != self:
            context["task_state_store"].set(MEMORY_KEY, new.model_dump(mode="json"), retention=NEVER_EXPIRE)
