"""Warnings that come early enough to act on, and not so often that nobody reads them."""

from __future__ import annotations

from airflow_provider.core.spec import ScalingConfig
from airflow_provider.core.watch import FIRST_WARNING_S, capacity_warning, no_checkpoint_warning


def no_checkpoint(trained_s: float, *, told: int = 0, commits: int = 0, restored: str | None = None) -> str | None:
    return no_checkpoint_warning(trained_s=trained_s, num_commits=commits, restored=restored, num_told=told)


def test_a_training_that_commits_nothing_is_told_early_and_ever_more_seldom() -> None:
    assert no_checkpoint(FIRST_WARNING_S - 1) is None
    first = no_checkpoint(FIRST_WARNING_S)
    assert first is not None
    assert "600 s" in first
    assert "start from the beginning" in first
    assert no_checkpoint(FIRST_WARNING_S * 2 - 1, told=1) is None
    assert no_checkpoint(FIRST_WARNING_S * 2, told=1) is not None
    assert no_checkpoint(FIRST_WARNING_S * 4 - 1, told=2) is None


def test_one_commit_silences_it() -> None:
    assert no_checkpoint(1e6, commits=1) is None


def test_a_restored_training_would_go_back_to_its_checkpoint() -> None:
    assert "go back to attempts/000001/checkpoint_3" in str(no_checkpoint(700, restored="attempts/000001/checkpoint_3"))


def test_workers_that_the_cluster_can_never_hold_are_named() -> None:
    wanted = ScalingConfig(num_workers=8, use_gpu=True, resources_per_worker={"CPU": 4}).worker_resources
    warning = capacity_warning(wanted, {"CPU": 64.0, "memory": 1e9}, num_workers=8)
    assert warning is not None
    assert "8 GPU (it has 0)" in warning
    assert "CPU" not in warning


def test_a_cluster_that_is_only_busy_is_not_blamed() -> None:
    assert capacity_warning({"CPU": 1.0}, {"CPU": 2.0}, num_workers=2) is None
    assert capacity_warning({"GPU": 0.1}, {"GPU": 0.3}, num_workers=3) is None, "0.1 * 3 is not exactly 0.3"


def test_what_ray_takes_for_a_worker() -> None:
    assert ScalingConfig(num_workers=2).worker_resources == {"CPU": 1.0}
    assert ScalingConfig(num_workers=2, use_gpu=True).worker_resources == {"GPU": 1.0}
    assert ScalingConfig(num_workers=(2, 4), resources_per_worker={"x": 1}).worker_resources == {"x": 1.0}
    assert ScalingConfig(num_workers=(2, 4)).least_workers == 2
