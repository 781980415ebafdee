"""`make demo`: a real training, killed twice, finishes with its lineage. Exits non-zero unless nothing was lost."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.lineage import Lineage
from tests.stack.__main__ import describe, wait_and_watch
from tests.stack.process import StackError, wait_until
from tests.stack.services import Stack
from tests.support.training_run import (
    TrainingRun,
    driver_processes,
    is_bit_equal,
    kill,
    worker_processes,
)

if TYPE_CHECKING:
    from types import FrameType

DAGS = Path(__file__).resolve().parents[1] / "dags"
DAG_ID = "resilient_training"
EPOCHS = 10
KILL_WORKER_AFTER = 2
"""Committed epochs before a training worker is killed."""
KILL_DRIVER_AFTER = 5
SHOWN_STATES = ("deferred", "up_for_retry", "success", "failed")
LIMIT_S = 600.0
LEFT_MARGIN = "        "


class DemoFailed(Exception):
    """Something that the demo promises did not hold."""


@dataclass
class Narrator:
    """Prints what happens as it happens, with seconds since the start."""

    began: float = field(default_factory=time.monotonic)
    timeline: list[str] = field(default_factory=list)

    def say(self, text: str, *, is_event: bool = True) -> None:
        """Print one line at once; events are shown again in the timeline."""
        line = f"{time.monotonic() - self.began:6.1f}s {text}"
        if is_event:
            self.timeline.append(line)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def main() -> int:
    """Run the demo; 0 only if every promise held."""
    options = _parse()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    narrator = Narrator()
    narrator.say("starting S3, Ray, Postgres and Airflow on loopback (about half a minute)", is_event=False)
    try:
        with Stack(dags=[DAGS]) as stack:
            airflow = stack.airflow
            login = f"user {airflow.username} password {airflow.password}"
            narrator.say(f"up: watch it at {airflow.url}/dags/{DAG_ID} ({login})", is_event=False)
            _demonstrate(stack, narrator)
            if options.keep:
                sys.stdout.write(f"\n{describe(stack, [DAGS], seconds=time.monotonic() - narrator.began)}\n")
                sys.stdout.flush()
                wait_and_watch(stack)
    except KeyboardInterrupt:
        narrator.say("stopped; nothing is left running", is_event=False)
        return 0 if options.keep else 130
    except (DemoFailed, StackError, RayTrainError) as error:
        sys.stdout.write(f"\nDEMO FAILED: {error}\n")
        return 1
    narrator.say("all services stopped", is_event=False)
    return 0


def _demonstrate(stack: Stack, narrator: Narrator) -> None:
    with stack.airflow.client() as airflow:
        conf = {"epochs": EPOCHS, "epoch_seconds": 2.0}
        harmed = TrainingRun(stack, airflow, DAG_ID, airflow.run_dag(DAG_ID, conf=conf))
        narrator.say(f"DAG run {harmed.run_id}: {EPOCHS} epochs on two workers, a checkpoint each")
        latest_at_kill = follow(harmed, narrator, is_harmed=True)
        narrator.say("the same training again, unharmed, to compare the weights", is_event=False)
        conf = {"epochs": EPOCHS, "epoch_seconds": 0.0}
        unharmed = TrainingRun(stack, airflow, DAG_ID, airflow.run_dag(DAG_ID, conf=conf))
        follow(unharmed, narrator, is_harmed=False)
        checks = judge(harmed, unharmed, latest_at_kill=latest_at_kill)
        report(harmed, narrator, checks)
        if all(checks.values()):
            sys.stdout.write("\nKilled twice, nothing committed was lost, and the weights are the same to the bit.\n\n")
        else:
            raise DemoFailed(", ".join(name for name, is_true in checks.items() if not is_true))


def follow(run: TrainingRun, narrator: Narrator, *, is_harmed: bool) -> str | None:
    """Show progress until the DAG run ends; kill a worker and then the driver. Returns the newest commit at that kill."""
    seen_state, seen_epochs, kills, latest_at_kill = "", set[int](), 0, None
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        task = run.task()
        state = f"Airflow: try {task['try_number']} is {task['state']}"
        if state != seen_state and task["state"] is not None:
            narrator.say(state, is_event=is_harmed and task["state"] in SHOWN_STATES)
            seen_state = state
        if task["state"] == "success":
            return latest_at_kill
        if task["state"] == "failed":
            raise DemoFailed(f"the task failed:\n{run.log(task['try_number'])[-3000:]}")
        epochs = _epochs(run)
        for epoch in sorted(epochs.keys() - seen_epochs):
            metrics = epochs[epoch]
            text = f"committed epoch {epoch}: loss {metrics['loss']:.3f} accuracy {metrics['accuracy']:.3f}"
            narrator.say(text, is_event=is_harmed)
        seen_epochs |= epochs.keys()
        if is_harmed and kills == 0 and len(seen_epochs) >= KILL_WORKER_AFTER:
            pids = kill(worker_processes(run.stack.ray)[:1])
            if pids:
                narrator.say(f"KILLED a training worker (SIGKILL {pids[0]}): Ray will restart the workers")
                kills = 1
        elif is_harmed and kills == 1 and len(seen_epochs) >= KILL_DRIVER_AFTER:
            pids = kill(driver_processes(run.stack.ray))
            if pids:
                narrator.say(f"KILLED the driver (SIGKILL {', '.join(map(str, pids))}): Airflow will retry and restore")
                kills, latest_at_kill = 2, _latest(run)
        time.sleep(1.0)
    raise DemoFailed(f"not finished within {LIMIT_S:.0f} s")


def _epochs(run: TrainingRun) -> dict[int, dict[str, Any]]:
    return run.metrics_by_epoch() if run.records() is not None else {}


def _latest(run: TrainingRun) -> str | None:
    """The newest commit once the killed driver's processes are gone."""
    wait_until(
        lambda: not driver_processes(run.stack.ray) and not worker_processes(run.stack.ray),
        timeout_s=60,
        what="the killed driver's processes to end",
    )
    records = run.records()
    claim = records.newest_claim() if records else None
    if records is None or claim is None:
        return None
    from airflow_provider.storage.restore_scan import read_manifest

    manifest = read_manifest(records, claim.ref)
    return f"g{claim.generation:06d}/{manifest.latest.name}" if manifest and manifest.latest else None


