"""Ray Train V1 (`RAY_TRAIN_V2_ENABLED=0`): a retry is `Trainer.restore` on the experiment's run directory.

V1 keeps one run directory per name and restores it as a whole: its newest known checkpoint, its old `train_loop_config`.
Where that is not what the restore point or the request says, the attempt resumes from the checkpoint in a run directory
of its own. What V1 can't promise stands in docs/train-v1.md; above all, its uploads are not fenced.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray.train

from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, RayJobFailed
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.layout_v1 import (
    ModeV1,
    PlanV1,
    own_metrics,
    parse_run,
    plan_run,
    run_dir,
    run_of,
    starter_of,
    state_checkpoint,
)
from airflow_provider.core.manifest import Manifest
from airflow_provider.core.records import ClaimRecord, Phase
from airflow_provider.core.restore import RestorePoint
from airflow_provider.runtime.commits_v1 import CommitCallback, CommitLog
from airflow_provider.runtime.import_target import check_train_loop, load_factory, load_target
from airflow_provider.runtime.speech import say
from airflow_provider.runtime.storage import ExperimentStore
from airflow_provider.runtime.warm_start import parent_checkpoint


@dataclass(frozen=True)
class ResultV1:
    """What a fit on V1 ended with."""

    plan: PlanV1
    metrics: dict[str, Any]
    manifest: Manifest = field(default_factory=Manifest)
    """The committed checkpoints at the end."""


def is_v1() -> bool:
    """Whether this process's Ray Train is V1. The environment must say so before `ray.train` is imported."""
    constants = _import_or_none("ray.train.v2._internal.constants")
    return constants is None or not constants.is_v2_enabled()


def run_v1(  # noqa: PLR0913  # the driver's facts about one fit, each by name
    job: JobSpec,
    *,
    store: ExperimentStore,
    point: RestorePoint,
    start: Manifest,
    events_path: str,
    is_superseded: Callable[[], bool] = lambda: False,
    fit: int = 1,
) -> ResultV1:
    """Train one fit of an attempt on V1, from `point`. Raises what the training raised.

    `start` is the manifest that the driver wrote for this fit; each commit is added to it.
    """
    if not is_v1():
        raise InvalidConfig(
            "Ray Train V2 is active in a job that asks for V1",
            known="ray.train was imported without RAY_TRAIN_V2_ENABLED=0",
            change="set it in the job's environment, which the operator does for train_version='v1'",
        )
    plan = plan_of(job, store=store, point=point, fit=fit)
    say(f"Ray Train V1: {plan.reason}")
    log = CommitLog(
        store,
        job.ref,
        events_path=events_path,
        start=start,
        failure_config=job.training.failure,
        is_superseded=is_superseded,
    )
    CommitCallback.log = log
    log.enter(Phase.WAITING)
    try:
        result = build_trainer(job, store=store, plan=plan).fit()
    except Exception as error:
        if log.ended is None:
            raise
        # Tune may wrap what its callbacks raise; the driver reads our verdict where it reads V2's.
        raise RayJobFailed("The fit was ended", known=log.ended.reason, failure=log.ended) from error
    finally:
        CommitCallback.log = None
        log.finish()
    return ResultV1(plan, own_metrics(result.metrics or {}), log.manifest)


def plan_of(job: JobSpec, *, store: ExperimentStore, point: RestorePoint, fit: int = 1) -> PlanV1:
    """Restore, resume or start, from what lies in the run directory of the restore point."""
    g, n = job.ref.rank
    name = point.candidate.name if point.candidate else None
    own = run_of(name) if name else None
    run = state = None
    if own is not None:
        folder = f"{layout.generation(g)}/{own}"
        run = parse_run(store.files(folder))
        body = store.read(f"{folder}/{run.newest_state}") if run.newest_state else None
        state = state_checkpoint(body) if body else None
    return plan_run(
        checkpoint=name,
        run=run,
        state=state,
        is_same_spec=_is_same_spec(store, g, n, starter_of(name) if name else None),
        new_run_dir=run_dir(n, fit),
    )


def _is_same_spec(store: ExperimentStore, g: int, n: int, starter: int | None) -> bool:
    """Whether this attempt asks for what the run directory was started with; unknown is not the same."""
    if starter is None:
        return False
    mine = store.read_record(ClaimRecord, layout.claim(g, n))
    theirs = store.read_record(ClaimRecord, layout.claim(g, starter))
    return mine is not None and theirs is not None and mine.spec_digest == theirs.spec_digest


# --- the trainer -----------------------------------------------------------------------------------------------------


