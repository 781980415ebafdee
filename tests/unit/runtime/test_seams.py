"""The self-check of Ray's internals: silent on a supported Ray, names what a changed one lacks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import ray.train
from ray.train.v2._internal.execution import storage
from ray.train.v2._internal.execution.checkpoint import checkpoint_manager

from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec, TrainingSpec
from airflow_provider.core.manifest import Manifest
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.restore import RestorePoint
from airflow_provider.runtime import seams, train_v2
from airflow_provider.runtime.restoring import Resolved
from airflow_provider.runtime.seams import missing_seams
from airflow_provider.runtime.trainings import TrainerV2


def test_supported_ray_has_all_seams() -> None:
    assert missing_seams() == []


def test_storage_context_that_is_no_cached_property_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.train.RunConfig, "storage_context", property(lambda _self: object()))
    assert any("storage context of ours" in what for what in missing_seams())


def test_upload_without_create_dir_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def persist(self, checkpoint, name):
        return ray.train.Checkpoint(self.build_checkpoint_path_from_name(name), self.storage_filesystem)

    monkeypatch.setattr(storage.StorageContext, "persist_current_checkpoint", persist)
    assert any("create_dir" in what for what in missing_seams())


def test_deletion_before_the_manifest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Order is the protocol: manifest, claim, delete."""
    monkeypatch.setattr(checkpoint_manager.CheckpointManager, "_write_state_to_storage", lambda _self: None)
    assert any("before deletion" in what for what in missing_seams())


def test_missing_callback_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.v2._internal.execution.callback import ControllerCallback

    monkeypatch.delattr(ControllerCallback, "before_controller_execute_failure_decision")
    assert any("before_controller_execute_failure_decision" in what for what in missing_seams())


def test_a_ray_without_the_seams_is_said_once_for_all_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And each fit is given a run config without them."""
    given: list[bool] = []
    monkeypatch.setattr(seams, "missing_seams", lambda: ["the thing"])
    monkeypatch.setattr(train_v2, "prepare_trainer", lambda _: lambda _config: SimpleNamespace(fit=lambda: None))
    monkeypatch.setattr(train_v2, "build_run_config", lambda *_, is_fenced, **__: given.append(is_fenced))
    spec = JobSpec(
        experiment_uri="s3://b/e",
        ref=AttemptRef(generation=1, attempt=1),
        k=1,
        submission_id="s",
        training=TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f"),
    )
    training = TrainerV2(spec, events_path="unused")
    training.prepare()
    for fit in (1, 2):
        training.fit(Resolved(RestorePoint(None, "from the start"), Manifest()), fit=fit)
    said = capsys.readouterr().out
    assert (said.count("NOT FENCED"), said.count("this Ray lacks the thing")) == (1, 1)
    assert given == [False, False]
    assert (training.is_fenced, training.has_own_manifest) == (False, False)
