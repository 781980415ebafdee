"""Checks at start that Ray still has the internals which fencing and recording hang on. Tens of ms, no cluster.

They are not public, so a new Ray may move them. What is missing is named, and the attempt then runs in Ray's plain run
directory, without fencing, and says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.record_parts import AttemptRef

_STATES = ("INITIALIZING", "SCHEDULING", "RUNNING", "RESTARTING", "ERRORED", "FINISHED")
_SNAPSHOT_KEYS = {"checkpoint_results", "latest_checkpoint_result"}


def missing_seams() -> list[str]:
    """What Ray lacks, in words; empty when everything is in place."""
    checks: tuple[tuple[str, Callable[[str], None]], ...] = (
        ("a storage context of ours on the run config", _check_run_config),
        ("uploads through create_dir into nested folders", _check_upload),
        ("a manifest per attempt, written before deletion through delete_dir", _check_manifest),
        ("the controller's callbacks and state names", _check_callbacks),
    )
    missing: list[str] = []
    # Ray would tell the user about checkpoints of a run that nobody started.
    logger = logging.getLogger("ray.train")
    level = logger.level
    logger.setLevel(logging.ERROR)
    for what, check in checks:
        with tempfile.TemporaryDirectory(prefix="ray-train-seams-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray calls deprecated parts of pydantic; `-W error` is not its absence
            try:
                check(folder)
            except Exception as error:  # process edge: whatever is different in this Ray is the answer, not a crash
                missing.append(f"{what} ({type(error).__name__}: {str(error)[:200]})")
    logger.setLevel(level)
    return missing


def _require(condition: object, what: str) -> None:
    if not condition:
        raise LookupError(what)


def _context(folder: str) -> Any:
    from airflow_provider.runtime.fencing import AttemptStorageContext, Fence, FencedLocalFileSystem

    return AttemptStorageContext(FencedLocalFileSystem(Fence(folder, AttemptRef(generation=1, attempt=2))))


def _check_run_config(folder: str) -> None:
    from ray import cloudpickle
    from ray.train import RunConfig

    context = _context(folder)
    config = RunConfig(name="g000001", storage_path=folder, storage_filesystem=context.storage_filesystem)
    config.__dict__["storage_context"] = context
    _require(config.storage_context is context, "RunConfig.storage_context is no cached property any more")
    copied = cloudpickle.loads(cloudpickle.dumps(config)).storage_context
    _require(copied.manifest_path == context.manifest_path, "the storage context is lost in pickling")
    _require(hasattr(copied.storage_filesystem, "fence"), "the filesystem's fence is lost in pickling")


def _check_upload(folder: str) -> None:
    from ray.train import Checkpoint

    context = _context(folder)
    asked: list[str] = []
    context.storage_filesystem.fence = _SpyFence(asked)
    with tempfile.TemporaryDirectory() as local:
        with open(os.path.join(local, "weights"), "w") as file:
            file.write("1")
        stored = context.persist_current_checkpoint(Checkpoint(local), "checkpoint_1")
    _require(asked, "an upload doesn't call create_dir")
    name = context.extract_checkpoint_dir_name_from_path(stored.path)
    _require(name == "attempts/000002/checkpoint_1", f"the upload went to {name}")
    _require(
        context.build_checkpoint_path_from_name(name) == stored.path,
        "names of checkpoints don't survive the round trip",
    )


def _check_manifest(folder: str) -> None:
    import ray
    from ray.train import Checkpoint, CheckpointConfig
    from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
    from ray.train.v2._internal.execution.training_report import _TrainingReport

    context = _context(folder)
    old = ManifestEntry("attempts/000001/checkpoint_1", {"epoch": 1})
    for name in (old.name, "attempts/000002/checkpoint_2"):
        os.makedirs(context.build_checkpoint_path_from_name(name))
    os.makedirs(os.path.dirname(context.manifest_path), exist_ok=True)
    with open(context.manifest_path, "wb") as file:
        file.write(Manifest((old,), old, (0,)).body(ray_version=ray.__version__))
    asked: list[str] = []
    order: list[str] = []

    def note_delete(path: str) -> None:
        with open(context.manifest_path) as file:
            order.append(file.read())
        asked.append(path)

    async def register() -> CheckpointManager:
        manager = CheckpointManager(CheckpointConfig(num_to_keep=1), context)
        _require(
            manager.latest_checkpoint_result.metrics == {"epoch": 1}, "our manifest loads without its latest entry"
        )
        context.storage_filesystem.fence = _SpyFence([], note_delete)
        path = context.build_checkpoint_path_from_name("attempts/000002/checkpoint_2")
        report = _TrainingReport(Checkpoint(path, context.storage_filesystem), {"epoch": 2}, None)
        manager.after_report(training_report=report, metrics=[{"epoch": 2}])
        return manager

    manager = asyncio.run(register())
    _require(asked, "retention doesn't call delete_dir")
    _require(
        "checkpoint_2" in order[0] and "checkpoint_1" not in order[0], "the manifest is not written before deletion"
    )
    _require(set(json.loads(manager._save_state())) >= _SNAPSHOT_KEYS, "the manifest has other keys")


class _SpyFence:
    """Stands in for the fence and notes what it was asked."""

    def __init__(self, asked: list[str], on_delete: Callable[[str], None] | None = None) -> None:
        self._asked, self._on_delete = asked, on_delete

    def check(self, filesystem: object) -> None:
        self._asked.append(type(filesystem).__name__)

    def check_deletable(self, path: str) -> None:
        if self._on_delete is not None:
            self._on_delete(path)


def _check_callbacks(folder: str) -> None:
    from ray.train.v2._internal.execution.callback import (
        ControllerCallback,
        ReportCallback,
        WorkerCallback,
        WorkerGroupCallback,
    )
    from ray.train.v2._internal.execution.controller.state import TrainControllerState, TrainControllerStateType

    del folder
    hooks = {
        ControllerCallback: (
            "after_controller_start",
            "after_controller_state_update",
            "before_controller_execute_failure_decision",
        ),
        ReportCallback: ("after_report",),
        WorkerGroupCallback: ("after_worker_group_start", "after_worker_group_poll_status"),
        WorkerCallback: ("after_init_train_context",),
    }
    for cls, names in hooks.items():
        for name in names:
            _require(hasattr(cls, name), f"{cls.__name__}.{name}")
    known = {state.name for state in TrainControllerStateType}
    _require(known.issuperset(_STATES), f"controller states {sorted(set(_STATES) - known)}")
    state = TrainControllerState(TrainControllerStateType.RUNNING)
    _require(state._state_type is TrainControllerStateType.RUNNING, "TrainControllerState._state_type")
