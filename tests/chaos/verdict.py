"""Judges one run from what was seen of it. Pure: a lost checkpoint must be found here, or nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.observer import Event, own_prefix
from tests.chaos.retention import Kept, dropped_last, missing_files, wrong_deletions, wrong_lists


@dataclass(frozen=True)
class Ended:
    """What is there when a run is over."""

    state: str
    """Of the Airflow task."""
    epochs: Mapping[str, int]
    """Of every checkpoint in the XCom that was ever committed, by its name relative to the generation; also of pruned ones."""
    last_epoch: int
    """That the training was to reach."""
    is_bit_equal: bool
    """Whether the last weights are those of the unharmed run."""
    lineage_attempts: frozenset[tuple[int, int]]
    is_thawed: bool = False
    """A frozen writer came back: one manifest may have been on its way, which the check after it can't take back."""
    may_end_deletion: bool = False
    """It was frozen beside its requests, perhaps between a look at the claim and the one deletion that follows, which then comes late."""
    kept: Kept | None = None
    """What the bucket held; None where nobody looked, and no deletion was watched."""
    live_jobs: tuple[str, ...] = ()
    """Jobs and driver processes that were still there a minute after the task's end."""


@dataclass
class Verdict:
    """What went wrong; empty lists are a pass."""

    lost: list[str] = field(default_factory=list)
    double: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether all promises held."""
        return not (self.lost or self.double or self.orphans or self.other)

    def sentences(self) -> list[str]:
        """Every finding."""
        return [*self.lost, *self.double, *self.orphans, *self.other]


def judge(events: Sequence[Event], ended: Ended) -> Verdict:
    """Compare what was written, in order, with what was promised."""
    verdict = Verdict()
    late = _judge_order(events, verdict, num_allowed=1 if ended.is_thawed else 0)
    epochs = [epoch for name, epoch in ended.epochs.items() if name not in late]
    repeated = sorted({e for e in epochs if epochs.count(e) > 1})
    if repeated:
        verdict.lost.append(f"epochs {repeated} were committed twice: their first commit was not restored")
    committed = {name for event in events if event.kind == "manifest" for name in event.names}
    claimed = {event.rank for event in events if event.kind == "claim"}
    if not (committed and claimed):
        verdict.other.append(f"no order to judge: {len(claimed)} claims and {len(committed)} commits were observed")
    if missing := committed - set(ended.epochs) - dropped_last(events):
        verdict.other.append(f"the lineage lacks committed checkpoints {sorted(missing)}")
    if missing_attempts := claimed - ended.lineage_attempts:
        verdict.other.append(f"the lineage lacks attempts {sorted(missing_attempts)}")
    if ended.state != "success":
        verdict.other.append(f"the task ended as {ended.state}")
    if max(epochs, default=-1) != ended.last_epoch:
        verdict.other.append(f"training ended at epoch {max(epochs, default=-1)} instead of {ended.last_epoch}")
    if not ended.is_bit_equal:
        verdict.other.append("the weights differ from the unharmed run's")
    if ended.kept is not None:
        _judge_retention(events, ended, ended.kept, verdict)
    verdict.orphans += [f"still alive: {job}" for job in ended.live_jobs]
    return verdict


def _judge_retention(events: Sequence[Event], ended: Ended, kept: Kept, verdict: Verdict) -> None:
    """What the lineage calls committed must lie in the bucket; of the rest retention deleted what it may, and did delete."""
    verdict.lost += missing_files(kept)
    verdict.lost += wrong_deletions(events, num_late_allowed=1 if ended.may_end_deletion else 0)
    verdict.other += wrong_lists(kept)
    if not any(event.kind == "deleted" for event in events):
        verdict.other.append("retention deleted nothing: so it is not proven that nothing else goes")


def _judge_order(events: Sequence[Event], verdict: Verdict, *, num_allowed: int) -> set[str]:
    """Judge restores and commits in order; returns names that a thawed writer listed too late, in its own manifest only."""
    newest_commit: str | None = None
    restored: list[tuple[int, int]] = []
    listed: dict[tuple[int, int], set[str]] = {}
    late: list[set[str]] = []
    for event in events:
        if event.kind == "restored":
            if event.latest != newest_commit:
                verdict.lost.append(
                    f"attempt {event.rank} restored {event.latest}, the newest commit was {newest_commit}"
                )
            restored.append(event.rank)
        elif event.kind == "manifest":
            before = listed.setdefault(event.rank, set())
            new = {name for name in event.names if name.startswith(own_prefix(event.rank))} - before
            before |= new
            newer = [rank for rank in restored if rank > event.rank]
            if new and newer:
                late.append(new)
                if len(late) > num_allowed:
                    verdict.double.append(f"attempt {event.rank} committed after {newer[0]} had restored")
            elif new:
                newest_commit = event.latest
    return set().union(*late[:num_allowed])
