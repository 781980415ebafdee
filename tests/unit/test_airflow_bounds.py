"""What docs/scale-out.md says of Airflow's bounds is so in the installed Airflow."""

from __future__ import annotations

import inspect

import pytest
from airflow.jobs.scheduler_job_runner import ConcurrencyMap
from airflow.models.pool import Pool
from airflow.ti_deps.dependencies_states import ACTIVE_STATES, EXECUTION_STATES
from airflow.utils.state import TaskInstanceState

from airflow_provider.operators.ray_train import RayTrainOperator

DEFERRED = TaskInstanceState.DEFERRED


@pytest.mark.parametrize("include_deferred", [False, True])
def test_a_deferred_task_takes_a_pools_slot_only_where_the_pool_includes_deferred_ones(include_deferred: bool) -> None:
    assert (DEFERRED in Pool(pool="gpus", include_deferred=include_deferred).get_occupied_states()) is include_deferred


def test_deferred_tasks_count_for_max_active_tis_and_not_for_max_active_tasks() -> None:
    class Session:
        """Answers the one query with a running and a deferred task of one run."""

        def execute(self, statement: object) -> list[tuple[str, str, str, TaskInstanceState, int]]:
            assert "task_instance.state" in str(statement)
            return [("d", "train", "r", TaskInstanceState.RUNNING, 1), ("d", "train", "r", DEFERRED, 3)]

    counted = ConcurrencyMap()
    counted.load(session=Session())  # type: ignore[arg-type]
    assert counted.task_concurrency_map["d", "train"] == 4
    assert counted.task_dagrun_concurrency_map["d", "r", "train"] == 4
    assert counted.dag_run_active_tasks_map["d", "r"] == 1


def test_a_task_that_waits_for_its_retry_or_its_resume_counts_nowhere() -> None:
    assert not {TaskInstanceState.UP_FOR_RETRY, TaskInstanceState.SCHEDULED} & (ACTIVE_STATES | EXECUTION_STATES)


def test_trainings_defer_by_default() -> None:
    assert inspect.signature(RayTrainOperator.__init__).parameters["deferrable"].default is True
