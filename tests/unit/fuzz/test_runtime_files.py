"""Files on the driver's node: what the controller appends, the job's document, what a script leaves behind."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.errors import RayTrainError
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec, TrainingSpec
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import Phase
from airflow_provider.core.strict_json import bounded_metrics
from airflow_provider.runtime.child import CONTEXT_ENV, ChildContext, _failed
from airflow_provider.runtime.events import (
    CommitEvent,
    EventReader,
    FailureEvent,
    PhaseEvent,
    ReportEvent,
    StartEvent,
    append_event,
)
from airflow_provider.runtime.progress import Progress
from airflow_provider.runtime.spec_file import read_spec
from tests.support.damage import JUNK, SECRET, TEXTS, damaged_json, examples, only_typed_errors
from tests.support.records import NOW

FAILURE = Failure(kind=FailureKind.LOST, reason="the head was replaced", detail="d")
EVENTS: list[Any] = [
    StartEvent(at=NOW, train_run_id="r"),
    PhaseEvent(at=NOW, phase=Phase.TRAINING),
    ReportEvent(at=NOW, metrics={"epoch": 1}),
    CommitEvent(at=NOW, checkpoint="c1", metrics={"epoch": 1, "deep": [{"a": 1}]}),
    FailureEvent(at=NOW, failure=FAILURE, decision="retry"),
]
SPEC = JobSpec(
    experiment_uri="s3://b/e",
    ref=AttemptRef(generation=1, attempt=1),
    k=1,
    submission_id="s",
    deadline=NOW,
    training=TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="a:b", train_loop_config={"token": SECRET}),
)
LINES = damaged_json([json.loads(event.model_dump_json()) for event in EVENTS])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


@given(st.lists(LINES, max_size=5), st.lists(st.integers(0, 400), max_size=3))
@examples(150)
def test_a_damaged_line_costs_itself_only(file: Path, lines: list[bytes], cuts: list[int]) -> None:
    """The driver's progress goes on, whatever a dying controller left; its next whole line is read."""
    body = b"".join(line + b"\n" for line in lines)
    file.write_bytes(b"")
    reader, found, written = EventReader(str(file)), [], 0
    for cut in [*sorted(cuts), len(body)]:
        end = min(cut, len(body))
        with file.open("ab") as stream:
            stream.write(body[written:end])
        written = max(written, end)
        found += reader.read_new()
    append_event(str(file), EVENTS[1])
    assert reader.read_new() == [EVENTS[1]]
    progress = Progress(phase=Phase.STARTING, phase_since=NOW)
    for event in found:
        assert isinstance(event.at - NOW, type(NOW - NOW))
        progress = progress.after(event)


@given(st.dictionaries(TEXTS, JUNK, max_size=4), TEXTS)
@examples(150)
def test_whatever_a_training_reports_is_told(file: Path, metrics: dict[str, Any], name: str) -> None:
    file.write_bytes(b"")
    strict, _ = bounded_metrics(metrics)
    append_event(str(file), CommitEvent(at=NOW, checkpoint="c", metrics=strict))
    append_event(str(file), FailureEvent(at=NOW, failure=Failure(kind=FailureKind.USER, reason=name), decision=name))
    commit, failure = EventReader(str(file)).read_new()
    assert (commit.metrics, failure.type) == (strict, "failure")


@given(damaged_json([json.loads(SPEC.body())]))
@examples(200)
def test_the_jobs_document_is_read_or_refused(file: Path, body: bytes) -> None:
    file.write_bytes(body)
    with only_typed_errors():
        spec = read_spec(str(file))
        assert JobSpec.model_validate_json(spec.body(), context={"rendered": True})
        assert isinstance((spec.deadline or NOW) - datetime.now(NOW.tzinfo), type(NOW - NOW))


@given(damaged_json([{"events_path": "e", "failure_path": "f", "spec_path": "s", "is_fenced": True}]))
@examples(80)
def test_the_scripts_context_is_read_or_refused(body: bytes) -> None:
    text = body.decode("utf-8", "surrogateescape").replace("\0", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, CONTEXT_ENV, text)
        with only_typed_errors():
            assert isinstance(ChildContext.from_env().spec_path, str)


@given(damaged_json([json.loads(FAILURE.model_dump_json())]))
@examples(80)
def test_a_failure_that_a_script_left_is_one_of_ours(file: Path, body: bytes) -> None:
    file.write_bytes(body)
    with only_typed_errors():
        found = _failed(1, file)
        assert isinstance(found, RayTrainError)
        assert len(str(found).encode()) < 30_000
        found.failure.model_dump_json()
