"""RayTrainOperator: a Ray Train job whose Airflow retries restore from the newest verified checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider.core.spec import CheckpointConfig, FailureConfig, ScalingConfig, StorageConfig
from airflow_provider.core.warm_start import WarmStart
from airflow_provider.links.ray_train import ExperimentLink, LineageLink, RayJobLink
from airflow_provider.operators.parameters import check_parameters
from airflow_provider.policies.retry import RayTrainRetryPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.retry_policy import RetryPolicy

    from airflow_provider.core.dag_function import FunctionModule
    from airflow_provider.core.job import OnClear
    from airflow_provider.operators.session import TrainingSession


def _plain(value: Any) -> Any:
    """Any mapping as a dict, which Airflow can template; anything else as it is, for the check to name."""
    return dict(value) if isinstance(value, Mapping) else value


class RayTrainOperator(BaseOperator):
    """Train with Ray Train on an existing cluster; a retry attaches to the running job or restores, never duplicates.

    Say what to train in one of three ways: `train_loop` (import path of a training loop), `trainer` (import path of a
    factory that takes the run config and returns any Ray Train trainer) or `entrypoint` (a command whose script asks
    `airflow_provider.runtime` for its run config). All times are in seconds. Every parameter in `template_fields` is
    templated at any depth, checked when the DAG is parsed and again, strictly, once rendered.

    The experiment's folder in the bucket is the source of truth: owners, claims, checkpoints with their file lists,
    failures and outcomes. XComs (`return_value`, `checkpoint_lineage`) are projections of it.

    :param storage_path: `s3://bucket/prefix`, or a directory that Airflow and all nodes share.
    :param conn_id: Airflow connection of type `ray`: the dashboard's address and token.
    :param aws_conn_id: Airflow AWS connection for the bucket; None takes boto3's default chain.
    :param experiment_name: folder below `storage_path`; default: unique per DAG, run, task and map index.
    :param train_loop: import path `package.module:function` of a training loop.
    :param trainer: import path of a factory of any Ray Train trainer.
    :param entrypoint: a command, such as `python train.py`.
    :param train_loop_config: passed to the training loop; must be JSON.
    :param datasets: import path of a factory `() -> dict[str, ray.data.Dataset]`, called on each attempt.
    :param working_dir: the author's code, relative to the DAG file; honours .gitignore and .rayignore.
    :param runtime_env: Ray's runtime environment (pip, env_vars, ...). Its env_vars are readable on the dashboard.
    :param scaling_config: `ScalingConfig` of `airflow_provider.core.spec`, or a dict: workers and what each takes.
    :param failure_config: `FailureConfig` of the same module: what Ray and the driver recover from, and how often.
    :param checkpoint_config: `CheckpointConfig` of the same module: which checkpoints Ray keeps.
    :param storage_config: `StorageConfig` of the same module: how the cluster reaches the bucket; it uses an S3 identity
        of its own.
    :param restore: `latest`, `best` or `{"mode": ..., "metric": ..., "order": ..., "checkpoint": ...}`.
    :param on_corrupt: `rollback` to the newest checkpoint that verifies, or `fail`.
    :param warm_start: where a new experiment begins: URI of a checkpoint or experiment, an XCom or asset event that names
        one, `"previous_run"`, or `WarmStart(source=..., select=..., missing=...)`. A retry restores its own checkpoints.
    :param on_clear: what a clear means: `auto` (fresh after a success, else restore), `restore` or `fresh`.
    :param progress_metric: a reported metric that never falls in a training that really continued.
    :param require_new_checkpoint: fail a success that committed nothing.
    :param timeout_s: absolute deadline of an attempt, kept by the driver too; default: `execution_timeout`.
    :param stall_timeout_s: longest time without a new committed checkpoint while training.
    :param resource_timeout_s: longest time waiting for nodes.
    :param pending_timeout_s: longest time the job may wait for a place for its driver.
    :param unreachable_timeout_s: how long, and for 10 polls, neither dashboard nor driver may answer before this try fails.
    :param silent_driver_timeout_s: longest age of the driver's sign of life while Ray calls the job RUNNING.
    :param lost_after_s: how long, and for 3 polls, a cluster must not know the job before it counts as lost.
    :param poll_interval_s: seconds between two looks at the job.
    :param stream_logs: copy the job's log into the task log.
    :param stop_on_kill: stop the job when a person marks or clears the task (an eviction never does).
    :param entrypoint_num_cpus: CPUs that Ray reserves for the driver; default: none, so it runs on the head node.
    :param entrypoint_num_gpus: GPUs that Ray reserves for the driver.
    :param entrypoint_resources: custom resources that Ray reserves for the driver, for example to place it.
    :param train_version: `v2`, or `v1` for the older `TorchTrainer.restore`.
    :param python: interpreter of the driver on the cluster.
    :param deferrable: wait in the triggerer (default) or block a worker.
    :param retries: Airflow's, with a default of 3: each retry attaches or restores.
    :param retry_policy: default: retries by failure kind; `RayTrainRetryPolicy(inner=...)` adds your own for other exceptions.
    """

    template_fields = (
        "storage_path",
        "conn_id",
        "aws_conn_id",
        "experiment_name",
        "train_loop",
        "trainer",
        "entrypoint",
        "train_loop_config",
        "datasets",
        "working_dir",
        "runtime_env",
        "scaling_config",
        "failure_config",
        "checkpoint_config",
        "storage_config",
        "restore",
        "warm_start",
        "progress_metric",
        "python",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            "train_loop_config",
            "runtime_env",
            "scaling_config",
            "failure_config",
            "checkpoint_config",
            "storage_config",
            "restore",
            "warm_start",
        ),
        "json",
    )
    function_module: FunctionModule | None = None
    """The decorated function of `@task.ray_train`; it travels beside the runtime."""
    operator_extra_links = (RayJobLink(), ExperimentLink(), LineageLink())
    ui_color = "#dcebfa"

    def __init__(
        self,
        *,
        storage_path: str,
        conn_id: str = "ray_default",
        aws_conn_id: str | None = "aws_default",
        experiment_name: str | None = None,
        train_loop: str | None = None,
        trainer: str | None = None,
        entrypoint: str | None = None,
        train_loop_config: Mapping[str, Any] | None = None,
        datasets: str | None = None,
        working_dir: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | Mapping[str, Any] | None = None,
        failure_config: FailureConfig | Mapping[str, Any] | None = None,
        checkpoint_config: CheckpointConfig | Mapping[str, Any] | None = None,
        storage_config: StorageConfig | Mapping[str, Any] | None = None,
        restore: str | Mapping[str, Any] = "latest",
        warm_start: WarmStart | Mapping[str, Any] | str | None = None,
        on_corrupt: str = "rollback",
        on_clear: OnClear = "auto",
        progress_metric: str | None = None,
        require_new_checkpoint: bool = False,
        timeout_s: float | timedelta | None = None,
        stall_timeout_s: float | None = None,
        resource_timeout_s: float | None = 3600.0,
        pending_timeout_s: float | None = 3600.0,
        unreachable_timeout_s: float = 1800.0,
        silent_driver_timeout_s: float | None = 1800.0,
        lost_after_s: float = 30.0,
        poll_interval_s: float = 10.0,
        stream_logs: bool = True,
        stop_on_kill: bool = True,
        entrypoint_num_cpus: float | None = None,
        entrypoint_num_gpus: float | None = None,
        entrypoint_resources: Mapping[str, float] | None = None,
        train_version: str = "v2",
        python: str = "python",
        deferrable: bool = True,
        retries: int | None = 3,
        retry_policy: RetryPolicy | None = RayTrainRetryPolicy(),  # noqa: B008 - a default set in the body is lost when mapped
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_policy=retry_policy, **kwargs)
        self.storage_path = storage_path
        self.conn_id = conn_id
        self.aws_conn_id = aws_conn_id
        self.experiment_name = experiment_name
        self.train_loop = train_loop
        self.trainer = trainer
        self.entrypoint = entrypoint
        self.train_loop_config = _plain(train_loop_config)
        self.datasets = datasets
        self.working_dir = working_dir
        self.runtime_env = _plain(runtime_env)
        self.scaling_config = ScalingConfig.parsed(scaling_config, parameter="scaling_config")
        self.failure_config = FailureConfig.parsed(failure_config, parameter="failure_config")
        self.checkpoint_config = CheckpointConfig.parsed(checkpoint_config, parameter="checkpoint_config")
        self.storage_config = StorageConfig.parsed(storage_config, parameter="storage_config")
        self.restore = _plain(restore)
        self.warm_start = WarmStart.given(warm_start)
        self.on_corrupt = on_corrupt
        self.on_clear = on_clear
        self.progress_metric = progress_metric
        self.require_new_checkpoint = require_new_checkpoint
        self.timeout_s = timeout_s.total_seconds() if isinstance(timeout_s, timedelta) else timeout_s
        self.stall_timeout_s = stall_timeout_s
        self.resource_timeout_s = resource_timeout_s
        self.pending_timeout_s = pending_timeout_s
        self.unreachable_timeout_s = unreachable_timeout_s
        self.silent_driver_timeout_s = silent_driver_timeout_s
        self.lost_after_s = lost_after_s
        self.poll_interval_s = poll_interval_s
        self.stream_logs = stream_logs
        self.stop_on_kill = stop_on_kill
        self.entrypoint_num_cpus = entrypoint_num_cpus
        self.entrypoint_num_gpus = entrypoint_num_gpus
        self.entrypoint_resources = _plain(entrypoint_resources)
        self.train_version = train_version
        self.python = python
        self.deferrable = deferrable
        check_parameters(self)
        self._session: TrainingSession | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Own the experiment, decide, act, and wait: deferred by default, else in this process.

        Returns the training's result. Raises typed errors that carry a failure kind for the retry policy.
        """
        from airflow_provider.operators.session import TrainingSession

        with TrainingSession.open(self, context) as session, self._marking_timeout(session):
            return session.start()

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Collect and publish after the trigger fired. `event` holds all that is needed."""
        from airflow_provider.operators.session import TrainingSession

        with TrainingSession.open(self, context) as session, self._marking_timeout(session):
            return session.resume(event)

    @contextmanager
    def _marking_timeout(self, session: TrainingSession) -> Iterator[None]:
        """Airflow calls on_kill after a time-out, with the task still running: only this mark tells it from an eviction."""
        self._session = session
        try:
            yield
        except AirflowTaskTimeout:
            session.is_timed_out = True
            raise

    def on_kill(self) -> None:
        """Stop the job where a person or the execution timeout wants it; leave it when a worker is evicted."""
        if self._session is not None:
            self._session.kill()
