"""What is wrong with a DAG is said when it is parsed; what only rendering shows, before anything is sent."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy
from structlog.testing import capture_logs

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.job import TrainingKind
from airflow_provider.core.spec import CheckpointConfig, FailureConfig, ScalingConfig
from airflow_provider.operators.parameters import build_request
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.policies.retry import RayTrainRetryPolicy

KEY = TaskInstanceKey("d", "r", "train")


def operator(**changes: Any) -> RayTrainOperator:
    known: dict[str, Any] = {"task_id": "train", "storage_path": "/shared/models", "train_loop": "pkg.mod:loop"}
    given = {**known, **changes}
    return RayTrainOperator(**{name: value for name, value in given.items() if value is not ...})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"train_loop": None}, "train_loop, trainer and entrypoint"),
        ({"trainer": "pkg.mod:make"}, "given: train_loop, trainer"),
        ({"train_loop": "pkg/mod.py"}, "train_loop"),
        ({"train_loop": "pkg.mod"}, "train_loop"),
        ({"train_loop": None, "trainer": "pkg:mod:x"}, "trainer"),
        ({"datasets": "not a path"}, "datasets"),
        ({"storage_path": "gs://bucket/x"}, "storage_path"),
        ({"storage_path": "s3://Bad_Bucket"}, "storage_path"),
        ({"storage_path": "relative/path"}, "storage_path"),
        ({"on_clear": "never"}, "on_clear"),
        ({"train_version": "v3"}, "train_version"),
        ({"train_loop_config": {"lr": float("nan")}}, "train_loop_config"),
        ({"train_loop_config": {"model": object()}}, "train_loop_config"),
        ({"runtime_env": {"working_dir": "."}}, "working_dir"),
        ({"runtime_env": {"py_modules": []}}, "py_modules"),
        ({"runtime_env": {"env_vars": {"N": 1}}}, "env_vars"),
        ({"runtime_env": {"env_vars": "N=1"}}, "env_vars"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": timedelta(0)}, "timeout_s"),
        ({"stall_timeout_s": -1}, "stall_timeout_s"),
        ({"resource_timeout_s": float("nan")}, "resource_timeout_s"),
        ({"poll_interval_s": 0}, "poll_interval_s"),
        ({"restore": "newest"}, "restore"),
        ({"restore": "best"}, "checkpoint_score_attribute"),
        ({"restore": "explicit"}, "checkpoint"),
        ({"restore": {"mode": "latest", "metrik": "loss"}}, "metrik"),
        ({"on_corrupt": "ignore"}, "on_corrupt"),
        ({"scaling_config": {"num_workers": 0}}, "scaling_config"),
        ({"scaling_config": {"num_workers": (4, 2)}}, "scaling_config"),
        ({"scaling_config": {"workers": 2}}, "scaling_config.workers"),
        ({"scaling_config": 4}, "scaling_config is a int"),
        ({"failure_config": {"max_failures": -2}}, "failure_config.max_failures"),
        ({"checkpoint_config": {"num_to_keep": 0}}, "checkpoint_config.num_to_keep"),
        ({"checkpoint_config": {"checkpoint_score_order": "up"}}, "checkpoint_score_order"),
        ({"storage_config": {"endpoint_url": "http://key:secret@host"}}, "endpoint_url"),
    ],
)
def test_a_wrong_parameter_is_named_when_the_dag_is_parsed(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        operator(**changes)
    assert named in str(caught.value)
    assert "To do: " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout_s", "abc"),
        ("timeout_s", True),
        ("timeout_s", float("inf")),
        ("timeout_s", 1e12),
        ("timeout_s", timedelta.max),
        ("stall_timeout_s", "60"),
        ("resource_timeout_s", float("inf")),
        ("poll_interval_s", "10"),
        ("poll_interval_s", None),
        ("poll_interval_s", float("inf")),
        ("train_loop_config", [1]),
        ("train_loop_config", {1: 2}),
        ("train_loop_config", {"deep": [{1: 2}]}),
        ("restore", 5),
        ("restore", None),
        ("restore", {1: 2}),
        ("restore", {"mode": 3}),
        ("restore", ""),
        ("runtime_env", "x"),
        ("runtime_env", {1: {}}),
        ("runtime_env", {"env_vars": {1: "x"}}),
        ("progress_metric", 3),
        ("working_dir", 3),
        ("working_dir", ""),
        ("conn_id", ""),
        ("conn_id", None),
        ("aws_conn_id", ""),
        ("storage_path", 3),
        ("train_loop", 3),
        ("datasets", 3),
        ("entrypoint_num_cpus", "x"),
        ("entrypoint_num_cpus", -1),
        ("entrypoint_num_gpus", float("nan")),
        ("entrypoint_resources", [1]),
        ("entrypoint_resources", {"tpu": "1"}),
        ("entrypoint_resources", {"tpu": -1}),
        ("python", ""),
        ("python", None),
        ("experiment_name", "../x"),
        ("experiment_name", ""),
        ("experiment_name", 3),
        ("on_corrupt", 3),
        ("on_clear", ["auto"]),
        ("train_version", ["v2"]),
        ("require_new_checkpoint", "no"),
        ("stream_logs", 1),
        ("stop_on_kill", None),
        ("deferrable", "yes"),
        ("failure_config", "x"),
        ("checkpoint_config", [1]),
        ("storage_config", 3),
    ],
)
def test_a_wrong_type_or_bound_is_our_error_and_names_the_parameter(name: str, value: Any) -> None:
    """A TypeError from deep inside, at run time, tells nobody which line of the DAG to change."""
    with pytest.raises(InvalidConfig) as caught:
        operator(**{name: value})
    assert re.match(rf"{name}\b", str(caught.value))
    assert "constrained" not in str(caught.value)
    assert "pydantic" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "To do: " in str(caught.value)


def test_a_wrong_name_is_found_where_only_the_path_is_templated() -> None:
    with pytest.raises(InvalidConfig, match="experiment_name"):
        operator(storage_path="s3://{{ x }}/y", experiment_name="../x")


@pytest.mark.parametrize(
    "changes",
    [
        {"timeout_s": 1},
        {"timeout_s": 0.5, "poll_interval_s": 1, "resource_timeout_s": None},
        {"timeout_s": timedelta(days=3650)},
        {"entrypoint_num_cpus": 0, "entrypoint_num_gpus": 0.5, "entrypoint_resources": {"tpu": 1}},
        {"train_loop_config": MappingProxyType({"lr": [1, (2, {"a": None})]})},
        {"runtime_env": {"env_vars": {"A": "1"}}, "restore": {"mode": "latest"}, "aws_conn_id": None},
        {"experiment_name": "team/a", "progress_metric": "epoch", "working_dir": "."},
    ],
)
def test_right_types_pass(changes: dict[str, Any]) -> None:
    assert build_request(operator(**changes), KEY).uri


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ({"trainer": "pkg.mod:make"}, "scaling_config", {"num_workers": 2}),
        ({"trainer": "pkg.mod:make"}, "scaling_config", ScalingConfig(use_gpu=True)),
        ({"trainer": "pkg.mod:make"}, "datasets", "pkg.mod:data"),
        ({"entrypoint": "python x.py"}, "scaling_config", {"num_workers": 2}),
        ({"entrypoint": "python x.py"}, "datasets", "pkg.mod:data"),
        ({"entrypoint": "python x.py"}, "train_loop_config", {"lr": 1}),
        ({"entrypoint": "python x.py"}, "train_loop_config", {}),
    ],
)
def test_what_the_chosen_kind_would_ignore_is_an_error(kind: dict[str, str], name: str, value: Any) -> None:
    """Four workers that were asked for and never came are found after a night."""
    with pytest.raises(InvalidConfig, match=f"^{name} has no effect with {next(iter(kind))}"):
        operator(train_loop=None, **kind, **{name: value})
    assert operator(train_loop=None, **kind)


def test_a_trainer_factory_takes_the_config_and_a_loop_takes_all() -> None:
    made = operator(train_loop=None, trainer="pkg.mod:make", train_loop_config={"lr": 1})
    assert build_request(made, KEY).training.train_loop_config == {"lr": 1}
    made = operator(train_loop_config={"lr": 1}, datasets="pkg.mod:data", scaling_config={"num_workers": 2})
    training = build_request(made, KEY).training
    assert (training.datasets, training.scaling.num_workers) == ("pkg.mod:data", 2)


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="num_worker"):
        operator(num_worker=4)


@pytest.mark.parametrize(("retries", "is_warned"), [(0, True), (None, True), (1, False), (..., False)])
def test_no_retries_is_warned_about(retries: Any, is_warned: bool) -> None:
    with capture_logs() as logs:
        operator(retries=retries)
    assert any("retries=0" in entry["event"] for entry in logs) == is_warned


def test_templates_pass_at_any_depth() -> None:
    made = operator(
        storage_path="s3://{{ var.value.bucket }}/x",
        train_loop="{{ params.loop }}",
        train_loop_config={"deep": [{"lr": "{{ params.lr }}"}]},
        scaling_config={"num_workers": "{{ params.workers }}", "resources_per_worker": {"CPU": "{{ params.cpus }}"}},
        failure_config={"max_failures": "{{ params.failures }}"},
        checkpoint_config={"num_to_keep": "{{ params.keep }}", "checkpoint_score_order": "{{ params.order }}"},
        storage_config={"endpoint_url": "{{ conn.s3.host }}"},
        restore={"mode": "{{ params.mode }}"},
    )
    assert set(RayTrainOperator.template_fields) >= {"scaling_config", "restore", "storage_path", "train_loop_config"}
    params = {"lr": "0.1", "workers": "4", "cpus": "2", "failures": "7", "keep": "3", "order": "min", "mode": "latest"}
    context: Any = {
        "params": {**params, "loop": "pkg.mod:loop"},
        "var": {"value": {"bucket": "models"}},
        "conn": {"s3": {"host": "http://s3:8333"}},
    }
    made.storage_config |= {"region": "eu-west-1"}
    made.render_template_fields(context)
    request = build_request(made, KEY)
    assert request.uri.startswith("s3://models/x/d/train/")
    assert request.training.scaling.num_workers == 4
    assert request.training.scaling.resources_per_worker == {"CPU": 2.0}
    assert request.training.failure.max_failures == 7
    assert (request.training.checkpoint.num_to_keep, request.training.checkpoint.checkpoint_score_order) == (3, "min")
    assert request.training.train_loop_config == {"deep": [{"lr": "0.1"}]}
    assert request.storage.endpoint_url == "http://s3:8333"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scaling_config": {"num_workers": "{{ x }}"}}, "scaling_config.num_workers"),
        ({"scaling_config": {"resources_per_worker": "{{ x }}"}}, "scaling_config.resources_per_worker"),
        ({"failure_config": {"max_failures": "{{ x }}"}}, "failure_config.max_failures"),
        ({"checkpoint_config": {"num_to_keep": "{{ x }}"}}, "checkpoint_config.num_to_keep"),
        ({"checkpoint_config": {"checkpoint_score_order": "{{ x }}"}}, "checkpoint_score_order"),
        ({"train_loop": "{{ x }}"}, "train_loop"),
        ({"storage_path": "{{ x }}"}, "storage_path"),
        ({"restore": "{{ x }}"}, "restore"),
        ({"restore": {"mode": "best", "metric": "loss", "order": "{{ x }}"}}, "restore.order"),
    ],
)
def test_what_rendering_made_wrong_is_found_before_anything_is_sent(changes: dict[str, Any], named: str) -> None:
    made = operator(**changes)
    context: Any = {"x": "rubbish"}
    made.render_template_fields(context)
    with pytest.raises(InvalidConfig) as caught:
        build_request(made, KEY)
    assert named in str(caught.value)


def test_a_template_that_was_never_rendered_is_no_value() -> None:
    with pytest.raises(InvalidConfig, match="num_workers"):
        build_request(operator(scaling_config={"num_workers": "{{ x }}"}), KEY)


@pytest.mark.parametrize(
    ("changes", "kind", "target", "command"),
    [
        ({}, TrainingKind.TRAIN_LOOP, "pkg.mod:loop", None),
        ({"train_loop": None, "trainer": "pkg.mod:make"}, TrainingKind.TRAINER, "pkg.mod:make", None),
        ({"train_loop": None, "entrypoint": "python x.py"}, TrainingKind.ENTRYPOINT, None, "python x.py"),
    ],
)
def test_three_ways_to_say_what_to_train(
    changes: dict[str, Any], kind: TrainingKind, target: str | None, command: str | None
) -> None:
    training = build_request(operator(**changes), KEY).training
    assert (training.kind, training.target, training.command) == (kind, target, command)


def test_models_and_dicts_say_the_same() -> None:
    models = operator(
        scaling_config=ScalingConfig(num_workers=2),
        failure_config=FailureConfig(max_failures=3),
        checkpoint_config=CheckpointConfig(num_to_keep=1),
    )
    dicts = operator(
        scaling_config={"num_workers": 2}, failure_config={"max_failures": 3}, checkpoint_config={"num_to_keep": 1}
    )
    assert build_request(models, KEY).training == build_request(dicts, KEY).training


def test_best_takes_metric_and_order_from_the_checkpoint_config() -> None:
    scored = {"checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"}
    policy = build_request(operator(restore="best", checkpoint_config=scored, on_corrupt="fail"), KEY).restore
    assert (policy.mode, policy.metric, policy.order, policy.on_corrupt) == ("best", "loss", "min", "fail")


def test_the_deadline_is_the_execution_timeout_unless_one_is_given() -> None:
    assert build_request(operator(execution_timeout=timedelta(minutes=5)), KEY).timeout_s == 300
    given = operator(execution_timeout=timedelta(minutes=5), timeout_s=timedelta(hours=1))
    assert build_request(given, KEY).timeout_s == 3600
    assert build_request(operator(), KEY).timeout_s is None


def test_the_working_directory_starts_at_the_dag_file(tmp_path: Path) -> None:
    with DAG("d", schedule=None) as dag:
        made = operator(working_dir="training")
    dag.fileloc = str(tmp_path / "my_dag.py")
    assert build_request(made, KEY).dag_folder == tmp_path


def test_the_drivers_interpreter_cannot_smuggle_a_command() -> None:
    command = build_request(operator(python="/opt/my env/bin/python; rm -rf /"), KEY).command
    assert command.startswith("'/opt/my env/bin/python; rm -rf /' -m airflow_provider.runtime.driver")


def test_the_digest_tells_requests_apart() -> None:
    one, same, other = (build_request(operator(train_loop_config={"lr": lr}), KEY) for lr in (1, 1, 2))
    assert one.spec_digest == same.spec_digest != other.spec_digest


def mapped(**partial: Any) -> Any:
    with DAG("d", schedule=None):
        return RayTrainOperator.partial(task_id="train", storage_path="/shared/models", **partial).expand(
            train_loop=["pkg.mod:a", "pkg.mod:b"]
        )


def test_a_mapped_task_keeps_our_retry_policy_and_retries() -> None:
    """A default that is set in the body of `__init__` is lost for mapped tasks."""
    made = mapped()
    assert isinstance(made.retry_policy, RayTrainRetryPolicy)
    assert made.retries == 3
    plain = operator()
    assert isinstance(plain.retry_policy, RayTrainRetryPolicy)
    assert plain.retries == 3


def test_an_authors_own_policy_and_retries_win() -> None:
    policy = ExceptionRetryPolicy([])
    assert mapped(retry_policy=policy, retries=1).retry_policy is policy
    assert mapped(retries=1).retries == 1
    assert operator(retry_policy=policy).retry_policy is policy


def test_no_secret_of_the_connection_is_in_repr_or_rendered_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_X", json.dumps({"conn_type": "ray", "host": "h", "password": "s3cret"}))
    made = operator(conn_id="ray_x")
    made.render_template_fields({})
    request = build_request(made, KEY)
    shown = [repr(made), repr(request), *(repr(getattr(made, name)) for name in made.template_fields)]
    assert not any("s3cret" in text for text in shown)


def test_input_is_not_echoed_in_errors() -> None:
    with pytest.raises(InvalidConfig) as caught:
        operator(storage_config={"endpoint_url": "http://AKIA:hunter2@s3"})
    assert "hunter2" not in str(caught.value)