def run_config_v1(job: JobSpec, *, store: ExperimentStore, run: str) -> Any:
    """V1's run config for a run directory: where, how often to recover, what to keep, and our callback."""
    parent, _, name = f"{layout.generation(job.ref.generation)}/{run}".rpartition("/")
    training = job.training
    return ray.train.RunConfig(
        name=name,
        storage_path=store.path(parent),
        storage_filesystem=store.filesystem,
        failure_config=ray.train.FailureConfig(max_failures=int(training.failure.max_failures)),
        checkpoint_config=ray.train.CheckpointConfig(
            num_to_keep=None if training.checkpoint.num_to_keep is None else int(training.checkpoint.num_to_keep),
            checkpoint_score_attribute=training.checkpoint.checkpoint_score_attribute,
            checkpoint_score_order=str(training.checkpoint.checkpoint_score_order),
        ),
        callbacks=[CommitCallback()],
    )


def build_trainer(job: JobSpec, *, store: ExperimentStore, plan: PlanV1) -> Any:
    """The trainer to fit: restored where the plan says so and Ray agrees, built new otherwise."""
    config = run_config_v1(job, store=store, run=plan.run_dir)
    trainer = _new_trainer(job, config)
    path = f"{config.storage_path}/{config.name}"
    if plan.mode is ModeV1.RESTORE:
        cls = type(trainer)
        if cls.can_restore(path, storage_filesystem=store.filesystem):
            return cls.restore(path, storage_filesystem=store.filesystem, run_config=config, **_given_again(trainer))
        raise InvalidConfig(f"Ray can't restore {path}", known=plan.reason, change="restore its trainer.pkl")
    checkpoint = None
    if plan.mode is ModeV1.RESUME and plan.checkpoint is not None:
        folder = store.path(f"{layout.generation(job.ref.generation)}/{plan.checkpoint}")
        checkpoint = ray.train.Checkpoint(path=folder, filesystem=store.filesystem)
    elif plan.mode is ModeV1.START:
        checkpoint = parent_checkpoint(job, filesystem=store.filesystem)
    if checkpoint is not None:
        # Ray builds the trainer again on the cluster from these parameters; a factory can't be asked to pass one more.
        trainer.starting_checkpoint = checkpoint
        trainer._param_dict["resume_from_checkpoint"] = checkpoint
    return trainer


def _new_trainer(job: JobSpec, config: Any) -> Any:
    training = job.training
    if training.kind is TrainingKind.TRAINER:
        factory, more = load_factory(training.target or "", config=training.train_loop_config)
        trainer = factory(config, *more)
        if getattr(getattr(trainer, "run_config", None), "name", None) != config.name:
            raise InvalidConfig(
                f"The trainer of {training.target} ignores the run config it was given",
                change="pass it on as run_config",
            )
        return trainer
    if training.kind is not TrainingKind.TRAIN_LOOP:
        raise InvalidConfig(
            "An entrypoint script fits its own trainer", change="ask airflow_provider.runtime for its run config"
        )
    train_loop = load_target(training.target or "", parameter="train_loop")
    check_train_loop(train_loop, training.train_loop_config)
    torch_trainer = importlib.import_module("ray.train.torch").TorchTrainer
    return torch_trainer(
        train_loop,
        train_loop_config=training.train_loop_config,
        scaling_config=_scaling_v1(job),
        run_config=config,
        # Built again on each attempt: V1 asks for them on restore, and old references died with their cluster.
        datasets=load_target(training.datasets, parameter="datasets")() if training.datasets else None,
    )


def _given_again(trainer: Any) -> dict[str, Any]:
    """What `restore` must be given again, taken from a trainer that was built as for a new run."""
    again = {
        "datasets": getattr(trainer, "datasets", None) or None,
        "scaling_config": getattr(trainer, "scaling_config", None),
        "train_loop_per_worker": getattr(trainer, "_train_loop_per_worker", None),
        "train_loop_config": getattr(trainer, "_train_loop_config", None),
    }
    return {key: value for key, value in again.items() if value is not None}


def _scaling_v1(job: JobSpec) -> Any:
    scaling = job.training.scaling
    if isinstance(scaling.num_workers, tuple):
        raise InvalidConfig(
            f"Elastic num_workers ({scaling.wanted_workers}) needs Ray Train V2",
            change="give one number, or train_version='v2'",
        )
    options: dict[str, Any] = {"num_workers": int(scaling.num_workers), "use_gpu": bool(scaling.use_gpu)}
    if scaling.resources_per_worker:
        options["resources_per_worker"] = dict(scaling.resources_per_worker)
    if scaling.accelerator_type:
        options["accelerator_type"] = scaling.accelerator_type
    return ray.train.ScalingConfig(placement_strategy=str(scaling.placement_strategy), **options)


def _import_or_none(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
