"""The self-check of Ray's internals: silent on a supported Ray, names what a changed one lacks."""

from __future__ import annotations

import pytest
import ray.train
from ray.train.v2._internal.execution import storage
from ray.train.v2._internal.execution.checkpoint import checkpoint_manager

from airflow_provider.runtime.seams import missing_seams


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
