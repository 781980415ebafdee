"""`airflow ray-train checkpoints quarantine|release`: a person's word on which checkpoint may be restored."""

from __future__ import annotations

import getpass
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_provider.cli.answer import Answer, command
from airflow_provider.cli.errors import NotFound
from airflow_provider.cli.exit_codes import OK, PROBLEM
from airflow_provider.cli.target import find_target
from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, NoUsableCheckpoint, RayTrainError, RecordUnreadable
from airflow_provider.core.lineage import ExperimentFacts, project
from airflow_provider.core.records import AttemptRef, QuarantineRecord
from airflow_provider.core.warm_start import inside_experiment
from airflow_provider.operators.collecting import read_experiment
from airflow_provider.storage.restore_scan import scan_restore_point

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console

    from airflow_provider.storage.experiment_records import ExperimentRecords, Stored


@dataclass(frozen=True)
class Chosen:
    """One checkpoint of an experiment."""

    records: ExperimentRecords
    facts: ExperimentFacts
    generation: int
    name: str
    """Relative to the generation's folder."""

    @property
    def full(self) -> str:
        """As the lineage names it."""
        return f"{layout.generation(self.generation)}/{self.name}"

    @property
    def attempt(self) -> int:
        """The attempt whose folder holds it, else the newest of its generation."""
        parsed = layout.parse_attempt(f"{self.full}/")
        newest = max((a.claim.attempt for a in self.facts.attempts if a.claim.generation == self.generation), default=1)
        return parsed[1] if parsed else newest


def quarantine_checkpoint(args: Namespace) -> Answer:
    """Write a quarantine record. Undone by `release`."""
    chosen = _choose(args)
    record = QuarantineRecord(
        checkpoint=chosen.name,
        reason=f"by {user()}: {args.reason}",
        attempt=chosen.attempt,
        created_at=datetime.now(timezone.utc),
    )
    before = chosen.records.quarantine(chosen.generation, chosen.name)
    if before is not None and before.record.released_by is None and not before.record.is_suspicion:
        return _answer(chosen, before.record, "is in quarantine already; nothing was changed", is_changed=False)
    _check_not_in_use(chosen, before)
    chosen.records.set_quarantine(chosen.generation, record=record, etag=before.etag if before else None)
    return _answer(chosen, record, "is in quarantine: no restore takes it until it is released", is_changed=True)


def release_checkpoint(args: Namespace) -> Answer:
    """Mark the quarantine record as released; its reason stays."""
    chosen = _choose(args)
    before = chosen.records.quarantine(chosen.generation, chosen.name)
    if before is None:
        raise NotFound(f"{chosen.full} is not in quarantine", change="`airflow ray-train lineage` shows what is")
    if before.record.released_by is not None:
        return _answer(chosen, before.record, "was released before; nothing was changed", is_changed=False)
    _check_not_in_use(chosen, before)
    # Not a mere copy: what a person types is checked and cut as in any other record.
    record = QuarantineRecord(**dict(before.record) | {"released_by": f"{user()}: {args.reason}"})
    chosen.records.set_quarantine(chosen.generation, record=record, etag=before.etag)
    return _answer(chosen, record, "is released: a restore may take it again", is_changed=True)


def user() -> str:
    """Who acts, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "an unnamed user"


def _choose(args: Namespace) -> Chosen:
    text: str = args.checkpoint
    if "://" in text or text.startswith("/"):
        inside = inside_experiment(text.rstrip("/"))
        if inside is None:
            raise InvalidConfig(
                f"{text[:200]!r} is no checkpoint of an experiment",
                change="give its URI (.../g000001/attempts/...), or its name with --experiment",
            )
        if args.experiment is not None or args.dag_id is not None:
            raise InvalidConfig("The checkpoint's URI names the experiment", change="leave the other names out")
        args.experiment, generation, name = inside
    else:
        generation, name = 0, text.rstrip("/")
    records = find_target(args).records()
    facts = read_experiment(records)
    known = {c.name: c.state for c in project(facts).checkpoints}
    if not generation:
        generation, name = _named(name, known)
    chosen = Chosen(records, facts, generation, name)
    state = known.get(chosen.full)
    if state is None or state == "uncommitted":
        why = "it was never committed, so nothing restores it" if state else f"the experiment has {len(known)} others"
        raise NotFound(
            f"{chosen.full} is no committed checkpoint of {records.store.uri}",
            known=why,
            change="copy a name from `airflow ray-train lineage --all`",
        )
    return chosen


def _named(text: str, known: Iterable[str]) -> tuple[int, str]:
    """Generation and name of a full name, or of a folder's name that only one checkpoint has."""
    if layout.parse_generation(text) is None:
        same = [name for name in known if name.endswith(f"/{text}")]
        if len(same) > 1:
            change = f"write one whole name: {', '.join(same[:5])}"
            raise InvalidConfig(f"{len(same)} checkpoints are called {text[:200]}", change=change)
        if not same:
            change = "copy a name from `airflow ray-train lineage --all`"
            raise NotFound(f"The experiment has no checkpoint {text[:200]}", change=change)
        text = same[0]
    return layout.parse_generation(text) or 0, text.partition("/")[2]


def _check_not_in_use(chosen: Chosen, before: Stored[QuarantineRecord] | None) -> None:
    """A suspicion of the running attempt is its driver's: what it finds out would overwrite ours."""
    if before is None or not before.record.is_suspicion or before.record.released_by is not None:
        return
    newest = chosen.facts.attempts[-1]
    ref = AttemptRef(generation=chosen.generation, attempt=max(1, before.record.attempt))
    if newest.claim.ref == ref and newest.final_outcome is None:
        raise RayTrainError(
            f"Attempt {ref} is finding out whether {chosen.full} is to blame for its failures",
            known=f"its driver rewrites the record: {before.record.reason}",
            change="try again when the attempt has ended",
        )


def _next_restore(chosen: Chosen) -> tuple[str, bool]:
    """What the next attempt of the generation would restore now, and whether there is anything."""
    attempts = [a.claim for a in chosen.facts.attempts if a.claim.generation == chosen.generation]
    last = max(attempts, key=lambda claim: claim.attempt)
    following = AttemptRef(generation=chosen.generation, attempt=last.attempt + 1)
    try:
        point = scan_restore_point(chosen.records, ref=following, policy=last.restore_policy)
    except (NoUsableCheckpoint, RecordUnreadable) as error:
        return f"the next attempt ({following}) would fail: {error}", False
    return f"the next attempt ({following}) would begin so: {point.reason if point else 'from the start'}", True


def _answer(chosen: Chosen, record: QuarantineRecord, said: str, *, is_changed: bool) -> Answer:
    following, is_fine = _next_restore(chosen)
    data: dict[str, Any] = {
        "experiment": chosen.records.store.uri,
        "checkpoint": chosen.full,
        "changed": is_changed,
        "record": record.model_dump(mode="json"),
        "next_restore": following,
        "next_restore_is_possible": is_fine,
    }

    def show(console: Console) -> None:
        console.print(chosen.full, style="bold", soft_wrap=True)
        console.print(said)
        console.print(f"reason: {record.reason}")
        if record.released_by:
            console.print(f"released by {record.released_by}")
        console.print(following, style=None if is_fine else "red")

    return Answer(data, show, OK if is_fine else PROBLEM)


quarantine = command(quarantine_checkpoint)
release = command(release_checkpoint)
