"""The parent of a new generation: found and verified before its first claim, and kept by every claim after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.identity import checked_storage_path
from airflow_provider.core.parent import Look, Unusable, Usable, conclude_again, conclude_warm_start
from airflow_provider.core.run_index import RunRecord, index_uri
from airflow_provider.core.warm_start import Named, NothingNamed, WarmStart, read_source
from airflow_provider.hooks.experiment import open_experiment
from airflow_provider.storage.parent_scan import ParentScan
from airflow_provider.storage.run_index import RunIndex

if TYPE_CHECKING:
    from airflow_provider.core.record_parts import WarmStartRecord
    from airflow_provider.core.records import ClaimRecord
    from airflow_provider.operators.request import TrainingRequest
    from airflow_provider.storage.object_store import ObjectStore

MAX_RUNS_BACK = 20
"""Earlier DAG runs that are looked at; each costs some calls to the store."""


@dataclass(frozen=True, kw_only=True)
class WarmStarter:
    """Decides where a generation begins. `open_store` opens a folder by URI with the operator's AWS connection."""

    request: TrainingRequest
    wanted: WarmStart
    run_after: datetime
    """Of this DAG run: the order in which runs are "previous"."""
    open_store: Callable[[str], ObjectStore]
    log: Callable[[str], None]
    now: Callable[[], datetime] = field(default=lambda: datetime.now(timezone.utc))

    def decide(self, *, before: ClaimRecord | None, has_own: bool) -> WarmStartRecord | None:
        """The warm start of the attempt to claim; `before` is the generation's newest claim, None for its first attempt.

        Only a first attempt looks for a parent. A retry keeps what its claim before says, so that no other one is picked
        while nothing is committed. Raises NoParentCheckpoint, ForeignLayout, InvalidConfig, RecordUnreadable and the
        store's errors.
        """
        if before is None:
            decided = self._begin()
            self.log(decided.reason)
            return decided
        recorded = before.warm_start
        if recorded is None:
            self.log("warm_start has no effect on this generation: it began without; on_clear='fresh' begins a new one")
            return None
        if has_own or recorded.parent is None:
            return recorded
        self._check_scheme(recorded.parent.uri)
        verdict = self._scan().verify(recorded.parent)
        decided = conclude_again(recorded, verdict, missing=self.wanted.missing)
        self.log(decided.reason)
        return decided

    def _begin(self) -> WarmStartRecord:
        source = read_source(self.wanted)
        if isinstance(source, NothingNamed):
            return self._conclude([Unusable("warm_start", source.why)], what="the source")
        if isinstance(source, Named):
            self._check_scheme(source.uri)
            return self._conclude([self._scan().look(source.uri)], what=source.uri)
        when = f"{self.run_after:%Y-%m-%d %H:%M:%S} UTC"
        return self._conclude(self._look_back(), what=f"a DAG run before that of {when}")

    def _conclude(self, looks: list[Look], *, what: str) -> WarmStartRecord:
        return conclude_warm_start(looks, what=what, missing=self.wanted.missing)

    def _look_back(self) -> list[Look]:
        """From the run before this one to older ones, until one has a usable checkpoint."""
        key = self.request.key
        index = RunIndex(self.open_store(index_uri(self.request.storage_path, key)))
        index.note(
            RunRecord(
                dag_id=key.dag_id,
                run_id=key.run_id,
                task_id=key.task_id,
                map_index=key.map_index,
                run_after=self.run_after,
                experiment=self.request.uri,
                created_at=self.now(),
            )
        )
        looks: list[Look] = []
        others = (run for run in index.before(self.run_after) if run.experiment != self.request.uri)
        for run in islice(others, MAX_RUNS_BACK):
            look = self._scan().look_at_experiment(run.experiment)
            if isinstance(look, Usable):
                when = f"{run.run_after:%Y-%m-%d %H:%M:%S} UTC"
                looks.append(Usable(look.parent, f"{look.why}, of the earlier DAG run {run.run_id} ({when})"))
                break
            looks.append(Unusable(f"DAG run {run.run_id}", look.why))
        return looks or [Unusable("run records", "no earlier DAG run of this task has begun an experiment here")]

    def _scan(self) -> ParentScan:
        return ParentScan(self.open_store, policy=self.wanted.policy)

    def _check_scheme(self, uri: str) -> None:
        """The cluster reads the parent with the settings of the experiment's own storage."""
        if uri.startswith("s3://") != self.request.uri.startswith("s3://"):
            raise InvalidConfig(
                f"warm_start can't begin from {uri}",
                known=f"the experiment lies at {self.request.uri}, and the cluster reads both in one way",
                change="copy the parent to the experiment's storage",
            )


def warm_starter(request: TrainingRequest, *, run_after: datetime, log: Callable[[str], None]) -> WarmStarter | None:
    """The warm starter of a try; None where no warm start is asked for."""
    if request.warm_start is None:
        return None

    def open_store(uri: str) -> ObjectStore:
        return open_experiment(uri, aws_conn_id=request.aws_conn_id, storage_path=_anchor(uri, request.storage_path))

    return WarmStarter(request=request, wanted=request.warm_start, run_after=run_after, open_store=open_store, log=log)


def _anchor(uri: str, storage_path: str) -> str | None:
    """The folder that must be there, so that an unmounted share never looks like a deleted parent."""
    if uri.startswith("s3://"):
        return None
    root = checked_storage_path(storage_path)
    path = uri.removeprefix("file://")
    return root if f"{path}/".startswith(f"{root}/") else path.rpartition("/")[0] or "/"
