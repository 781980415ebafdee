"""A lineage as a tree for a terminal of 80 columns."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text
from rich.tree import Tree

from airflow_provider.cli import wording
from airflow_provider.core.experiment_sight import TrainingStage
from airflow_provider.core.goodput import TimeSpent, goodput_sentence
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import Lineage, LineageAttempt, LineageCheckpoint, LineageTry
from airflow_provider.core.records import AliveRecord, OwnerRecord
from airflow_provider.storage.experiment_records import Stored

MOST_CHECKPOINTS = 10
"""Of one attempt, the newest; `--all` shows every one."""
MOST_TRIES = 10
MOST_ATTEMPTS = 20
LONGEST_REASON = 300
_LONGEST_LINE = 72
_STYLES = {
    "success": "green",
    "committed": "green",
    "failed": "red",
    "lost": "red",
    "quarantined": "yellow",
    "cancelled": "yellow",
    "superseded": "yellow",
}


@dataclass(frozen=True)
class LineageTree:
    """What is shown of a lineage. A checkpoint's parent is the line above it unless the line says otherwise."""

    lineage: Lineage
    stage: TrainingStage
    owner: OwnerRecord
    goodput: TimeSpent
    alive: Stored[AliveRecord] | None = None
    """Of the newest attempt, while it has no outcome."""
    is_all: bool = False

    def render(self) -> Tree:
        """The tree for rich's console."""
        found = self.lineage
        owner = TaskInstanceKey(self.owner.dag_id, self.owner.run_id, self.owner.task_id, self.owner.map_index)
        tree = Tree(_line(f"task {owner}"))
        tree.add(_line(f"{self.stage.stage.value}: {self._short(self.stage.reason)}", word=self.stage.stage.value))
        if self.alive is not None:
            tree.add(_line(_sign_of_life(self.alive)))
        tree.add(_line(self._counts()))
        if self.goodput.wall_s > 0:
            tree.add(_line(goodput_sentence(self.goodput)))
        self._add_tries(tree)
        shown = found.attempts if self.is_all else found.attempts[-MOST_ATTEMPTS:]
        if len(shown) < len(found.attempts):
            tree.add(_dim(f"{wording.count(len(found.attempts) - len(shown), 'earlier attempt')} (--all)"))
        for attempt in shown:
            self._add_attempt(tree, attempt)
        return tree

    def _counts(self) -> str:
        found = self.lineage
        states = [c.state for c in found.checkpoints]
        parts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
        checkpoints = wording.count(len(states), "checkpoint") + (f" ({', '.join(parts)})" if parts else "")
        tries, attempts = wording.count(len(found.tries), "try"), wording.count(len(found.attempts), "attempt")
        return f"{tries}, {attempts}, {checkpoints}"

    def _add_tries(self, tree: Tree) -> None:
        branch = tree.add(_line("tries"))
        shown = self.lineage.tries if self.is_all else self.lineage.tries[-MOST_TRIES:]
        if len(shown) < len(self.lineage.tries):
            branch.add(_dim(f"{wording.count(len(self.lineage.tries) - len(shown), 'earlier try')} (--all)"))
        for one in shown:
            branch.add(_line(_try(one)))

    def _add_attempt(self, tree: Tree, attempt: LineageAttempt) -> None:
        commits = wording.count(attempt.num_commits, "commit")
        took = f", {wording.duration(attempt.finished_at - attempt.claimed_at)}" if attempt.finished_at else ""
        restarts = f", {wording.count(attempt.num_restarts, 'worker restart')}" if attempt.num_restarts else ""
        unfenced = ", NOT FENCED" if attempt.fenced is False else ""
        state = "no outcome yet" if attempt.state == "unknown" else attempt.state
        head = f"{attempt.ref}  {state}  {wording.moment(attempt.claimed_at)}{took}, {commits}{restarts}{unfenced}"
        branch = tree.add(_line(head, word=attempt.state))
        branch.add(_dim(f"job {attempt.submission_id}"))
        branch.add(_line(f"why: {self._short(attempt.intent)}"))
        if attempt.restored_from is not None or attempt.warm_started_from is not None:
            branch.add(_line(f"from {attempt.restored_from or attempt.warm_started_from}"))
        if attempt.restore_reason:
            branch.add(_dim(self._short(attempt.restore_reason)))
        if attempt.failure_kind:
            reason = self._short(attempt.failure_reason or "")
            branch.add(_line(f"{attempt.failure_kind}: {reason}", word=attempt.failure_kind, style="red"))
        self._add_checkpoints(branch, attempt.ref, first_parent=attempt.restored_from or attempt.warm_started_from)

    def _add_checkpoints(self, branch: Tree, ref: str, *, first_parent: str | None) -> None:
        own = [c for c in self.lineage.checkpoints if c.attempt == ref]
        shown = own if self.is_all else own[-MOST_CHECKPOINTS:]
        if len(shown) < len(own):
            branch.add(_dim(f"{wording.count(len(own) - len(shown), 'earlier checkpoint')} (--all)"))
        expected = own[-len(shown) - 1].name if len(shown) < len(own) else first_parent
        for checkpoint in shown:
            branch.add(_checkpoint(checkpoint, expected=expected))
            expected = checkpoint.name

    def _short(self, text: str) -> str:
        """One line's worth, for a person; the whole stands in `--json` and with `--all`."""
        whole = " ".join(text.split())
        return whole if self.is_all or len(whole) <= LONGEST_REASON else f"{whole[:LONGEST_REASON]}..."


def _sign_of_life(alive: Stored[AliveRecord]) -> str:
    record = alive.record
    commits = wording.count(record.num_commits, "commit")
    since = f"{record.phase.value} since {wording.moment(record.phase_since)}"
    return f"its driver's last sign of life is {wording.age(alive.age_s)} old: {since}, {commits}"


def _try(one: LineageTry) -> str:
    acted = f"acted on {one.acted_on}" if one.acted_on else "acted on nothing"
    final = ", stopped for good" if one.final else ""
    return f"owner {one.k}: try {one.try_number}, {wording.moment(one.at)}, {acted}{final}"


def _checkpoint(checkpoint: LineageCheckpoint, *, expected: str | None) -> Text:
    name = checkpoint.name.rpartition("/")[2]
    values = wording.metrics(checkpoint.metrics)
    late = ", recorded late" if checkpoint.late and checkpoint.state != "uncommitted" else ""
    head = f"{name}  {checkpoint.state}  {wording.size(checkpoint.size_bytes)}{late}"
    other = checkpoint.parent != expected and checkpoint.state != "uncommitted"
    parent = f"  parent {checkpoint.parent or 'none'}" if other else ""
    rest = f"{values}{parent}".strip()
    # In one line where it fits between the tree's lines, else in two.
    between = "  " if len(head) + len(rest) <= _LONGEST_LINE else "\n  "
    return _line(f"{head}{between}{rest}".rstrip(), word=checkpoint.state)


def _line(text: str, *, word: str = "", style: str | None = None) -> Text:
    """A line with one word in its colour."""
    line = Text(text, overflow="fold")
    colour = style or _STYLES.get(word)
    start = text.find(word) if word else -1
    if colour and start >= 0:
        line.stylize(colour, start, start + len(word))
    return line


def _dim(text: str) -> Text:
    return Text(text, style="dim", overflow="fold")
