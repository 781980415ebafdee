"""Ray Train V2: our run config, adapted to the Ray on the cluster, and the ways to get a trainer from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import ray.train

from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.core.spec import CheckpointConfig, FailureConfig, ScalingConfig
from airflow_provider.runtime.import_target import check_call, check_train_loop, load_factory, load_target
from airflow_provider.runtime.speech import say
from airflow_provider.runtime.storage import open_store, split_uri
from airflow_provider.runtime.warm_start import check_seams, no_way_to_give_parent, parent_checkpoint

Datasets = Callable[[], Mapping[str, Any]]


def build_run_config(spec: JobSpec, *, events_path: str, is_fenced: bool) -> ray.train.RunConfig:
    """The run config of this attempt: Ray's run directory is the generation's folder.

    What stands on Ray's internals is imported only where the self-check found it: a Ray that moved them trains unfenced.
    """
    name = layout.generation(spec.ref.generation)
    _, root = split_uri(spec.experiment_uri)
    storage = None
    if is_fenced:
        from airflow_provider.runtime.fencing import AttemptStorageContext, fenced_filesystem

        filesystem = fenced_filesystem(spec.experiment_uri, spec.storage, ref=spec.ref)
        storage = AttemptStorageContext(filesystem)
    else:
        filesystem = open_store(spec.experiment_uri, spec.storage).filesystem
    parent = parent_checkpoint(spec, filesystem=filesystem)
    if parent is not None:
        check_seams()
    try:
        from airflow_provider.runtime.reporting import ControllerEvents

        callbacks = [
            ControllerEvents(
                events_path,
                run_folder=f"{root}/{name}",
                failure_config=spec.training.failure,
                parent=parent,
                storage=storage,
                progress_metric=spec.training.progress_metric,
            )
        ]
    except ImportError as error:
        if parent is not None:
            raise no_way_to_give_parent(str(error)) from error
        say(f"this Ray moved its callbacks ({error}): records are completed from the manifest at the end only")
        callbacks = []
    config = ray.train.RunConfig(
        name=name,
        storage_path=root,
        storage_filesystem=filesystem,
        failure_config=failure_config(spec.training.failure),
        checkpoint_config=checkpoint_config(spec.training.checkpoint),
        callbacks=callbacks,
    )
    if storage is not None:
        # A cached property: what lies in __dict__ is what Ray's controller and workers get.
        config.__dict__["storage_context"] = storage
    return config


def failure_config(config: FailureConfig) -> ray.train.FailureConfig:
    """Ray's failure config with the budgets that this Ray knows."""
    wanted = {
        "max_failures": int(config.max_failures),
        "controller_failure_limit": int(config.controller_failure_limit),
        "max_preemption_failures": int(config.max_preemption_failures),
    }
    known = {field.name for field in fields(ray.train.FailureConfig)}
    return ray.train.FailureConfig(**{name: value for name, value in wanted.items() if name in known})


def checkpoint_config(config: CheckpointConfig) -> ray.train.CheckpointConfig:
    """Ray's checkpoint config."""
    return ray.train.CheckpointConfig(
        num_to_keep=None if config.num_to_keep is None else int(config.num_to_keep),
        checkpoint_score_attribute=config.checkpoint_score_attribute,
        checkpoint_score_order=config.checkpoint_score_order,
    )


def scaling_config(config: ScalingConfig) -> ray.train.ScalingConfig:
    """Ray's scaling config. Raises InvalidConfig for an elastic one where this Ray would only fail with it later."""
    is_elastic = isinstance(config.num_workers, tuple)
    if is_elastic and not hasattr(ray.train.ScalingConfig, "elasticity_enabled"):
        raise InvalidConfig(
            f"num_workers={config.num_workers} is elastic",
            known=f"Ray {ray.__version__} on the cluster has fixed sizes only",
            change="use Ray 2.60 or newer, or one number",
        )
    workers: Any = (
        tuple(int(n) for n in config.num_workers) if isinstance(config.num_workers, tuple) else int(config.num_workers)
    )
    options: dict[str, Any] = {"placement_strategy": config.placement_strategy}
    if config.accelerator_type is not None:
        options["accelerator_type"] = config.accelerator_type
    if is_elastic:
        options["elastic_resize_monitor_interval_s"] = float(config.elastic_resize_monitor_interval_s)
    resources = config.resources_per_worker
    return ray.train.ScalingConfig(
        num_workers=workers,
        use_gpu=bool(config.use_gpu),
        resources_per_worker=None if resources is None else dict(resources),
        **options,
    )


def prepare_trainer(spec: JobSpec) -> Callable[[ray.train.RunConfig], Any]:
    """What builds the trainer for a run config. Raises InvalidConfig for wrong code paths, before any worker starts."""
    training = spec.training
    if training.kind is TrainingKind.TRAINER:
        return _prepare_factory(training.target or "", config=training.train_loop_config)
    loop = load_target(training.target or "", parameter="train_loop")
    check_train_loop(loop, training.train_loop_config)
    datasets: Datasets | None = None
    if training.datasets:
        datasets = load_target(training.datasets, parameter="datasets")
        check_call(datasets, parameter="datasets", takes=0, given="no argument")
    scaling = scaling_config(training.scaling)
    torch_trainer = _torch_trainer()

    def build(run_config: ray.train.RunConfig) -> Any:
        config = training.train_loop_config
        return torch_trainer(
            loop,
            train_loop_config=None if config is None else dict(config),
            scaling_config=scaling,
            run_config=run_config,
            datasets=dict(datasets()) if datasets is not None else None,
        )

    return build


def _torch_trainer() -> Any:
    try:
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise InvalidConfig(
            "torch can't be imported on the cluster", known=str(error), change="install ray[train] and torch there"
        ) from error
    return TorchTrainer


def _prepare_factory(target: str, *, config: Mapping[str, Any] | None) -> Callable[[ray.train.RunConfig], Any]:
    factory, more = load_factory(target, config=config)

    def build(run_config: ray.train.RunConfig) -> Any:
        trainer = factory(run_config, *more)
        if not callable(getattr(trainer, "fit", None)):
            raise InvalidConfig(
                f"The trainer factory {target} returned a {type(trainer).__name__}",
                change="return a Ray Train trainer, for example TorchTrainer(..., run_config=run_config)",
            )
        if getattr(trainer, "run_config", None) is not run_config:
            raise InvalidConfig(
                f"The trainer of {target} doesn't use the run config it was given",
                known="without it checkpoints would lie elsewhere, unfenced and unrecorded",
                change="pass the argument on unchanged: TorchTrainer(..., run_config=run_config)",
            )
        return trainer

    return build
