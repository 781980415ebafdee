"""Uploads that were never committed: folders in an attempt that no manifest and no record knows.

Only of attempts that are over and that a newer one has followed (or whose success was accepted): nobody reads or writes
there any more. Copies of retired checkpoints, and whatever a record names, stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider.cli import wording
from airflow_provider.cli.gc_items import Deed, Item, NotDone, Scope
from airflow_provider.core import layout
from airflow_provider.core.decision import ClusterSilent, JobSeen, JobSight
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.layout_v1 import RUN_NAME
from airflow_provider.core.lineage import AttemptRecords, ExperimentFacts
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.operators.collecting import read_experiment

if TYPE_CHECKING:
    from airflow_provider.storage.experiment_records import ExperimentRecords
    from airflow_provider.storage.object_store import ObjectInfo

_LONGEST_SILENCE_S = 3_600.0
"""A job that the cluster no longer knows counts as over when its driver has been silent for so long."""
_V1_RUN = re.compile(rf"{RUN_NAME}(-\d+)?")
"""A run directory of Train V1: later attempts go on inside it."""


@dataclass(frozen=True)
class LeftoverSearch:
    """Looks through experiments for what nobody committed."""

    older_than_s: float
    sight: Callable[[str], JobSight]
    """What the cluster says about a job."""

    def find(self, uri: str, records: ExperimentRecords) -> Iterator[Item]:
        """The leftovers of one experiment; one item with the reason where it can't be judged."""
        try:
            facts = read_experiment(records)
            now = store_clock(records)
            for attempt in facts.attempts:
                yield from self._of_attempt(records, facts, attempt, now=now)
        except RayTrainError as error:
            yield Item(Scope.LEFTOVER, uri, f"its records can't be read: {error}")

    def _of_attempt(
        self, records: ExperimentRecords, facts: ExperimentFacts, attempt: AttemptRecords, *, now: datetime
    ) -> Iterator[Item]:
        ref = attempt.claim.ref
        folder = f"{layout.attempt(*ref.rank)}/"
        names = [f.removeprefix(folder).rstrip("/") for f in records.store.list_folders(folder)]
        known = known_names(records, facts, generation=ref.generation)
        unknown = [n for n in names if _may_be_leftover(n) and not _is_known(f"attempts/{ref.attempt:06d}/{n}", known)]
        if not unknown:
            return
        in_use = self._why_in_use(records, facts, attempt)
        for name in unknown:
            yield self._judge(records, attempt, f"{folder}{name}/", in_use=in_use, now=now)

    def _judge(
        self, records: ExperimentRecords, attempt: AttemptRecords, prefix: str, *, in_use: str | None, now: datetime
    ) -> Item:
        name = f"{records.store.uri}/{prefix.rstrip('/')}"
        files = list(records.store.list(prefix))
        num_bytes = sum(file.size for file in files)
        if in_use is not None:
            return Item(Scope.LEFTOVER, name, in_use, num_bytes=num_bytes)
        if not files:
            return Item(Scope.LEFTOVER, name, "the folder is empty")
        newest_s = (now - max(file.modified_at for file in files)).total_seconds()
        if newest_s < self.older_than_s:
            why = f"its newest file is {wording.age(newest_s)} old, less than {wording.age(self.older_than_s)}"
            return Item(Scope.LEFTOVER, name, why, num_bytes=num_bytes)
        why = f"no manifest and no record of attempt {attempt.claim.ref} or a later one knows it"
        return Item(Scope.LEFTOVER, name, why, _deed(records, attempt, prefix, files), num_bytes)

    def _why_in_use(self, records: ExperimentRecords, facts: ExperimentFacts, attempt: AttemptRecords) -> str | None:
        """Why somebody may still need the attempt's folder, or None."""
        ref = attempt.claim.ref
        if attempt is facts.attempts[-1]:
            is_accepted = attempt.collected is not None and attempt.collected.accepted
            return None if is_accepted else f"{ref} is the newest attempt, and its success is not accepted"
        if attempt.final_outcome is not None:
            return None
        seen = self.sight(attempt.claim.submission_id)
        if isinstance(seen, ClusterSilent):
            return f"{ref} left no outcome and the cluster can't be asked for its job ({seen.why})"
        if isinstance(seen, JobSeen):
            is_over = seen.status.is_terminal
            return None if is_over else f"the job of {ref} is {seen.status.value}"
        alive = records.alive(ref)
        if alive is None or alive.age_s > _LONGEST_SILENCE_S:
            return None
        return f"{ref} left no outcome, and its driver's last sign of life is {wording.age(alive.age_s)} old"


def known_names(records: ExperimentRecords, facts: ExperimentFacts, *, generation: int) -> frozenset[str]:
    """Every checkpoint of a generation that something names, relative to the generation's folder. Manifests are read anew."""
    names: set[str] = set(records.quarantined(generation))
    published = records.published_manifest(generation)
    if published is not None:
        names.update(parse_manifest(published.body, key=layout.published_manifest(generation)).names)
    for attempt in facts.attempts:
        if attempt.claim.generation != generation:
            continue
        stored = records.manifest(attempt.claim.ref)
        if stored is not None:
            names.update(parse_manifest(stored.body, key=layout.manifest(*attempt.claim.ref.rank)).names)
        names.update(attempt.manifest.names if attempt.manifest else ())
        names.update(attempt.entries)
        restored = attempt.restored.checkpoint if attempt.restored else None
        named = (restored, attempt.claim.checkpoint_seen, _latest(attempt))
        names.update(name for name in named if name is not None)
    return frozenset(names)


def _may_be_leftover(folder: str) -> bool:
    is_copy = layout.copied_from(folder) is not None
    return folder not in layout.RECORD_FOLDERS and not is_copy and _V1_RUN.fullmatch(folder) is None


def _latest(attempt: AttemptRecords) -> str | None:
    outcome = attempt.final_outcome
    return outcome.latest_checkpoint if outcome else None


def _is_known(folder: str, known: frozenset[str]) -> bool:
    """A checkpoint's name may be nested deeper than the folder that a listing shows."""
    return folder in known or any(name.startswith(f"{folder}/") for name in known)


def _deed(records: ExperimentRecords, attempt: AttemptRecords, prefix: str, files: list[ObjectInfo]) -> Deed:
    def deed() -> str:
        ref = attempt.claim.ref
        name = f"attempts/{ref.attempt:06d}/{prefix.rstrip('/').rpartition('/')[2]}"
        if _is_known(name, known_names(records, read_experiment(records), generation=ref.generation)):
            raise NotDone("Nothing was deleted", known=f"{name} was committed meanwhile")
        for file in files:
            records.store.delete(file.key)
        return f"deleted {wording.count(len(files), 'file')}, {wording.size(sum(file.size for file in files))}"

    return deed


def store_clock(records: ExperimentRecords) -> datetime:
    """The store's time now: ages must not hang on this machine's clock."""
    numbers = records.owner_numbers()
    stored = records.store.read(layout.owner(numbers[-1])) if numbers else None
    if stored is None:
        raise NotDone("The experiment's owner records are gone", known=records.store.uri)
    return stored.read_at
