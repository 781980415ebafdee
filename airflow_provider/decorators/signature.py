"""What editors and type checkers know of `ray_train_task`: RayTrainOperator's parameters, and the function's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from airflow_provider.core.job import OnClear
from airflow_provider.core.spec import CheckpointConfig, FailureConfig, ScalingConfig, StorageConfig
from airflow_provider.core.warm_start import WarmStart

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import Task
    from airflow.sdk.definitions.retry_policy import RetryPolicy

P = ParamSpec("P")
R = TypeVar("R")


class RayTrainTaskDecorator(Protocol):
    """`@ray_train_task(storage_path=..., ...)`. Airflow's own parameters of a task (pool, retry_delay, ...) go with it."""

    def __call__(
        self,
        *,
        storage_path: str = ...,
        conn_id: str = ...,
        aws_conn_id: str | None = ...,
        experiment_name: str | None = ...,
        datasets: str | None = ...,
        working_dir: str | None = ...,
        runtime_env: Mapping[str, Any] | None = ...,
        scaling_config: ScalingConfig | Mapping[str, Any] | None = ...,
        failure_config: FailureConfig | Mapping[str, Any] | None = ...,
        checkpoint_config: CheckpointConfig | Mapping[str, Any] | None = ...,
        storage_config: StorageConfig | Mapping[str, Any] | None = ...,
        restore: str | Mapping[str, Any] = ...,
        warm_start: WarmStart | Mapping[str, Any] | str | None = ...,
        on_corrupt: str = ...,
        on_clear: OnClear = ...,
        progress_metric: str | None = ...,
        require_new_checkpoint: bool = ...,
        timeout_s: float | timedelta | None = ...,
        stall_timeout_s: float | None = ...,
        resource_timeout_s: float | None = ...,
        pending_timeout_s: float | None = ...,
        unreachable_timeout_s: float = ...,
        silent_driver_timeout_s: float | None = ...,
        lost_after_s: float = ...,
        poll_interval_s: float = ...,
        stream_logs: bool = ...,
        stop_on_kill: bool = ...,
        entrypoint_num_cpus: float | None = ...,
        entrypoint_num_gpus: float | None = ...,
        entrypoint_resources: Mapping[str, float] | None = ...,
        train_version: str = ...,
        python: str = ...,
        deferrable: bool = ...,
        retries: int | None = ...,
        retry_policy: RetryPolicy | None = ...,
        **kwargs: Any,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Decorate a training loop; `storage_path` may also stand in the DAG's default_args."""
