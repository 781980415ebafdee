"""Old experiments: whole folders of trainings that ended long ago and that nobody begins from.

Kept, whatever their age: what may still train or be retried, what another experiment below the same path began from, what
holds anything that is not the experiment's own, and of each task the newest experiment with a checkpoint, from which the next
run's `previous_run` would begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING

from airflow_provider.cli import wording
from airflow_provider.cli.airflow_side import TaskInAirflow, task_in_airflow
from airflow_provider.cli.discovery import Discovered, Found
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
_HOLDS_S = 60.0
"""How long a look around holds for deeds at least, from its beginning."""
_CHECKPOINT, _READ_BY_TRIES, _OWNER = range(3)
"""In this order they are deleted."""
_BY_GC = "gc"
_NO_KEY = "owners/no-such-record"
_NEVER = datetime(9000, 1, 1, tzinfo=timezone.utc)
"""After the run of every record."""


@dataclass(frozen=True)
class _Read:
    """An experiment with all its records."""

    found: Found
    owner: OwnerRecord
    facts: ExperimentFacts

    @property
    def task(self) -> tuple[str, str, int]:
        return (self.owner.dag_id, self.owner.task_id, self.owner.map_index)

    @cached_property
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
class _Others:
    """What an experiment is judged against."""

    known: Sequence[_Read]
    nexts: frozenset[str]
    """URIs of those that a task's next run would begin from (`previous_run`)."""
    damaged: Sequence[tuple[str, RayTrainError]]
    """Experiments whose records can't be read."""
    unread: str | None
    """What could not be read, and may hold an experiment that began from any of the others."""


@dataclass
class ExperimentSearch:
    """Judges the experiments below one path against one another."""

    older_than_s: float
    sight: Callable[[str], JobSight]
    look: Callable[[], Discovered]
    """Asked again before a deed: a training may have begun from the experiment meanwhile."""
    read_task: Callable[[TaskInstanceKey], TaskInAirflow | None] = task_in_airflow
    clock: Callable[[], float] = monotonic
    _newest: tuple[float, _Others] | None = None
    """The newest look around, with the time until which it holds."""

    def find(self) -> Iterator[Item]:
        """One item for each experiment."""
        others = self._look_around()
        for uri, error in others.damaged:
            yield Item(Scope.EXPERIMENT, uri, f"its records can't be read: {error}")
        for one in others.known:
            try:
                yield self._judge(one, others)
            except RayTrainError as error:
                yield Item(Scope.EXPERIMENT, one.found.uri, f"it can't be judged: {error}")

    def _look_around(self) -> _Others:
        """Read everything; what was read less than a minute ago still holds, or each of a thousand deeds would read it all.

        What took longer holds for as long again: half of the time at most is spent with looking.
        """
        began = self.clock()
        if self._newest is None or began >= self._newest[0]:
            others = _read_others(self.look())
            self._newest = (began + max(_HOLDS_S, 2 * (self.clock() - began)), others)
        return self._newest[1]

    def _judge(self, one: _Read, others: _Others) -> Item:
        uri, records = one.found.uri, one.found.records
        quiet_s = (store_clock(records) - last_change(records, one.facts)).total_seconds()
        if quiet_s < self.older_than_s and not _is_broken_off(one.owner):
            return Item(Scope.EXPERIMENT, uri, f"it last changed {wording.age(quiet_s)} ago")
        kept = _why_kept(one, others) or self._why_not_over(one)
        if kept is not None:
            return Item(Scope.EXPERIMENT, uri, kept)
        num_bytes = sum(info.size for info in records.store.list(""))
        why = f"it ended and has not changed for {wording.age(quiet_s)}"
        if _is_broken_off(one.owner):
            why = "gc began to delete it before, and nobody has owned it since"
        return Item(Scope.EXPERIMENT, uri, why, self._deed(one), num_bytes)

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
        """An orphan too: it is held back by the claims, and would write below the path again when they are gone."""
        *earlier, last = one.facts.attempts or (None,)
        for attempt in (last, *earlier):
            # Its driver's own word alone says that an orphan writes nothing more: what a try concluded is no end of it.
            if attempt is None or (attempt is not last and attempt.outcome is not None):
                continue
            which = "its last job" if attempt is last else f"the job of {attempt.claim.ref}"
            seen = self.sight(attempt.claim.submission_id)
            if isinstance(seen, ClusterSilent):
                return f"the cluster can't be asked for {which} ({seen.why})"
            if isinstance(seen, JobSeen) and not seen.status.is_terminal:
                return f"{which} is {seen.status.value}"
        return None

    def _deed(self, one: _Read) -> Deed:
        """Own it for good first: a driver that thaws ends itself."""

        def deed() -> str:
            kept = _why_kept(one, self._look_around()) or self._why_not_over(one)
            if kept is not None:
                raise NotDone("Nothing was deleted", known=kept, change="look again")
            # Deleting what isn't there is fine, but not for an identity that may delete nothing: then own nothing either.
            one.found.records.store.delete(_NO_KEY)
            return _delete(one.found.records, mine=_final_owner(one.found.records, one.owner))

        return deed


