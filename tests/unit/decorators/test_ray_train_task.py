"""`@task.ray_train` as a DAG author meets it: one decorator, TaskFlow's ways, RayTrainOperator's parameters."""

from __future__ import annotations

import inspect
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.bases.operator import BaseOperator
from airflow.sdk.exceptions import TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.job_spec import JobSpec
from airflow_provider.decorators.ray_train import TRAINED_BY_FUNCTION, RayTrainDecoratedOperator, ray_train_task
from airflow_provider.decorators.signature import RayTrainTaskDecorator
from airflow_provider.hooks.job_package import code_digest
from airflow_provider.operators.parameters import build_request
from airflow_provider.operators.ray_train import RayTrainOperator
from airflow_provider.policies.retry import RayTrainRetryPolicy
from tests.support.dag_file import load
from tests.support.operator_run import STORAGE, World, running_world

SOURCE = """
from __future__ import annotations
from airflow.sdk import DAG, task
RATE = {rate}
@task.ray_train(storage_path="/shared/models", conn_id="ray_test", poll_interval_s=0.01, stream_logs=False, task_id="train")
def train(lr: float, epochs: int = 3, *, params: dict | None = None, **more) -> dict:
    '''Trains.'''
    return {{"lr": lr * RATE}}
"""


def decorated(folder: Path, *, rate: float = 1.0) -> Any:
    return load(folder, SOURCE.format(rate=rate)).train


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_world(monkeypatch) as world:
        yield world


def test_airflow_finds_it_under_its_name() -> None:
    assert task.ray_train is ray_train_task


def test_editors_know_the_operators_parameters_with_their_types() -> None:
    known = dict(inspect.signature(RayTrainOperator.__init__).parameters)
    said = dict(inspect.signature(RayTrainTaskDecorator.__call__).parameters)
    for name in TRAINED_BY_FUNCTION:
        del known[name]
    assert list(said) == list(known)
    assert {name: p.annotation for name, p in said.items()} == {name: p.annotation for name, p in known.items()}
    assert all(p.default is ... for p in said.values() if p.kind is p.KEYWORD_ONLY)


def test_the_job_brings_the_function_and_its_arguments(tmp_path: Path, world: World) -> None:
    operator = decorated(tmp_path)(0.5, seed=[1, 2]).operator
    assert isinstance(operator, RayTrainOperator)
    context = {**world.task.context, "params": {"batch": 8}}
    with pytest.raises(TaskDeferred):
        operator.execute(context)
    spec, files = sent(world)
    module = operator.function_module
    assert module is not None
    assert spec.training.target == module.target == f"airflow_provider.from_dag.{module.name}:__ray_train_loop__"
    assert spec.training.train_loop_config == {"lr": 0.5, "params": {"batch": 8}, "more": {"seed": [1, 2]}}
    assert b"return {" in files[f"airflow_provider/from_dag/{module.name}.py"]
    assert "airflow_provider/from_dag/__init__.py" in files
    claim = world.records.newest_claim()
    assert claim is not None
    assert claim.code_digest == code_digest(None, more=module.files) != code_digest(None)
    assert operator.doc_md == "Trains."


def sent(world: World) -> tuple[JobSpec, dict[str, bytes]]:
    """The spec and the files of the one package that was sent."""
    (content,) = world.server.packages.values()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    return JobSpec.model_validate_json(files["airflow_provider/job_spec.json"]), files


def test_the_task_returns_what_the_operator_returns(tmp_path: Path, world: World) -> None:
    """A return annotation `-> dict` would make Airflow push one XCom per key."""
    operator = decorated(tmp_path)(0.5).operator
    assert operator.multiple_outputs is False
    trigger = world.defer(operator)
    world.succeed(trigger)
    result = world.complete(world.follow(trigger), operator=operator)
    assert result["state"] == "success"
    assert result["new_checkpoints"] == 1


def test_a_changed_function_is_other_code_and_the_same_request(tmp_path: Path) -> None:
    """As with a changed file in working_dir: a retry restores, and only a lost POST with the old code isn't repeated."""
    key = TaskInstanceKey("d", "r", "train")
    trains = [load(tmp_path, SOURCE.format(rate=rate), number=0).train for rate in (1.0, 1.0, 2.0)]
    requests = [build_request(train(0.5).operator, key) for train in trains]
    one, same, changed = [code_digest(None, more=request.function_files) for request in requests]
    assert one == same != changed
    assert len({request.spec_digest for request in requests}) == 1


def test_override_partial_expand(tmp_path: Path) -> None:
    with DAG("d", schedule=None, default_args={"retry_delay": timedelta(seconds=7)}):
        train = decorated(tmp_path)
        other = train.override(task_id="other", retries=5, scaling_config={"num_workers": 2})(lr=1).operator
        mapped = train.partial(epochs=2).expand(lr=[0.1, 0.2]).operator
    assert (other.task_id, other.retries, other.scaling_config["num_workers"]) == ("other", 5, 2)
    assert (mapped.retries, mapped.retry_delay) == (3, timedelta(seconds=7)), "the scheduler reads these"
    assert isinstance(mapped.retry_policy, RayTrainRetryPolicy)
    one = mapped.unmap({"op_kwargs": {"lr": 0.2}})
    assert isinstance(one, RayTrainDecoratedOperator)
    assert (one.op_kwargs, one.retries, one.storage_path) == ({"epochs": 2, "lr": 0.2}, 3, STORAGE)


