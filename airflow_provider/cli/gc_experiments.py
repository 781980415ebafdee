"""Old experiments: whole folders of trainings that ended long ago and that nobody begins from.

Kept, whatever their age: what may still train or be retried, what another experiment below the same path began from, and
of each task the newest experiment with a checkpoint, from which the next run's `previous_run` would begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_provider.cli import wording
from airflow_provider.cli.airflow_side import TaskInAirflow, task_in_airflow
from airflow_provider.cli.discovery import Found
from airflow_provider.cli.errors import AirflowUnreadable
from airflow_provider.cli.gc_items import Deed, Item, NotDone, Scope
from airflow_provider.cli.gc_leftovers import store_clock
from airflow_provider.core import layout
from airflow_provider.core.decision import ClusterSilent, JobSeen, JobSight
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.experiment_sight import Stage, training_stage
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import ExperimentFacts, project
from airflow_provider.core.records import OwnerRecord
from airflow_provider.operators.collecting import read_experiment
from airflow_provider.storage.experiment_view import ExperimentView

if TYPE_CHECKING:
    from airflow_provider.storage.experiment_records import ExperimentRecords

_DELETERS = 8
_BATCH = 200
"""Objects between two looks whether somebody else owns the experiment by now."""


@dataclass(frozen=True)
class _Read:
    """An experiment with all its records."""

    found: Found
    owner: OwnerRecord
    facts: ExperimentFacts

    @property
    def task(self) -> tuple[str, str, int]:
        return (self.owner.dag_id, self.owner.task_id, self.owner.map_index)

    @property
    def has_checkpoint(self) -> bool:
        return any(c.state == "committed" for c in project(self.facts).checkpoints)

    @property
    def parents(self) -> Iterator[str]:
        """URIs of the checkpoints that its generations began from."""
        for attempt in self.facts.attempts:
            warm = attempt.claim.warm_start
            if warm is not None and warm.parent is not None:
                yield warm.parent.uri.removeprefix("file://")


@dataclass(frozen=True)
class ExperimentSearch:
    """Judges the experiments below one path against one another."""

    older_than_s: float
    sight: Callable[[str], JobSight]
    read_task: Callable[[TaskInstanceKey], TaskInAirflow | None] = task_in_airflow

    def find(self, every: Sequence[Found]) -> Iterator[Item]:
        """One item for each experiment."""
        known: list[_Read] = []
        for found in every:
            try:
                if found.error is not None or found.owner is None:
                    raise found.error or NotDone("Its owner is not known")
                known.append(_Read(found, found.owner, read_experiment(found.records)))
            except RayTrainError as error:
                yield Item(Scope.EXPERIMENT, found.uri, f"its records can't be read: {error}")
        # What could not be read may have begun from any of the others.
        blind = len(known) < len(every)
        for one in known:
            try:
                yield self._judge(one, known, is_blind=blind)
            except RayTrainError as error:
                yield Item(Scope.EXPERIMENT, one.found.uri, f"it can't be judged: {error}")

    def _judge(self, one: _Read, known: Sequence[_Read], *, is_blind: bool) -> Item:
        uri, records = one.found.uri, one.found.records
        quiet_s = (store_clock(records) - last_change(records, one.facts)).total_seconds()
        if quiet_s < self.older_than_s:
            return Item(Scope.EXPERIMENT, uri, f"it last changed {wording.age(quiet_s)} ago")
        kept = self._why_kept(one, known, is_blind=is_blind)
        if kept is not None:
            return Item(Scope.EXPERIMENT, uri, kept)
        num_bytes = sum(info.size for info in records.store.list(""))
        why = f"it ended and has not changed for {wording.age(quiet_s)}"
        return Item(Scope.EXPERIMENT, uri, why, _deed(records, one.owner), num_bytes)

    def _why_kept(self, one: _Read, known: Sequence[_Read], *, is_blind: bool) -> str | None:
        child = next((other for other in known if other is not one and _began_from(other, one.found.uri)), None)
        if child is not None:
            return f"{child.found.uri} began from it (warm start)"
        if is_blind:
            return "another experiment below this path can't be read, and may have begun from it"
        rivals = [other for other in known if other.task == one.task and other.has_checkpoint]
        newest = max(rivals, key=lambda other: other.owner.created_at, default=None)
        if one is newest:
            return "it is the newest of its task with a checkpoint: the next run may begin from it (previous_run)"
        return self._why_not_over(one)

    def _why_not_over(self, one: _Read) -> str | None:
        stage = training_stage(ExperimentView(one.found.records).look())
        owner = one.owner
        key = TaskInstanceKey(owner.dag_id, owner.run_id, owner.task_id, owner.map_index)
        try:
            task = self.read_task(key)
        except AirflowUnreadable:
            task = None
        is_same = task is not None and task.identity == owner.dag_run_identity
        if task is not None and is_same and not task.is_over:
            return f"its task is {task.state or 'not scheduled'} in Airflow, its DAG run {task.run_state}"
        is_over = stage.stage in (Stage.SUCCESS, Stage.FAILED) or (is_same and task is not None and task.is_over)
        if not is_over:
            return f"it may go on: {stage.reason}"
        return self._why_job_lives(one)

    def _why_job_lives(self, one: _Read) -> str | None:
        for attempt in one.facts.attempts[-1:]:
            seen = self.sight(attempt.claim.submission_id)
            if isinstance(seen, ClusterSilent):
                return f"the cluster can't be asked for its last job ({seen.why})"
            if isinstance(seen, JobSeen) and not seen.status.is_terminal:
                return f"its last job is {seen.status.value}"
        return None


def _began_from(child: _Read, uri: str) -> bool:
    plain = uri.removeprefix("file://")
    return any(f"{parent}/".startswith(f"{plain}/") for parent in child.parents)


def last_change(records: ExperimentRecords, facts: ExperimentFacts) -> datetime:
    """When anything of it was last written, by the store's clock: owners, and the newest attempt's records and checkpoints."""
    times = [info.modified_at for info in records.store.list_folder("owners/").objects]
    for attempt in facts.attempts[-1:]:
        folder = f"{layout.attempt(*attempt.claim.ref.rank)}/"
        times += [info.modified_at for info in records.store.list_folder(folder).objects]
    return max(times, default=datetime.now(timezone.utc))


def _deed(records: ExperimentRecords, owner: OwnerRecord) -> Deed:
    """Own it for good first: a driver that thaws ends itself. Owners go last, so that it never looks like a new one."""

    def deed() -> str:
        mine = _final_owner(records, owner)
        every = list(records.store.list(""))
        content = [info.key for info in every if not info.key.startswith("owners/")]
        owners = sorted(info.key for info in every if info.key.startswith("owners/"))
        with ThreadPoolExecutor(_DELETERS) as pool:
            for start in range(0, len(content), _BATCH):
                newest = records.newest_owner()
                if newest is None or newest[0] != mine:
                    raise NotDone(
                        "The deletion was broken off",
                        known=f"somebody owns the experiment again; {start} of {len(every)} objects are gone",
                        change="clear the task with on_clear='fresh', or delete the folder when its task has ended",
                    )
                list(pool.map(records.store.delete, content[start : start + _BATCH]))
        for key in owners:
            records.store.delete(key)
        return f"deleted {wording.count(len(every), 'object')}, {wording.size(sum(info.size for info in every))}"

    return deed


def _final_owner(records: ExperimentRecords, seen: OwnerRecord) -> int:
    record = seen.model_copy(
        update={
            "k": seen.k + 1,
            "final": True,
            "created_by": "gc",
            "created_at": datetime.now(timezone.utc),
            "acted_on": None,
            "submission_id": None,
        }
    )
    if not records.try_create_owner(record):
        raise NotDone("Nothing was deleted", known=f"owner {record.k} has come since", change="look again")
    return record.k
