"""Metrics that Ray's manifest can hold, and what our own records make of them."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone

import numpy as np
import pytest
import torch
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import _TrainingResultState

from airflow_provider.runtime.events import CommitEvent, EventReader, append_event
from airflow_provider.runtime.plain_metrics import to_plain

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray calls deprecated parts of pydantic
AT = datetime(2026, 11, 29, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(1), True),
        (torch.tensor(1.5), 1.5),
        (np.arange(3), [0, 1, 2]),
        ({"a": (np.float32(1), None)}, {"a": [1.0, None]}),
        ("text", "text"),
        (object(), "<object>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_ray_refuses_become_plain(value: object, plain: object) -> None:
    """`np.float32` ends a run with a ControllerError otherwise, although its checkpoints were uploaded."""
    found = to_plain(value)
    assert found == plain
    assert type(found) is type(plain)
    _TrainingResultState(checkpoint_dir_name="x", metrics={"m": found}).json()


def test_nan_stays_a_number_for_ray() -> None:
    """Retention by score compares numbers; a string would end the run."""
    assert math.isnan(to_plain(np.float32("nan")))
    assert math.isinf(to_plain(float("inf")))


def test_events_are_strict_json_and_read_once(tmp_path) -> None:
    path = str(tmp_path / "events.jsonl")
    reader = EventReader(path)
    assert reader.read_new() == []
    append_event(path, CommitEvent(at=AT, checkpoint="attempts/000001/c", metrics={"loss": float("nan")}))
    body = (tmp_path / "events.jsonl").read_bytes()
    json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (event,) = reader.read_new()
    assert event.checkpoint == "attempts/000001/c"
    assert reader.read_new() == []


def test_half_a_line_waits_and_a_damaged_one_is_skipped(tmp_path) -> None:
    """The controller may be killed in the middle of a line."""
    path = tmp_path / "events.jsonl"
    reader = EventReader(str(path))
    path.write_bytes(b'{"type": "nonsense"}\n{"type": "commit", "at": "2026')
    assert reader.read_new() == []
    with path.open("ab") as file:
        file.write(b'-11-29T00:00:00Z", "checkpoint": "c", "metrics": {}}\n')
    assert [event.checkpoint for event in reader.read_new()] == ["c"]
