"""Values that JSON, UTF-8 or an object store can't carry are refused when the DAG is parsed, before anything is claimed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec, TrainingSpec
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.operators.ray_train import RayTrainOperator


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


KNOT: dict[str, Any] = {}
KNOT["self"] = KNOT


def make(**changes: Any) -> RayTrainOperator:
    known: dict[str, Any] = {"task_id": "t", "storage_path": "s3://bucket/p", "train_loop": "a.b:c"}
    return RayTrainOperator(**(known | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_loop_config": {"a": "\ud800"}}, "surrogate"),
        ({"train_loop_config": {"\udfff": 1}}, "surrogate"),
        ({"train_loop_config": {"a": float("nan")}}, "not JSON"),
        ({"train_loop_config": {"a": 10**5_000}}, "not JSON"),
        ({"train_loop_config": {"a": {1: 2}}}, "no text"),
        ({"train_loop_config": {"a": {(1, 2): 2}}}, "not JSON"),
        ({"train_loop_config": nested(60)}, "nests deeper"),
        ({"train_loop_config": nested(5_000)}, "nests deeper"),
        ({"train_loop_config": KNOT}, "nests deeper"),
        ({"runtime_env": {"config": nested(5_000)}}, "nests deeper"),
        ({"runtime_env": {"env_vars": {"A": "\ud800"}}}, "surrogate"),
        ({"runtime_env": {"pip": {1, 2}}}, "not JSON"),
        ({"restore": nested(5_000)}, "nests deeper"),
        ({"restore": {"mode": "best", "metric": "\ud800"}}, "surrogate"),
        ({"on_clear": nested(5_000)}, "on_clear"),
        ({"train_version": []}, "train_version"),
        ({"storage_path": "s3://bucket/" + "a" * 5_000}, "at most"),
        ({"storage_path": "/a\0b"}, "storage_path"),
        ({"storage_path": "/\ud800"}, "storage_path"),
        ({"experiment_name": "a" * 5_000}, "experiment_name"),
        ({"experiment_name": "\ud800"}, "experiment_name"),
        ({"conn_id": "a" * 5_000}, "conn_id"),
        ({"train_loop": None, "entrypoint": "python a\0b"}, "entrypoint"),
        ({"train_loop": "\ud800"}, "train_loop"),
        ({"scaling_config": {"num_workers": 10**400}}, "num_workers"),
        ({"scaling_config": {"resources_per_worker": {"CPU": 10**400}}}, "resources_per_worker"),
        ({"scaling_config": {"resources_per_worker": {"CPU": float("nan")}}}, "resources_per_worker"),
        ({"scaling_config": {"resources_per_worker": {"CPU": "inf"}}}, "resources_per_worker"),
        ({"scaling_config": {"placement_strategy": "\ud800"}}, "scaling_config holds half"),
        ({"scaling_config": nested(5_000)}, "scaling_config"),
        ({"failure_config": {"max_failures": 10**400}}, "max_failures"),
        ({"failure_config": {"max_failures": "9" * 5_000}}, "max_failures"),
        ({"checkpoint_config": {"num_to_keep": 2**70}}, "num_to_keep"),
        ({"entrypoint_num_cpus": 10**400}, "entrypoint_num_cpus"),
        ({"entrypoint_resources": {"\ud800": 1.0}}, "entrypoint_resources"),
        ({"timeout_s": 10**400}, "timeout_s"),
    ],
)
def test_a_value_that_would_break_later_is_refused_at_parse(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words) as caught:
        make(**changes)
    assert len(str(caught.value).encode()) < 5_000


def test_what_is_accepted_reaches_the_driver_as_it_is() -> None:
    """Numbers of more than 64 bits too: seeds have 128."""
    config = {"seed": 2**128, "tiny": 5e-324, "text": "ä😀\0", "deep": nested(40), "none": None}
    make(train_loop_config=config)
    spec = JobSpec(
        experiment_uri="s3://b/e",
        ref=AttemptRef(generation=1, attempt=1),
        k=1,
        submission_id="s",
        training=TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="a:b", train_loop_config=config),
    )
    assert JobSpec.model_validate_json(spec.body()).training.train_loop_config == config
