"""The operator's parameters: anything that a DAG file, a template or an upstream task can put into them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.identity import TaskInstanceKey, experiment_uri, submission_id
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.job_spec import JobSpec, TrainingSpec
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.spec import (
    CheckpointConfig,
    Config,
    FailureConfig,
    ScalingConfig,
    StorageConfig,
    has_template,
)
from airflow_provider.operators.parameters import check_parameters, restore_policy
from airflow_provider.operators.ray_train import RayTrainOperator
from tests.support.damage import JUNK, SECRET, TEXTS, damaged_value, examples, only_typed_errors, without_secret

KNOT: list[Any] = []
KNOT.append(KNOT)
DEEP: Any = 1
for _ in range(3_000):
    DEEP = {"a": [DEEP]}
ODD = st.sampled_from([KNOT, DEEP, {1: 2}, {(1, 2): 3}, {1, 2}, b"x", object(), 10**5_000, 1j, float("inf")])
VALUES = JUNK | ODD | st.dictionaries(TEXTS, JUNK | ODD, max_size=3)
GOOD: dict[str, Any] = {
    "storage_path": "s3://bucket/p", "train_loop": "a.b:c", "train_loop_config": {"lr": 0.1, "deep": {"x": [1, "a"]}},
    "runtime_env": {"pip": ["x"], "env_vars": {"TOKEN": SECRET}}, "restore": {"mode": "latest"}, "on_corrupt": "rollback",
    "scaling_config": {"num_workers": 2, "use_gpu": True, "resources_per_worker": {"CPU": 1.0}},
    "failure_config": {"max_failures": 3, "max_refits": 1}, "checkpoint_config": {"num_to_keep": 2},
    "storage_config": {"endpoint_url": "http://h:1"}, "timeout_s": 60.0, "entrypoint_resources": {"a": 1.0},
    "experiment_name": "a/b", "progress_metric": "epoch", "python": "python3", "conn_id": "c", "poll_interval_s": 1.0,
    "warm_start": {"source": {"extra": {"checkpoint": "s3://bucket/p/c", "experiment": "s3://bucket/p"}}, "missing": "fresh"},
    "on_clear": "auto", "train_version": "v2", "entrypoint_num_cpus": 1.0, "stream_logs": True, "datasets": None,
}  # fmt: skip


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, Any]:
    given_: dict[str, Any] = draw(damaged_value([GOOD]))
    for _ in range(draw(st.integers(0, 2))):
        given_[draw(st.sampled_from(list(GOOD)))] = draw(VALUES)
    # A path or a name is repeated, since that helps; what may hold a secret is not.
    deep = ("warm_start",)
    return {
        name: without_secret(value) if name in deep else "plain" if value == SECRET else value
        for name, value in given_.items()
        if name in GOOD
    }


@given(parameters())
@examples(250)
def test_parameters_are_refused_as_a_configuration_or_reach_the_driver(changes: dict[str, Any]) -> None:
    with only_typed_errors() as caught:
        made = RayTrainOperator(**({"task_id": "t", "storage_path": "s3://bucket/p"} | changes))
        templates = json.dumps([getattr(made, n) for n in made.template_fields], default=lambda _: "{{")
        if not any(mark in templates for mark in ("{{", "{%", "{#")):
            travel(made)
    assert all(isinstance(error, InvalidConfig) for error in caught)


def travel(made: RayTrainOperator) -> None:
    """From the checked parameters to the driver's reading of them."""
    check_parameters(made)
    key = TaskInstanceKey("d", "r", "t")
    ref = AttemptRef(generation=1, attempt=1)
    uri = experiment_uri(made.storage_path, key, experiment_name=made.experiment_name)
    spec = JobSpec(
        experiment_uri=uri,
        ref=ref,
        k=1,
        submission_id=submission_id(uri, key, ref),
        storage=StorageConfig.rendered(made.storage_config, parameter="storage_config"),
        restore=restore_policy(made),
        training=TrainingSpec(
            kind=TrainingKind.TRAIN_LOOP,
            target=made.train_loop,
            train_loop_config=made.train_loop_config,
            scaling=ScalingConfig.rendered(made.scaling_config, parameter="scaling_config"),
            failure=FailureConfig.rendered(made.failure_config, parameter="failure_config"),
            checkpoint=CheckpointConfig.rendered(made.checkpoint_config, parameter="checkpoint_config"),
            progress_metric=made.progress_metric,
        ),
    )
    again = JobSpec.model_validate_json(spec.body(), context={"rendered": True})
    assert again.body() == spec.body()
    assert json.loads(json.dumps(again.training.train_loop_config)) == json.loads(json.dumps(made.train_loop_config))


@given(
    st.sampled_from([ScalingConfig, FailureConfig, CheckpointConfig, StorageConfig]),
    VALUES | damaged_value([GOOD["scaling_config"], GOOD["failure_config"], GOOD["checkpoint_config"]]),
)
@examples(200)
def test_a_config_is_checked_before_and_after_rendering(kind: type[Config], value: Any) -> None:
    with only_typed_errors() as caught:
        parsed = kind.parsed(value, parameter="p")
        assert kind.rendered(parsed, parameter="p") or has_template(str(parsed))
    assert all(isinstance(error, InvalidConfig) for error in caught)
