"""A trigger's task instance can't be asked for its state: the hook asks Airflow in its place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider.hooks.task_state import read_task_state


def task_instance(map_index: int = -1) -> Any:
    return SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=map_index)


@pytest.mark.parametrize(
    ("map_index", "name", "state"), [(-1, "t", "deferred"), (2, "t_2", "failed"), (-1, "t", None), (-1, "u", None)]
)
async def test_the_state_of_the_trigger_s_own_task(
    monkeypatch: pytest.MonkeyPatch, map_index: int, name: str, state: str | None
) -> None:
    asked: list[dict[str, Any]] = []

    def states(**query: Any) -> dict[str, Any]:
        asked.append(query)
        return {"r": {name: state}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))
    assert await read_task_state(task_instance(map_index)) == state
    assert asked == [{"dag_id": "d", "task_ids": ["t"], "run_ids": ["r"], "map_index": map_index}]


async def test_without_a_task_instance_nothing_is_known() -> None:
    """`dag.test()` runs triggers without one."""
    with pytest.raises(LookupError):
        await read_task_state(None)