def test_default_args_win_over_our_defaults(tmp_path: Path) -> None:
    with DAG("d", schedule=None, default_args={"retries": 1}):
        train = decorated(tmp_path)
        assert train(1).operator.retries == 1
        assert train.override(task_id="m").expand(lr=[1]).operator.retries == 1


def test_a_mapped_tasks_parameters_are_checked_when_the_dag_is_parsed(tmp_path: Path) -> None:
    """Airflow itself would find them on the worker."""
    with DAG("d", schedule=None) as made:
        train = decorated(tmp_path)
        with pytest.raises(InvalidConfig, match="num_workers"):
            train.override(scaling_config={"num_workers": 0}).expand(lr=[1])
        assert made.task_ids == []
        train.expand(lr=choose.override(task_id="choose")())
    assert sorted(made.task_ids) == ["choose", "train"]
    assert made.get_task("train").upstream_task_ids == {"choose"}


def test_a_dag_with_it_is_stored_and_knows_its_retries(tmp_path: Path) -> None:
    with DAG("d", schedule=None, default_args={"storage_path": "s3://models/other"}) as made:
        train = decorated(tmp_path)
        train.override(task_id="one")(lr=1)
        train.expand(lr=choose())
    stored = json.loads(json.dumps(DagSerialization.to_dict(made)))
    tasks = {one["__var"]["task_id"]: one["__var"] for one in stored["dag"]["tasks"]}
    assert tasks["one"]["retries"] == 3
    assert tasks["train"]["partial_kwargs"]["retries"] == 3


@task
def choose() -> list[float]:
    return [0.1]


def test_another_tasks_output_makes_a_dependency(tmp_path: Path) -> None:
    with DAG("d", schedule=None):
        operator = decorated(tmp_path)(choose()).operator
    assert operator.upstream_task_ids == {"choose"}
    assert {"op_args", "op_kwargs"} <= set(operator.template_fields)
    assert not {"train_loop", "train_loop_config"} & set(operator.template_fields)


@pytest.mark.parametrize("name", TRAINED_BY_FUNCTION)
def test_what_the_function_stands_for_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        ray_train_task(storage_path=STORAGE, **{name: "x"})


def test_a_misspelt_parameter_is_named_also_in_override(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"'storage_pat'.*write storage_path"):
        ray_train_task(storage_pat=STORAGE)
    with pytest.raises(InvalidConfig, match="'scaling_conf'"):
        decorated(tmp_path).override(scaling_conf={})


@pytest.mark.parametrize("value", [object(), float("nan"), {1: 2}, "\ud800", {"deep": [{"x": {1, 2}}]}])
def test_an_argument_that_is_no_json_is_named_when_the_dag_is_parsed(value: Any, tmp_path: Path) -> None:
    train = decorated(tmp_path)
    with DAG("d", schedule=None):
        for call in (
            lambda: train(value),
            lambda: train(lr=value),
            lambda: train(lr=1, seed=value),
            lambda: train.expand(lr=[1, value]),
            lambda: train.partial(epochs=value).expand(lr=[1]),
            lambda: train.expand_kwargs([{"lr": 1}, {"lr": value}]),
        ):
            with pytest.raises(InvalidConfig, match=r"the argument '(lr|seed|epochs|more)' of train"):
                call()


def test_an_argument_that_rendering_made_wrong_is_named(tmp_path: Path, world: World) -> None:
    operator = decorated(tmp_path)(0.5).operator
    operator.op_args = (object(),)
    with pytest.raises(InvalidConfig, match="the argument 'lr' of train"):
        operator.execute(world.task.context)
    operator.op_args = (1, 2, 3, 4)
    with pytest.raises(InvalidConfig, match="can't be called with the arguments"):
        operator.execute(world.task.context)


def test_an_object_of_airflows_cant_be_a_parameter(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"'ti' of train.*train\(when='\{\{ ti \}\}'\)"):
        load(tmp_path, SOURCE.format(rate=1).replace("lr: float", "ti=None"))


def test_all_outputs_of_a_mapped_task_become_a_list(tmp_path: Path, world: World) -> None:
    class Lazy(list):  # type: ignore[type-arg]  # stands for Airflow's lazy sequence
        pass

    operator = decorated(tmp_path)(Lazy([(1, 2)]), epochs=2).operator
    world.defer(operator)
    assert sent(world)[0].training.train_loop_config == {"lr": [[1, 2]], "epochs": 2}


def test_parsing_a_dag_with_it_loads_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "cheap.py"
    path.write_text(SOURCE.format(rate=1))
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import cheap; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"import json; {program}"], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert "cheap" in loaded
    assert not loaded & {"ray", "torch", "boto3", "pyarrow", "pandas", "kubernetes"}


def test_every_parameter_of_a_task_is_known() -> None:
    names = set(inspect.signature(BaseOperator.__init__).parameters) - {"self", "kwargs", "task_id"}
    assert "pool" in names
    for name in names:
        ray_train_task(**{name: None})
