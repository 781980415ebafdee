"""What recording costs the training, in the interpreter that measures.

Harsher than in truth: there the hooks run in the worker and in Ray's controller, and the thread that writes in the driver, three
processes. Here all of them share one interpreter, and its lock, with the training.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec, TrainingSpec
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.spec import FailureConfig, StorageConfig
from airflow_provider.runtime.reporting import ControllerEvents, adapted_report
from airflow_provider.runtime.scribe import Scribe
from airflow_provider.runtime.storage import open_store

REF = AttemptRef(generation=1, attempt=1)


def without(num_steps: int, step_s: float) -> dict[str, float]:
    """The floor: steps of which each ends with a report that nobody records."""
    return _trained(lambda _: None, num_steps=num_steps, step_s=step_s) | {"recorded": 0}


def recorded(uri: str, endpoint: str, folder: str, num_steps: int, step_s: float) -> dict[str, float]:
    """The same, with our hooks around each report and a driver's thread that writes to the store."""
    spec = JobSpec(
        experiment_uri=uri,
        ref=REF,
        k=1,
        submission_id="benchmark",
        training=TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f"),
    )
    events = str(Path(folder) / "events.jsonl")
    Path(events).unlink(missing_ok=True)
    scribe = Scribe(
        open_store(uri, StorageConfig(endpoint_url=endpoint)), spec, run_uid="benchmark", events_path=events
    )
    hooks = ControllerEvents(events, run_folder="b", failure_config=FailureConfig())
    hooks.after_controller_start(SimpleNamespace(run_id="benchmark"))
    report = adapted_report(_ray_report, storage=None)

    def one(number: int) -> None:
        metrics = _metrics(number)
        report(metrics)
        path = f"b/attempts/000001/checkpoint_{number:06d}"
        plain = {**metrics, "accuracy": float(metrics["accuracy"])}
        hooks.after_report(SimpleNamespace(metrics=plain, checkpoint=SimpleNamespace(path=path)), [plain])

    scribe.start()  # its first sign of life passes; from then on the store is as the benchmark makes it
    scribe.begin_fit(parent=None, metrics=None)
    found = _trained(one, num_steps=num_steps, step_s=step_s)
    return found | {"recorded": len(scribe.recorder.recorded)}


def _ray_report(metrics: dict[str, Any], checkpoint: object = None) -> None:
    """In the place of Ray's, which costs the floor as much."""


def _metrics(number: int) -> dict[str, Any]:
    scalars = {f"loss_{i}": 1.0 / (1 + i + number) for i in range(8)}
    return {"step": number, "accuracy": np.float32(0.5), **scalars}


def _trained(report: Any, *, num_steps: int, step_s: float) -> dict[str, float]:
    """Steps of that length, each with a report; a step waits as one on a GPU does, with the interpreter's lock free."""
    reports, steps = [], []
    for number in range(num_steps):
        began = time.perf_counter()
        time.sleep(step_s)
        told = time.perf_counter()
        report(number)
        ended = time.perf_counter()
        reports.append(ended - told)
        steps.append(ended - began)
    return {
        "report_s": statistics.median(reports),
        "longest_report_s": max(reports),
        "step_s": statistics.median(steps),
    }