def judge(harmed: TrainingRun, unharmed: TrainingRun, *, latest_at_kill: str | None) -> dict[str, bool]:
    """What the demo promises, each with whether it held."""
    lineage, result = harmed.lineage(), harmed.xcom()
    epochs = [c.metrics.get("epoch") for c in lineage.checkpoints if c.state != "uncommitted"]
    restored = [a.restored_from for a in lineage.attempts]
    return {
        f"the final epoch {EPOCHS - 1} was reached": result["latest_checkpoint"]["metrics"]["epoch"] == EPOCHS - 1,
        "no committed checkpoint was lost: each epoch was committed once": epochs == list(range(EPOCHS)),
        "the retry restored the newest commit": len(restored) == 2 and restored[1] == latest_at_kill is not None,
        "one attempt committed at a time": _is_one_at_a_time(lineage),
        "Ray recovered the worker inside attempt 1": lineage.attempts[0].num_restarts >= 1,
        "both tries are in the lineage": [t.try_number for t in lineage.tries] == [1, 2],
        "the final weights are bit-equal to an unharmed run's": is_bit_equal(harmed.weights(), unharmed.weights()),
    }


def _is_one_at_a_time(lineage: Lineage) -> bool:
    """Whether commits, by time, never go back to an attempt that a newer one had followed."""
    dated = [(c.reported_at, c.attempt) for c in lineage.checkpoints if c.reported_at is not None]
    order = [attempt for _, attempt in sorted(dated)]
    return bool(order) and order == sorted(order)


def report(run: TrainingRun, narrator: Narrator, checks: dict[str, bool]) -> None:
    """Timeline, lineage, accuracy and the checks."""
    lineage, out = run.lineage(), sys.stdout
    out.write("\nTimeline\n" + "".join(f"  {line}\n" for line in narrator.timeline))
    out.write(f"\nLineage of {lineage.experiment}\n")
    for attempt in lineage.attempts:
        origin = attempt.restored_from.rsplit("/", 1)[-1] if attempt.restored_from else "the start"
        why = f" ({attempt.failure_kind}: {attempt.failure_reason})" if attempt.failure_kind else ""
        out.write(f"  attempt {attempt.ref} of try {attempt.try_number}: {attempt.state}{why}\n")
        out.write(f"{LEFT_MARGIN}from {origin}, {attempt.num_restarts} worker restarts\n")
        for point in (c for c in lineage.checkpoints if c.attempt == attempt.ref):
            if point.state == "uncommitted":
                out.write(
                    f"{LEFT_MARGIN}uploaded, not committed: {point.name.rsplit('/', 1)[-1]}; never restored, kept\n"
                )
                continue
            metrics = point.metrics
            parent = point.parent.rsplit("/", 1)[-1] if point.parent else "-"
            out.write(
                f"{LEFT_MARGIN}epoch {metrics.get('epoch')}  {point.name.rsplit('/', 1)[-1]}  {point.state:<9}  "
                f"accuracy {metrics.get('accuracy', 0):.3f}  parent {parent}\n"
            )
    out.write("\n  pruned: deleted by num_to_keep after newer ones were committed; its record stays\n")
    result = run.xcom()
    out.write(f"\nAccuracy on held-out digits: {result['latest_checkpoint']['metrics']['accuracy']:.3f}\n\n")
    for name, is_true in checks.items():
        out.write(f"  {'ok    ' if is_true else 'BROKEN'}  {name}\n")
    out.flush()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything up until Ctrl-C")
    return parser.parse_args()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
