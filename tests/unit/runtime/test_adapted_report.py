"""What `ray.train.report` of a worker does before Ray's own: plain metrics, and a guarded upload function."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from airflow_provider.runtime.reporting import adapted_report


class Reports:
    """Ray's train context, as far as `report` goes."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def report(
        self,
        metrics: dict[str, Any],
        checkpoint: Any = None,
        checkpoint_dir_name: str | None = None,
        checkpoint_upload_mode: str = "SYNC",
        checkpoint_upload_fn: Any = None,
    ) -> str:
        self.seen = dict(locals())
        return "reported"


def plain(*_: Any) -> str:
    return "plain"


STORAGE = SimpleNamespace(guarded=lambda upload: ("guarded", upload))


def test_metrics_become_plain_and_all_else_is_passed_on() -> None:
    ray = Reports()
    report = adapted_report(ray.report, storage=STORAGE)
    assert report({"loss": np.float32(0.5)}, "c", "name", checkpoint_upload_mode="ASYNC") == "reported"
    assert ray.seen["metrics"] == {"loss": 0.5}
    assert type(ray.seen["metrics"]["loss"]) is float
    assert (ray.seen["checkpoint"], ray.seen["checkpoint_dir_name"]) == ("c", "name")
    assert (ray.seen["checkpoint_upload_mode"], ray.seen["checkpoint_upload_fn"]) == ("ASYNC", None)


def test_an_upload_function_is_guarded_by_position_and_by_name() -> None:
    """Ray itself passes it by position."""
    ray = Reports()
    report = adapted_report(ray.report, storage=STORAGE)
    report({}, None, None, "SYNC", plain)
    assert ray.seen["checkpoint_upload_fn"] == ("guarded", plain)
    report({}, checkpoint_upload_fn=plain)
    assert ray.seen["checkpoint_upload_fn"] == ("guarded", plain)


def test_without_a_fence_it_is_left_alone() -> None:
    for storage in (None, SimpleNamespace()):
        ray = Reports()
        adapted_report(ray.report, storage=storage)({}, checkpoint_upload_fn=plain)
        assert ray.seen["checkpoint_upload_fn"] is plain


def test_a_ray_without_upload_functions_is_no_obstacle() -> None:
    """Older ones have two parameters only."""
    seen: list[Any] = []

    def report(metrics: dict[str, Any], checkpoint: Any = None) -> None:
        seen.append((metrics, checkpoint))

    adapted_report(report, storage=STORAGE)({"a": np.int64(1)}, "c")
    assert seen == [({"a": 1}, "c")]
