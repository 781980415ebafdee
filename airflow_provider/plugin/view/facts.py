"""What the page is made of: what Airflow has recorded of a task instance, and what was read from the bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import ExperimentFacts, Lineage
from airflow_provider.core.records import AliveRecord

LIVE_STATES = frozenset(
    {"scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule"}
)
"""States of a task instance in which something is still to come."""

_versions = count()


@dataclass(frozen=True)
class TaskTry:
    """One try of a task instance, as Airflow's database has it."""

    number: int
    state: str | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True)
class Recorded:
    """What Airflow has recorded of a task instance. Nothing in it comes from the browser, nothing is secret."""

    key: TaskInstanceKey
    state: str | None
    tries: tuple[TaskTry, ...] = ()
    experiment: str | None = None
    unread: str | None = None
    """The error that kept us from the state store's record, where no XCom names the experiment either."""
    conn_id: str | None = None
    aws_conn_id: str | None = None
    team_name: str | None = None
    """Of the DAG, in an Airflow with several teams: its tasks see this team's connections, and so does its page."""
    job_url: str | None = None
    experiment_url: str | None = None
    lineage: Mapping[str, Any] | None = None
    """The XCom `checkpoint_lineage`: what is left where the bucket can't be read."""

    @property
    def is_live(self) -> bool:
        """Whether the page may change by itself."""
        return self.state in LIVE_STATES


@dataclass(frozen=True)
class Problem:
    """Why the bucket, or a part of it, is not shown: the parts of our errors' messages."""

    what: str
    known: str = ""
    change: str = ""
    is_refusal: bool = False
    """The experiment is not this task's: nothing of it may be shown, from wherever."""


@dataclass(frozen=True)
class Seen:
    """An experiment as it was read: from the bucket, or from the XCom where the bucket gave nothing."""

    lineage: Lineage
    read_at: datetime
    facts: ExperimentFacts | None = None
    alive: AliveRecord | None = None
    """The newest attempt's sign of life, while it has no outcome."""
    quarantine: Mapping[str, str] = field(default_factory=dict)
    """Why a checkpoint is set aside, by the name that the lineage gives it."""
    is_from_xcom: bool = False
    version: int = field(default_factory=lambda: next(_versions), compare=False)
    """Of what was read, not of the reading: the same number, in this process, says that nothing has changed."""

    @property
    def is_open(self) -> bool:
        """Whether the newest attempt may still go on, so that time alone changes what there is to see."""
        attempts = self.facts.attempts if self.facts else ()
        return bool(attempts) and attempts[-1].final_outcome is None

    @property
    def as_of(self) -> datetime:
        """When it was read, in steps of 15 s: pages of the same facts must be the same for a while, or no browser keeps one."""
        return self.read_at - timedelta(seconds=self.read_at.second % 15, microseconds=self.read_at.microsecond)
