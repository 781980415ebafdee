"""What is read from the steps that a training told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measure import MeasurementFailed
from benchmarks.step_marks import (
    Mark,
    MarkFile,
    cadence_s,
    first_new_ground,
    first_new_step,
    first_of,
    longest_pause_s,
    num_repeated,
    parse_marks,
    training_lost_s,
)


def steps(*told: tuple[float, int, int]) -> list[Mark]:
    return [Mark(at, "step", step, pid) for at, step, pid in told]


RESTORED = steps((1, 0, 7), (2, 1, 7), (3, 2, 7), (20, 2, 8), (21, 3, 8), (22, 4, 8))
"""Killed at 3.5 with steps 0 and 1 committed; step 2 is taken again."""
FROM_SCRATCH = steps((1, 0, 7), (2, 1, 7), (20, 0, 8), (21, 1, 8), (22, 2, 8))
UNHARMED = steps((1, 0, 7), (2, 1, 7), (3, 2, 7), (4, 3, 7))


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    line = json.dumps({"at": 1.0, "what": "step", "step": 0, "pid": 7, "number": "1"})
    assert parse_marks(f"{line}\n{line[:20]}") == [Mark(1.0, "step", 0, 7, "1")]
    file = MarkFile(tmp_path / "marks")
    assert file.read() == []
    file.path.write_text(f"{line}\n")
    assert first_of(file.read(), "step", after=1.0) is None
    assert file.wait_for(lambda marks: first_of(marks, "step"), what="a step").pid == 7
    with pytest.raises(MeasurementFailed, match="a loop: not within"):
        file.wait_for(lambda marks: first_of(marks, "loop"), what="a loop", timeout_s=0.01)


def test_the_first_new_step_is_of_new_workers() -> None:
    """A last step of the old ones, on its way when they were killed, is none."""
    late = [*RESTORED[:3], Mark(3.6, "step", 3, 7), *RESTORED[3:]]
    found = first_new_step(late, killed_at=3.5)
    assert found is not None
    assert (found.at, found.step) == (20, 2)
    assert first_new_step(UNHARMED, killed_at=2.5) is None


def test_new_ground_is_what_nobody_had_reached() -> None:
    for marks, at in ((RESTORED, 21), (FROM_SCRATCH, 22)):
        found = first_new_ground(marks, killed_at=3.5)
        assert found is not None
        assert found.at == at


def test_old_workers_that_still_step_reach_no_new_ground() -> None:
    """Those of a killed driver live for a second more: what they do is lost."""
    dying = [*RESTORED[:3], Mark(4.0, "step", 3, 7), *RESTORED[3:]]
    found = first_new_ground(dying, killed_at=3.5)
    assert found is not None
    assert (found.at, found.step) == (22, 4)
    assert training_lost_s(dying, killed_at=3.5) == 17


def test_repeated_steps_are_counted() -> None:
    assert [num_repeated(marks) for marks in (UNHARMED, RESTORED, FROM_SCRATCH)] == [0, 1, 2]


def test_what_was_repeated_before_a_moment_is_not_counted_again() -> None:
    assert [num_repeated(RESTORED, killed_at=at) for at in (3.5, 20.5)] == [1, 0]
    assert training_lost_s(RESTORED, killed_at=21.5) == 0, "a later fault, which replaced no worker"


def test_the_cadence_leaves_restarts_out() -> None:
    assert cadence_s(RESTORED) == 1.0
    with pytest.raises(MeasurementFailed):
        cadence_s(RESTORED[:1])


def test_training_time_is_lost_only_where_workers_were_replaced() -> None:
    assert training_lost_s(UNHARMED, killed_at=2.5) == 0
    assert training_lost_s(RESTORED, killed_at=3.5) == 17
    """From 3 to 21, of which one second was the step itself."""
    assert training_lost_s(FROM_SCRATCH, killed_at=2.5) == 19


def test_a_process_that_stood_still_longer_than_ever_lost_that_time() -> None:
    frozen = [Mark(at, "step", n, 7) for n, at in enumerate((1.0, 2.0, 3.0, 33.0, 34.0))]
    assert training_lost_s(frozen, killed_at=3.5) == 29
    late = [Mark(at, "step", n, 7) for n, at in enumerate((1.0, 2.0, 3.0, 4.4, 5.4))]
    assert training_lost_s(late, killed_at=3.5) == 0, "less than a step is the machine's"


def test_the_longest_pause_touches_the_span_in_one_process() -> None:
    assert longest_pause_s(RESTORED, since=3.5, until=5) == 0, "from one process to the next is no pause"
    assert longest_pause_s(RESTORED, since=20.5, until=30) == 1
    assert longest_pause_s(RESTORED, since=0, until=2.5) == 1
