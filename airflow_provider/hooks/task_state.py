"""Airflow's present word on a task, as a worker and a triggerer can ask for it."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async


def find_state(states: dict[str, Any], *, run_id: str, task_id: str) -> str | None:
    """The task's state in Airflow's answer, which names mapped ones `<task_id>_<map_index>`."""
    for name, state in states.get(run_id, {}).items():
        if name == task_id or name.startswith(f"{task_id}_"):
            return str(state) if state is not None else None
    return None


async def read_task_state(task_instance: Any) -> str | None:
    """The state of a trigger's task, None for a cleared one. Raises whatever Airflow's API raises.

    The task instance that a triggerer gives its triggers has no method for it.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    if task_instance is None:
        raise LookupError("this trigger belongs to no task instance")
    ask = sync_to_async(RuntimeTaskInstance.get_task_states, thread_sensitive=False)
    states = await ask(
        dag_id=task_instance.dag_id,
        task_ids=[task_instance.task_id],
        run_ids=[task_instance.run_id],
        map_index=task_instance.map_index,
    )
    return find_state(states, run_id=task_instance.run_id, task_id=task_instance.task_id)
