"""`airflow ray-train experiments`: what lies below a storage path, and how it stands."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider.cli import wording
from airflow_provider.cli.answer import Answer, command
from airflow_provider.cli.discovery import Found, find_experiments
from airflow_provider.cli.exit_codes import OK, PROBLEM
from airflow_provider.cli.target import DEFAULT_AWS_CONN_ID
from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.experiment_sight import Stage, training_stage
from airflow_provider.storage.experiment_view import ExperimentView

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console

_READERS = 8
_STYLES = {Stage.SUCCESS.value: "green", Stage.FAILED.value: "red", Stage.RUNNING.value: "cyan", "unreadable": "yellow"}


@dataclass(frozen=True)
class Row:
    """One experiment in the list."""

    found: Found
    state: str
    reason: str
    attempt: str | None = None
    num_checkpoints: int = 0

    @property
    def data(self) -> dict[str, Any]:
        """For `--json`."""
        owner = self.found.owner
        return {
            "experiment": self.found.uri,
            "state": self.state,
            "reason": self.reason,
            "attempt": self.attempt,
            "num_checkpoints": self.num_checkpoints,
            "dag_id": owner.dag_id if owner else None,
            "task_id": owner.task_id if owner else None,
            "run_id": owner.run_id if owner else None,
            "map_index": owner.map_index if owner else None,
            "last_try_at": owner.created_at.isoformat() if owner else None,
        }


def list_experiments(args: Namespace) -> Answer:
    """Find the experiments and look at the newest of them. Writes nothing."""
    aws_conn_id = DEFAULT_AWS_CONN_ID if args.aws_conn_id is None else args.aws_conn_id or None
    every = find_experiments(args.storage_path, aws_conn_id=aws_conn_id, depth=args.depth)
    wanted = [one for one in every.experiments if _is_wanted(one, dag_id=args.dag_id, task_id=args.task_id)]
    newest = sorted(wanted, key=_last_try, reverse=True)[: max(0, args.limit)]
    with ThreadPoolExecutor(_READERS) as pool:
        rows = list(pool.map(_look, newest))
    data = {
        "storage_path": args.storage_path,
        "num_found": len(wanted),
        "is_whole": every.is_whole,
        "experiments": [row.data for row in rows],
    }

    def show(console: Console) -> None:
        _show(console, rows, num_found=len(wanted))
        if not every.is_whole:
            console.print(f"folders deeper than {args.depth} were not looked at (--depth)", style="yellow")

    is_read = all(row.state != "unreadable" for row in rows)
    return Answer(data, show, OK if is_read else PROBLEM)


def _is_wanted(found: Found, *, dag_id: str | None, task_id: str | None) -> bool:
    """One whose owner can't be read is shown: hiding it would hide the damage."""
    owner = found.owner
    return owner is None or (dag_id in (None, owner.dag_id) and task_id in (None, owner.task_id))


def _last_try(found: Found) -> tuple[bool, str]:
    return (True, found.owner.created_at.isoformat()) if found.owner else (False, found.uri)


def _look(found: Found) -> Row:
    if found.error is not None:
        return Row(found, "unreadable", str(found.error))
    try:
        sight = ExperimentView(found.records).look()
        stage = training_stage(sight)
    except RayTrainError as error:
        return Row(found, "unreadable", str(error))
    attempt = str(sight.newest.claim.ref) if sight.newest else None
    return Row(found, stage.stage.value, stage.reason, attempt, len(sight.committed))


def _show(console: Console, rows: list[Row], *, num_found: int) -> None:
    from rich.text import Text

    for row in rows:
        owner = row.found.owner
        when = wording.moment(owner.created_at) if owner else "?"
        console.print(Text(row.found.uri, style="bold", overflow="fold"), soft_wrap=True)
        head = Text("  ")
        head.append(row.state, style=_STYLES.get(row.state, ""))
        checkpoints = wording.count(row.num_checkpoints, "checkpoint")
        head.append(f"  {row.attempt or 'no attempt'}, {checkpoints}, last try {when}")
        console.print(head)
        console.print(Text(f"  {' '.join(row.reason.split())[:200]}", style="dim"))
    hidden = num_found - len(rows)
    more = f", {hidden} older ones not shown (--limit)" if hidden > 0 else ""
    console.print(f"{wording.count(num_found, 'experiment')}{more}")


experiments = command(list_experiments)
