"""Who may act: the newest owner of an experiment, as long as Airflow has not replaced its process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_provider.core.decision import TryFacts
from airflow_provider.core.errors import ForeignExperiment, Superseded, WriteConflict
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import OwnerRecord

if TYPE_CHECKING:
    from airflow_provider.operators.request import TrainingRequest
    from airflow_provider.storage.experiment_records import ExperimentRecords

MAX_LOST_RACES = 100
"""More processes than this never start for one task instance at once."""


@dataclass(kw_only=True)
class Ownership:
    """Owner records of one try. `set_marker` stores a value in the task's state store and says whether Airflow took it."""

    request: TrainingRequest
    facts: TryFacts
    records: ExperimentRecords
    set_marker: Callable[[int], bool]
    log: Callable[[str], None]
    k: int = 0
    """Owner number of this try; 0 before `own`."""
    now: Callable[[], datetime] = field(default=lambda: datetime.now(timezone.utc))
    _known: dict[int, OwnerRecord] = field(default_factory=dict)
    """Owner records that need not be read again: its own, and those it found before it owned. What an older owner does
    after that is no business of this try's."""
    _seen: dict[int, OwnerRecord] = field(default_factory=dict)
    """Owners after the own one: their counters never change, so they are read once."""

    def own(self) -> None:
        """Become the newest owner, then set the marker: a refusal means that Airflow has replaced this process.

        Raises Superseded, or ForeignExperiment when the path belongs to another task instance. That the number after the
        newest was free proves that no other owner came since.
        """
        for _ in range(MAX_LOST_RACES):
            k, newest = self._newest_before_own()
            if newest is not None:
                self._known[k - 1] = newest
                self._check_experiment(newest)
            record = self._owner_record(k)
            if self.records.try_create_owner(record):
                break
        else:
            raise WriteConflict(f"No owner record could be created in {MAX_LOST_RACES} races", known=self.request.uri)
        if record.k == 1:
            self._check_store(record)
        self.k = record.k
        self._known[record.k] = record
        self.facts = replace(self.facts, own_ks=self.facts.own_ks | {record.k})
        self.confirm()

    def _newest_before_own(self) -> tuple[int, OwnerRecord | None]:
        """The number to own next and the owner before it, all owners since the own one checked.

        Counters are compared with those only: of an owner before it, this try's decision says what it means.
        """
        if self.k == 0:
            newest = self.records.newest_owner()
            if newest is None:
                return 1, None
            self._check_final(newest[1])
            return newest[0] + 1, newest[1]
        newer = self._newer_owners()
        self._check_finals(newer)
        self._check_newer_try(newer)
        last = max(newer, default=self.k)
        return last + 1, newer.get(last)

    def _newer_owners(self) -> dict[int, OwnerRecord]:
        self._seen = self.records.owners_after(self.k, known=self._seen)
        return self._seen

    def _check_store(self, first: OwnerRecord) -> None:
        """Once per experiment: claims exclude one another only on a store with conditional writes.

        A store that ignores them says "created" again for the record that was just created; nothing else is written.
        """
        if self.records.try_create_owner(first):
            self.log(
                "WARNING: this store ignores conditional writes (If-None-Match), so two tries at the same moment could both "
                "claim the experiment; use a store that has them, or see to it that only one try runs"
            )

    def confirm(self) -> None:
        """Set the marker again. Raises Superseded when Airflow has replaced this process."""
        if not self.set_marker(self.k):
            raise Superseded("Airflow has replaced this process", known=f"its state store refused owner {self.k}")

    def _check_experiment(self, owner: OwnerRecord) -> None:
        key = self.request.key
        if (owner.dag_id, owner.run_id, owner.task_id, owner.map_index) != (
            key.dag_id,
            key.run_id,
            key.task_id,
            key.map_index,
        ):
            raise ForeignExperiment(
                f"The experiment {self.request.uri} belongs to another task instance",
                known=f"owner {owner.k} is {owner.dag_id}.{owner.task_id} of {owner.run_id}, this is {key}",
                change="leave experiment_name out, or put {{ run_id }} into it; nothing was touched",
            )

    def _check_final(self, owner: OwnerRecord) -> None:
        """A final stop ends the try it was aimed at, not the one that a later clear or re-created run starts."""
        aimed = (owner.dag_run_identity, owner.max_tries, owner.clear_number)
        mine = (self.facts.dag_run_identity, self.facts.max_tries, self.facts.clear_number)
        if owner.final and aimed == mine and owner.try_number >= self.facts.try_number:
            raise Superseded("The task was marked by hand and its training stopped for good", known=f"owner {owner.k}")

    def _check_finals(self, owners: dict[int, OwnerRecord]) -> None:
        for owner in owners.values():
            self._check_final(owner)

    def _check_newer_try(self, owners: dict[int, OwnerRecord]) -> None:
        """The newest owner may be a thawed older try's, with a newer try's right before it: so all count."""
        for owner in owners.values():
            is_same_run = owner.dag_run_identity == self.facts.dag_run_identity
            if is_same_run and owner.try_number > self.facts.try_number:
                raise Superseded(
                    "A newer try owns the experiment",
                    known=f"owner {owner.k} is try {owner.try_number}, this is try {self.facts.try_number}",
                )

    def _owner_record(self, k: int) -> OwnerRecord:
        key = self.request.key
        return OwnerRecord(
            k=k,
            dag_id=key.dag_id,
            run_id=key.run_id,
            task_id=key.task_id,
            map_index=key.map_index,
            dag_run_identity=self.facts.dag_run_identity,
            try_number=self.facts.try_number,
            max_tries=self.facts.max_tries,
            clear_number=self.facts.clear_number,
            created_at=self.now(),
        )

    def is_owner(self) -> bool:
        """Whether this try is still the newest owner; owns again where no owner since is of a newer try.

        Returns False after owning again: facts read before are stale. Raises Superseded for a newer try, and for a final
        stop that was aimed at this one. One store call where nobody came: numbers have no gaps, so a newer owner shows as
        number k + 1.
        """
        following = self.records.owner(self.k + 1)
        if following is None:
            return True
        self._seen[self.k + 1] = following.record
        newer = self._newer_owners()
        if not newer:
            raise Superseded("The experiment's owner records are gone", known=f"owner {self.k + 1} existed before")
        self._check_finals(newer)
        self.confirm()
        self._check_newer_try(newer)
        self.log(f"owner {max(newer)} came after {self.k} but is not a newer try: owning again")
        self.own()
        return False

    def acted_on(self, ref: AttemptRef, job_id: str) -> None:
        """Write the attempt into the own owner record: later tries compare themselves with who acted last."""
        own = self._known.get(self.k)
        if own is None:  # this process goes on after a deferral
            stored = self.records.owner(self.k)
            own = stored.record if stored else self._owner_record(self.k)
        update = {"acted_on": ref, "submission_id": job_id, "created_at": own.created_at}
        record = self._owner_record(self.k).model_copy(update=update)
        self.records.update_owner(record)
        self._known[self.k] = record

    def give_up(self, failure: Failure) -> None:
        """Note in the own owner record that the task ends with this failure and no try follows by itself.

        A sensor reads the bucket only, and an attempt's outcome may be missing, or know of a stop only. Behind a cluster that
        can't be reached the training goes on: that is no end of it. 2 calls.
        """
        has_tries = self.facts.try_number <= self.facts.max_tries
        if self.k == 0 or failure.kind is FailureKind.NETWORK or (failure.is_retryable and has_tries):
            return
        own = self.records.owner(self.k)
        if own is not None:
            self.records.update_owner(own.record.model_copy(update={"gave_up": failure}), etag=own.etag)
