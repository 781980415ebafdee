"""Look at what a warm start names, before GPUs are taken: which checkpoint it is, and whether all of it is there.

"Could not read" is never "nothing there": the store's errors, a torn manifest and a newer release's records are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, NoUsableCheckpoint, RecordUnreadable
from airflow_provider.core.layout_v1 import RunAnswer, parse_run, state_checkpoint
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.core.parent import (
    Layout,
    Look,
    Unusable,
    Usable,
    folder_of_runs,
    inside_experiment,
    is_mark_of_run,
    judge_layout,
    parent_of,
    part_of,
    part_of_experiment,
    single_file,
    verify_parent,
)
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile, ParentCheckpoint
from airflow_provider.core.restore import AttemptCheckpoints, Candidate, Verdict, candidates, verify
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.restore_scan import scan_restore_point

if TYPE_CHECKING:
    from airflow_provider.storage.object_store import ObjectStore

_PLAIN = AttemptRef(generation=1, attempt=1)


class ParentScan:
    """Looks at checkpoints and experiments by URI. Nothing is written."""

    def __init__(self, open_store: Callable[[str], ObjectStore], *, policy: RestorePolicy) -> None:
        """`policy` chooses among the checkpoints of an experiment."""
        self.open_store, self.policy = open_store, policy

    def look(self, uri: str) -> Look:
        """The checkpoint that a URI means. Raises ForeignLayout, RecordUnreadable and the store's errors."""
        inside = inside_experiment(uri)
        if inside is not None:
            records = ExperimentRecords(self.open_store(inside[0]))
            if records.owner_numbers():
                return self._committed(records, uri, generation=inside[1], name=inside[2])
        experiment = part_of_experiment(uri)
        if experiment is not None and ExperimentRecords(self.open_store(experiment)).owner_numbers():
            raise part_of(uri, experiment)
        store = self.open_store(uri)
        listed = store.list_folder("")
        objects = {info.key for info in listed.objects}
        match judge_layout(uri, objects=objects, folders={name.rstrip("/") for name in listed.folders}):
            case Layout.EXPERIMENT:
                return self.look_at_experiment(uri)
            case Layout.RAY_RUN:
                return self._run_of_ray(store, uri)
            case Layout.RAY_RUN_V1:
                return self._run_of_v1(store, uri)
            case Layout.CHECKPOINT:
                return self._folder(store, uri)
            case Layout.NOTHING:
                return self._nothing(uri)

    def look_at_experiment(self, uri: str) -> Look:
        """The chosen checkpoint of the newest generation that committed any."""
        records = ExperimentRecords(self.open_store(uri))
        passed: list[str] = []
        for generation in reversed(records.generations()):
            attempts = records.attempts(generation)
            if not attempts:
                continue
            following = AttemptRef(generation=generation, attempt=attempts[-1].attempt + 1)
            try:
                point = scan_restore_point(records, ref=following, policy=self.policy)
            except NoUsableCheckpoint as error:
                passed.append(f"generation {generation}: {error.what} ({error.known})")
                continue
            if point is None or point.candidate is None:
                continue
            which = "latest" if self.policy.mode == "latest" else f"best {self.policy.metric}"
            parent = _found(records.store, f"{layout.generation(generation)}/", point.candidate)
            back = f", {len(point.skipped)} newer ones can't be used" if point.skipped else ""
            return Usable(parent, f"it is the {which} committed checkpoint of {uri}{back}")
        return Unusable(uri, "; ".join(passed) or "no committed checkpoint")

    def verify(self, parent: ParentCheckpoint) -> Verdict:
        """Whether a parent that a claim recorded is still there as it was."""
        return verify_parent(parent, _files(self.open_store(parent.uri), ""))

    def _committed(self, records: ExperimentRecords, uri: str, *, generation: int, name: str) -> Look:
        """A checkpoint of ours, named: it must be committed, unharmed and in no quarantine."""
        attempts = records.attempts(generation)
        if not attempts:
            return Unusable(uri, f"its experiment has no generation {generation}")
        following = AttemptRef(generation=generation, attempt=attempts[-1].attempt + 1)
        policy = RestorePolicy(mode="explicit", checkpoint=name)
        try:
            point = scan_restore_point(records, ref=following, policy=policy)
        except NoUsableCheckpoint:
            point = None
        if point is None or point.candidate is None:
            left = _files(records.store, f"{layout.generation(generation)}/{name}/")
            what = "its files are not those that were committed" if left else "it is gone"
            return Unusable(uri, f"{what}, it was never committed, or it is in quarantine" if left else what)
        parent = _found(records.store, f"{layout.generation(generation)}/", point.candidate)
        return Usable(parent, f"it was named, and {len(parent.files)} files are there as committed")

    def _run_of_ray(self, store: ObjectStore, uri: str) -> Look:
        """A run directory of Ray Train V2 that we did not start: its manifest says what is committed."""
        stored = store.read(layout.MANIFEST)
        manifest = parse_manifest(stored.body, key=f"{uri}/{layout.MANIFEST}") if stored else None
        known = [AttemptCheckpoints(_PLAIN, manifest)]
        why = "no committed checkpoint"
        for candidate in candidates(known, policy=self.policy):
            verdict = verify(candidate, _files(store, f"{candidate.name}/"))
            if verdict.is_usable:
                return Usable(_found(store, "", candidate), f"the manifest of Ray's run {uri} lists it first")
            why = f"{candidate.name}: {verdict.why}"
        return Unusable(uri, why)

    def _run_of_v1(self, store: ObjectStore, uri: str) -> Look:
        """A run directory of Ray Train V1: the checkpoint that its own restore would take."""
        if self.policy.mode == "best":
            raise InvalidConfig(
                f"warm_start can't choose the best checkpoint of {uri}",
                known="a run directory of Ray Train V1 keeps metrics where nobody but Ray reads them",
                change="name the checkpoint, or select='latest'",
            )
        run = parse_run(CheckpointFile(key=info.key, size=info.size) for info in store.list(""))
        if run.answer is RunAnswer.UNREADABLE or run.newest_state is None:
            raise RecordUnreadable(
                f"The run directory {uri} can't be read",
                known=run.why_unreadable or "no experiment state",
                change="name one of its checkpoints",
                key=uri,
            )
        state = store.read(run.newest_state)
        name = state_checkpoint(state.body) if state else None
        found = next((c.name for c in run.checkpoints if c.name.rpartition("/")[2] == name), None)
        if found is None:
            return Unusable(uri, f"its state knows {name or 'no checkpoint'}, which is not there")
        candidate = Candidate(found)
        verdict = verify(candidate, _files(store, f"{found}/"))
        if not verdict.is_usable:
            return Unusable(f"{uri}/{found}", verdict.why)
        return Usable(_found(store, "", candidate), f"the state of the V1 run {uri} knows it as its newest")

    def _folder(self, store: ObjectStore, uri: str) -> Look:
        """A folder of files outside any experiment of ours. A manifest of Ray beside it must list it."""
        files = []
        for file in _listed(store, ""):
            if is_mark_of_run(file.key):
                raise folder_of_runs(uri, file.key)
            files.append(file)
        verdict = verify(Candidate(uri), files)
        if not verdict.is_usable:
            return Unusable(uri, verdict.why)
        above, _, name = uri.rpartition("/")
        metrics: Mapping[str, Any] = {}
        beside = self._manifest_in(above)
        if beside is not None:
            listed = {entry.name: entry.metrics for entry in beside.entries}
            if name not in listed:
                return Unusable(uri, "the manifest of Ray beside it doesn't list it: it was not committed")
            metrics = listed[name]
        return Usable(parent_of(store.uri, files, metrics=metrics), f"it was named ({verdict.why})")

    def _manifest_in(self, uri: str) -> Any:
        if uri in ("s3:/", "s3:", "") or uri.removeprefix("s3://") == "":
            return None
        stored = self.open_store(uri).read(layout.MANIFEST)
        return parse_manifest(stored.body, key=f"{uri}/{layout.MANIFEST}") if stored else None

    def _nothing(self, uri: str) -> Look:
        above, _, name = uri.rpartition("/")
        is_inside = bool(name) and above not in ("s3:/", "")
        if is_inside and self.open_store(above).head(name) is not None:
            raise single_file(uri)
        return Unusable(uri, "nothing is there")


def _listed(store: ObjectStore, prefix: str) -> Iterator[CheckpointFile]:
    for info in store.list(prefix):
        if not info.key.endswith("/"):
            yield CheckpointFile(key=info.key.removeprefix(prefix), size=info.size, etag=info.etag)


def _files(store: ObjectStore, prefix: str) -> list[CheckpointFile]:
    return list(_listed(store, prefix))


def _found(store: ObjectStore, folder: str, candidate: Candidate) -> ParentCheckpoint:
    name = f"{folder}{candidate.name}"
    return parent_of(f"{store.uri}/{name}", _files(store, f"{name}/"), metrics=candidate.metrics)
