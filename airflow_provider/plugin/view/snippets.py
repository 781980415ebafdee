"""Lines for a DAG file that go on from a chosen checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider.core import layout
from airflow_provider.core.lineage import LineageCheckpoint
from airflow_provider.plugin.view.facts import Recorded, Seen


@dataclass(frozen=True)
class Snippet:
    """Code to copy."""

    id: str
    title: str
    note: str
    code: str


def snippets_for(checkpoint: LineageCheckpoint, seen: Seen, recorded: Recorded) -> tuple[Snippet, ...]:
    """How to restore from it in this task, and how to begin another training from it.

    Nothing for a checkpoint that is gone, set aside or was never committed: the DAG would fail.
    """
    if checkpoint.state != "committed":
        return ()
    found = []
    generation, _, name = checkpoint.name.partition("/")
    newest = seen.lineage.attempts[-1].ref if seen.lineage.attempts else ""
    number = layout.parse_generation(f"{generation}/")
    if number is not None and newest.startswith(f"g{number}/"):
        code = _call(recorded.key.task_id, f'restore={{"mode": "explicit", "checkpoint": {_text(name)}}},')
        note = "In this task: the next try, or a cleared one, restores from this checkpoint. Take the line out again afterwards."
        found.append(Snippet("restore", "Restore this task from it", note, code))
    uri = f"{seen.lineage.experiment}/{checkpoint.name}"
    code = _call(recorded.key.task_id, f"warm_start={_text(uri)},")
    note = "In any task: a new training begins from this checkpoint, with a lineage of its own."
    found.append(Snippet("warm-start", "Begin a new training from it", note, code))
    return tuple(found)


def _call(task_id: str, line: str) -> str:
    return f"RayTrainOperator(\n    task_id={_text(task_id)},\n    # ... as before\n    {line}\n)\n"


def _text(value: str) -> str:
    """A Python literal in double quotes where that is the same text, as formatters write it."""
    plain = repr(value)
    return f'"{plain[1:-1]}"' if plain.startswith("'") and '"' not in plain else plain
