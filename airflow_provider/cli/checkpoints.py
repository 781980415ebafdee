"""`airflow ray-train checkpoints quarantine|release`: a person's word on which checkpoint may be restored."""

from __future__ import annotations

import getpass
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_provider.cli.answer import Answer, command
from airflow_provider.cli.errors import NotFound
from airflow_provider.cli.exit_codes import OK, PROBLEM
from airflow_provider.cli.target import find_target
from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, NoUsableCheckpoint, RayTrainError, RecordUnreadable
from airflow_provider.core.lineage import ExperimentFacts, project
from airflow_provider.core.parent import inside_experiment
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import QuarantineRecord
from airflow_provider.core.restore import policy_of_attempt
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
    copies: tuple[str, ...] = ()
    """The same checkpoint under its other names: what it was copied from, and copies that later attempts restored."""

    @property
    def full(self) -> str:
        """As the lineage names it."""
        return f"{layout.generation(self.generation)}/{self.name}"

    def attempt_of(self, name: str) -> int:
        """The attempt whose folder holds a checkpoint, else the newest of its generation."""
        parsed = layout.parse_attempt(f"{layout.generation(self.generation)}/{name}/")
        newest = max((a.claim.attempt for a in self.facts.attempts if a.claim.generation == self.generation), default=1)
        return parsed[1] if parsed else newest

    def found(self) -> dict[str, Stored[QuarantineRecord] | None]:
        """The quarantine record under each of its names, the chosen one first."""
        return {name: self.records.quarantine(self.generation, name) for name in (self.name, *self.copies)}

    def set(self, record: QuarantineRecord, before: Stored[QuarantineRecord] | None) -> None:
        """Write a record over the one that was found. Raises WriteConflict."""
        self.records.set_quarantine(self.generation, record=record, etag=before.etag if before else None)


def quarantine_checkpoint(args: Namespace) -> Answer:
    """Write a quarantine record for the checkpoint and each copy of it. Undone by `release`."""
    chosen = _choose(args)
    found = chosen.found()
    free = {name: before for name, before in found.items() if before is None or not _is_set_aside(before.record)}
    first = found[chosen.name]
    if not free and first is not None:
        return _answer(chosen, first.record, "is in quarantine already; nothing was changed", is_changed=False)
    for name, before in free.items():
        _check_not_in_use(chosen, name, before)
    for name, before in free.items():
        chosen.set(_record(chosen, name, args.reason), before)
    record = (
        first.record if first is not None and chosen.name not in free else _record(chosen, chosen.name, args.reason)
    )
    return _answer(chosen, record, "is in quarantine: no restore takes it until it is released", is_changed=True)


def _record(chosen: Chosen, name: str, reason: str) -> QuarantineRecord:
    return QuarantineRecord(
        checkpoint=name,
        reason=f"by {user()}: {reason}",
        attempt=chosen.attempt_of(name),
        created_at=datetime.now(timezone.utc),
    )


def _is_set_aside(record: QuarantineRecord) -> bool:
    return record.released_by is None and not record.is_suspicion


def release_checkpoint(args: Namespace) -> Answer:
    """Mark the quarantine records of the checkpoint and its copies as released; their reasons stay."""
    chosen = _choose(args)
    known = {name: before for name, before in chosen.found().items() if before is not None}
    if not known:
        raise NotFound(f"{chosen.full} is not in quarantine", change="`airflow ray-train lineage` shows what is")
    # Not a mere copy: what a person types is checked and cut as in any other record.
    released = {
        name: QuarantineRecord(**dict(before.record) | {"released_by": f"{user()}: {args.reason}"})
        for name, before in known.items()
        if before.record.released_by is None
    }
    for name in released:
        _check_not_in_use(chosen, name, known[name])
    for name, record in released.items():
        chosen.set(record, known[name])
    shown = next(iter(released.values()), next(iter(known.values())).record)
    said = "is released: a restore may take it again" if released else "was released before; nothing was changed"
    return _answer(chosen, shown, said, is_changed=bool(released))


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
    return replace(chosen, copies=_copies(chosen, known))


def _copies(chosen: Chosen, known: Iterable[str]) -> tuple[str, ...]:
    """Same files under another name, so a person's word is about them too."""
    folder = f"{layout.generation(chosen.generation)}/"
    original = layout.copied_from(chosen.name) or chosen.name
    names = (full.removeprefix(folder) for full in known if full.startswith(folder))
    return tuple(name for name in names if name != chosen.name and (layout.copied_from(name) or name) == original)


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


def _check_not_in_use(chosen: Chosen, name: str, before: Stored[QuarantineRecord] | None) -> None:
    """A suspicion of the running attempt is its driver's: what it finds out would overwrite ours."""
    if before is None or not before.record.is_suspicion or before.record.released_by is not None:
        return
    newest = chosen.facts.attempts[-1]
    ref = AttemptRef(generation=chosen.generation, attempt=max(1, before.record.attempt))
    if newest.claim.ref == ref and newest.final_outcome is None:
        raise RayTrainError(
            f"Attempt {ref} is finding out whether {layout.generation(chosen.generation)}/{name} is to blame for its failures",
            known=f"its driver rewrites the record: {before.record.reason}",
            change="try again when the attempt has ended",
        )


def _next_restore(chosen: Chosen) -> tuple[str, bool]:
    """What the next attempt of the generation would restore now, and whether there is anything."""
    newest = chosen.facts.attempts[-1]
    if newest.claim.generation != chosen.generation:
        return (
            f"{newest.claim.ref} is of a newer generation, and nothing goes on from this one: name it in a warm_start",
            True,
        )
    attempts = [a for a in chosen.facts.attempts if a.claim.generation == chosen.generation]
    last = max(attempts, key=lambda attempt: attempt.claim.attempt)
    following = AttemptRef(generation=chosen.generation, attempt=last.claim.attempt + 1)
    policy = policy_of_attempt(
        last.claim.asked, before=last.claim, has_committed=bool(last.own_commits), answers_clear=False
    )
    try:
        point = scan_restore_point(chosen.records, ref=following, policy=policy)
    except (NoUsableCheckpoint, RecordUnreadable) as error:
        return f"the next attempt ({following}) would fail: {error}", False
    how = f"the next attempt ({following}) would begin so: {point.reason if point else 'from the start'}"
    if newest.collected is not None and newest.collected.accepted:
        how = f"the training has finished: a clear trains anew; with on_clear='restore' {how}"
    return how, True


def _answer(chosen: Chosen, record: QuarantineRecord, said: str, *, is_changed: bool) -> Answer:
    following, is_fine = _next_restore(chosen)
    data: dict[str, Any] = {
        "experiment": chosen.records.store.uri,
        "checkpoint": chosen.full,
        "copies": [f"{layout.generation(chosen.generation)}/{name}" for name in chosen.copies],
        "changed": is_changed,
        "record": record.model_dump(mode="json"),
        "next_restore": following,
        "next_restore_is_possible": is_fine,
    }

    def show(console: Console) -> None:
        console.print(chosen.full, style="bold", soft_wrap=True)
        console.print(said)
        for name in chosen.copies:
            console.print(f"its copy too: {name}", soft_wrap=True)
        console.print(f"reason: {record.reason}")
        if record.released_by:
            console.print(f"released by {record.released_by}")
        console.print(following, style=None if is_fine else "red")

    return Answer(data, show, OK if is_fine else PROBLEM)


quarantine = command(quarantine_checkpoint)
release = command(release_checkpoint)
