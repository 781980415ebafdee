"""The time line of a task's log, as Airflow's API shows it."""

from __future__ import annotations

from benchmarks.task_log import executed_at, parse_log, said_at

LOG = """::group::Log message source details
/logs/attempt=1.log
::endgroup::
2026-11-30T07:17:20.000000Z info ::group::Pre Execute {"logger": "task"}
2026-11-30T07:17:21.000000Z info DAG bundles loaded: dags-0 {"logger": "m"}
2026-11-30T07:17:22.500000Z info ::endgroup:: {"logger": "task"}
2026-11-30T07:17:26.000000+00:00 info budgets (failure, who recovers, how often):
  training worker lost            Ray restarts the workers in the same job  20
2026-11-30T07:17:30.000000Z error Task failed with exception {"logger": "task"}
2026-11-30T07:17:31.000000Z info ::endgroup:: {"logger": "task"}
2026-11-30T07:17:18.000000Z info Trigger fired event {"name": "d/r/t/-1/1 (ID 1)"}
"""
BEGAN = 1_796_023_038.0


def test_lines_stand_in_the_order_of_time() -> None:
    lines = parse_log(LOG)
    assert [line.at - BEGAN for line in lines] == [0, 2, 3, 4.5, 8, 12, 13]
    assert lines[0].text.startswith("Trigger fired event")


def test_what_was_said_after_a_moment() -> None:
    lines = parse_log(LOG)
    assert said_at(lines, "Task failed", after=BEGAN) == BEGAN + 12
    assert said_at(lines, "Task failed", after=BEGAN + 12) is None


def test_the_operator_begins_where_airflow_ends_its_preparation() -> None:
    """Not at the first end of a group: there are others before and after."""
    assert executed_at(parse_log(LOG), after=BEGAN) == BEGAN + 4.5
    assert executed_at(parse_log(LOG), after=BEGAN + 2) is None