def _read_others(every: Discovered) -> _Others:
    known: list[_Read] = []
    damaged: list[tuple[str, RayTrainError]] = []
    for found in every.experiments:
        try:
            if found.error is not None or found.owner is None:
                raise found.error or NotDone("Its owner is not known")
            known.append(_Read(found, found.owner, read_experiment(found.records)))
        except RayTrainError as error:
            damaged.append((found.uri, error))
    unread = None if every.is_whole else "a folder deeper than --depth was not looked at"
    if damaged:
        unread = "another experiment below this path can't be read"
    try:
        nexts = _next_parents(every, known)
    except RayTrainError as error:
        nexts, unread = frozenset(), f"the runs of a task can't be read ({error})"
    return _Others(known, nexts, damaged, unread)


def _why_kept(one: _Read, others: _Others) -> str | None:
    """Why somebody may need it although it is over, or None."""
    uri = one.found.uri
    child = next((other for other in others.known if other.found.uri != uri and _began_from(other, uri)), None)
    if child is not None:
        return f"{child.found.uri} began from it (warm start)"
    if others.unread is not None:
        return f"{others.unread}, and may have begun from it"
    if _plain(uri) in others.nexts:
        return "it is the newest of its task with a checkpoint: the next run may begin from it (previous_run)"
    return _what_is_not_its_own(one.found.records)


def _what_is_not_its_own(records: ExperimentRecords) -> str | None:
    """An experiment may be called `a` and another one `a/b`, and people put files beside the records."""
    listed = records.store.list_folder("")
    names = [*(info.key for info in listed.objects), *listed.folders]
    foreign = next((name for name in names if not layout.is_ours(name)), None)
    return f"its folder holds {foreign}, which is not the experiment's own" if foreign is not None else None


def _next_parents(every: Discovered, known: Sequence[_Read]) -> frozenset[str]:
    """What the next run of each task would begin from: by the run records, and by when it was last owned where there are none.

    Not what gc has begun to delete: its final owner is newer than any run, so it would stay in place of the run's own.
    """
    usable = (one for one in known if one.has_checkpoint and not _is_broken_off(one.owner))
    by_uri = {_plain(one.found.uri): one for one in usable}
    latest: dict[tuple[str, str, int], str] = {}
    for uri, one in sorted(by_uri.items(), key=lambda pair: pair[1].owner.created_at):
        latest[one.task] = uri
    found = set(latest.values())
    for index in every.run_indexes:
        runs = (_plain(run.experiment) for run in index.before(_NEVER))
        found.update(islice((uri for uri in runs if uri in by_uri), 1))
    return frozenset(found)


def _plain(uri: str) -> str:
    return uri.removeprefix("file://")


def _is_broken_off(owner: OwnerRecord) -> bool:
    """What gc began it ends: half an experiment is of no use to anybody."""
    return owner.final and owner.created_by == _BY_GC


def _began_from(child: _Read, uri: str) -> bool:
    return any(f"{parent}/".startswith(f"{_plain(uri)}/") for parent in child.parents)


def last_change(records: ExperimentRecords, facts: ExperimentFacts) -> datetime:
    """When anything of it was last written, by the store's clock: owners, and the newest attempt's records and checkpoints."""
    times = [info.modified_at for info in records.store.list_folder("owners/").objects]
    for attempt in facts.attempts[-1:]:
        folder = f"{layout.attempt(*attempt.claim.ref.rank)}/"
        times += [info.modified_at for info in records.store.list_folder(folder).objects]
    return max(times, default=datetime.now(timezone.utc))


def _delete(records: ExperimentRecords, *, mine: int) -> str:
    """Delete what the experiment keeps, as long as `mine` is its newest owner.

    What a try reads goes after the checkpoints: one that comes in between must fail, not begin from the start.
    """
    every = [info for info in records.store.list("") if layout.is_ours(info.key)]
    num_gone = 0
    with ThreadPoolExecutor(_DELETERS) as pool:
        for rank in (_CHECKPOINT, _READ_BY_TRIES, _OWNER):
            keys = sorted(info.key for info in every if _rank(info.key) == rank)
            for start in range(0, len(keys), _BATCH):
                _check_newest(records, mine, done=f"{num_gone} of {len(every)} objects are gone")
                some = keys[start : start + _BATCH]
                # Owners one by one: while one is left, numbers only grow.
                list(map(records.store.delete, some) if rank == _OWNER else pool.map(records.store.delete, some))
                num_gone += len(some)
    return f"deleted {wording.count(len(every), 'object')}, {wording.size(sum(info.size for info in every))}"


def _rank(key: str) -> int:
    if key.startswith("owners/"):
        return _OWNER
    return _READ_BY_TRIES if key.endswith(("/claim.json", f"/{layout.MANIFEST}")) else _CHECKPOINT


def _check_newest(records: ExperimentRecords, mine: int, *, done: str) -> None:
    newest = records.newest_owner()
    if newest is None or newest[0] != mine:
        raise NotDone(
            "The deletion was broken off",
            known=f"somebody owns the experiment again; {done}",
            change="clear the task with on_clear='fresh', or delete the folder when its task has ended",
        )


def _final_owner(records: ExperimentRecords, seen: OwnerRecord) -> int:
    record = seen.model_copy(
        update={
            "k": seen.k + 1,
            "final": True,
            "final_because": "its experiment is deleted by hand",
            "created_by": _BY_GC,
            "created_at": datetime.now(timezone.utc),
            "acted_on": None,
            "submission_id": None,
            "gave_up": None,
        }
    )
    if not records.try_create_owner(record):
        raise NotDone("Nothing was deleted", known=f"owner {record.k} has come since", change="look again")
    return record.k
