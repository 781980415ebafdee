"""The kinds of training a driver can fit: Ray's trainers in this process, or the user's script in a child."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.job import TrainingKind, TrainVersion
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.runtime.child import Child, ChildContext
from airflow_provider.runtime.restoring import Resolved
from airflow_provider.runtime.speech import say
from airflow_provider.runtime.standing import Standing
from airflow_provider.runtime.storage import ExperimentStore


class Training(Protocol):
    """One way to train. `fit` returns when the training has finished and raises what ended it."""

    is_fenced: bool

    @property
    def has_own_manifest(self) -> bool:
        """Whether the manifest lies in the attempt's folder; otherwise it is Ray's in the generation's folder."""

    def prepare(self) -> None:
        """Find the user's code and check it. Raises InvalidConfig before any worker starts."""

    def fit(self, start: Resolved, *, fit: int) -> None:
        """Train from the restore point, whose manifest is written."""

    def kill(self) -> None:
        """End at once what would outlive this process."""


class TrainerV2:
    """`train_loop` and `trainer` on Ray Train V2."""

    def __init__(self, spec: JobSpec, *, events_path: str) -> None:
        """Nothing is imported yet."""
        self.spec, self.events_path = spec, events_path
        self.is_fenced = True
        self._build: Callable[[Any], Any] = _unprepared

    def prepare(self) -> None:
        """Import Ray Train and the user's code."""
        from airflow_provider.runtime.train_v2 import prepare_trainer

        self.is_fenced = check_fencing()
        self._build = prepare_trainer(self.spec)

    def fit(self, start: Resolved, *, fit: int) -> None:
        """Fit a new trainer; Ray finds the restore point in the manifest."""
        from airflow_provider.runtime.train_v2 import build_run_config

        self._build(build_run_config(self.spec, events_path=self.events_path, is_fenced=self.is_fenced)).fit()

    @property
    def has_own_manifest(self) -> bool:
        """Part of the fencing."""
        return self.is_fenced

    def kill(self) -> None:
        """Ray's actors die with the driver."""


def _unprepared(run_config: Any) -> Any:
    raise InvalidConfig("The trainer was not prepared")


class TrainerV1:
    """`train_loop` and `trainer` on Ray Train V1. Its uploads are not fenced; its manifest is ours."""

    is_fenced = False
    has_own_manifest = True

    def __init__(self, spec: JobSpec, *, store: ExperimentStore, standing: Standing, events_path: str) -> None:
        """Nothing is imported yet."""
        self.spec, self.store, self.standing, self.events_path = spec, store, standing, events_path

    def prepare(self) -> None:
        """Import Ray Train and check the user's code."""
        from airflow_provider.runtime.import_target import load_target

        load_target(self.spec.training.target or "", parameter=self.spec.training.kind.value)

    def fit(self, start: Resolved, *, fit: int) -> None:
        """Restore or resume, as V1 allows."""
        from airflow_provider.runtime.train_v1 import run_v1

        run_v1(
            self.spec,
            store=self.store,
            point=start.point,
            start=start.manifest,
            events_path=self.events_path,
            is_superseded=lambda: self.standing.newer_claim() is not None,
            fit=fit,
        )

    def kill(self) -> None:
        """Ray's actors die with the driver."""


class Script:
    """`entrypoint`: the user's command in a child process; it asks `airflow_provider.runtime` for its run config."""

    def __init__(self, spec: JobSpec, *, context: ChildContext) -> None:
        """`context` travels to the script."""
        self.spec, self.context = spec, context
        self.is_fenced = True
        self._child = Child()

    def prepare(self) -> None:
        """Check that there is a command, and what this Ray offers."""
        if not (self.spec.training.command or "").strip():
            raise InvalidConfig("entrypoint is empty", change="name the command that runs the training script")
        self.is_fenced = check_fencing()
        fields = {**self.context.__dict__, "is_fenced": self.is_fenced}
        self.context = ChildContext(**fields)

    def fit(self, start: Resolved, *, fit: int) -> None:
        """Run the script once; its trainer finds the restore point in the manifest."""
        self._child.run(self.spec.training.command or "", self.context)

    @property
    def has_own_manifest(self) -> bool:
        """Part of the fencing."""
        return self.is_fenced

    def kill(self) -> None:
        """The script's whole process group."""
        self._child.kill()


def check_fencing() -> bool:
    """Whether Ray has the seams that fencing needs; says loudly what is missing."""
    from airflow_provider.runtime.seams import missing_seams

    missing = missing_seams()
    for what in missing:
        say(f"WARNING: this Ray lacks {what}")
    if missing:
        say("WARNING: NOT FENCED: the attempt runs in Ray's plain run directory; a stale driver could write into it")
    return not missing


def choose_training(spec: JobSpec, *, store: ExperimentStore, standing: Standing, context: ChildContext) -> Training:
    """The training that the spec asks for. Sets the switch that Ray Train reads when it is imported."""
    is_v1 = spec.training.train_version is TrainVersion.V1
    os.environ["RAY_TRAIN_V2_ENABLED"] = "0" if is_v1 else "1"
    if spec.training.kind is TrainingKind.ENTRYPOINT:
        return Script(spec, context=context)
    if is_v1:
        return TrainerV1(spec, store=store, standing=standing, events_path=context.events_path)
    return TrainerV2(spec, events_path=context.events_path)
