"""Wrong parameters show when the DAG is parsed; templates and XComs are judged once rendered."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from hypothesis import example, given

from airflow_provider.core.errors import InvalidCondition, InvalidConfig
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.wait_parameters import resolved_experiment, wait_spec
from airflow_provider.policies.retry import RayTrainRetryPolicy
from airflow_provider.sensors.ray_train import RayTrainSensor
from tests.support.damage import JUNK, SECRET, examples, only_typed_errors, without_secret

URI = "s3://models/churn"
OWN = TaskInstanceKey("own_dag", "own_run", "wait")


def sensor(**changes: Any) -> RayTrainSensor:
    known: dict[str, Any] = {"task_id": "wait", "experiment": URI}
    return RayTrainSensor(**{**known, **changes})


BAD = {
    "nothing to wait for": {"experiment": None},
    "two things to wait for": {"external_task_id": "train", "storage_path": URI},
    "a task without a path": {"experiment": None, "external_task_id": "train"},
    "a run without a task": {"external_run_id": "r1"},
    "a relative path": {"experiment": "models/churn"},
    "a bucket that is none": {"experiment": "s3://user:pass@b/x"},
    "inside an experiment": {"experiment": f"{URI}/g000001/attempts/000001/checkpoint_0"},
    "a dict that became text": {"experiment": "{'experiment': 's3://b/x'}"},
    "an XCom without our fields": {"experiment": {"state": "success"}},
    "a storage path that is none": {"experiment": None, "external_task_id": "t", "storage_path": "models"},
    "since a checkpoint at the end": {"since": "g000001/attempts/000001/checkpoint_0"},
    "since nothing": {"until": "checkpoint", "since": "yesterday"},
    "missing": {"missing": "maybe"},
    "no time": {"unreachable_timeout_s": 0},
    "endless": {"unreachable_timeout_s": float("inf")},
    "no checkpoints": {"max_checkpoints_without_metric": 0},
    "deferrable": {"deferrable": "yes"},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_parameters_are_found_at_parse_time(name: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        sensor(**BAD[name])
    assert caught.value.change or caught.value.known


@pytest.mark.parametrize("until", ["End", "val_loss <", "", "finished", "loss < 0.3 or acc > 1"])
def test_a_condition_that_does_not_parse_names_the_column_at_parse_time(until: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        sensor(until=until)
    if until:
        assert isinstance(caught.value, InvalidCondition)
        assert caught.value.column
        assert "'end' or 'checkpoint'" in caught.value.change


def test_templates_and_outputs_wait_for_their_rendering() -> None:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc)):
        upstream = BaseOperator(task_id="up")
        for changes in (
            {"experiment": "{{ ti.xcom_pull('train')['experiment'] }}"},
            {"experiment": upstream.output, "until": "{{ params.until }}", "since": "{{ params.since }}"},
            {"experiment": upstream.output["experiment"], "until": "checkpoint", "since": upstream.output},
        ):
            waiting = sensor(**changes, task_id=f"w{len(str(changes))}")
            assert "up" in waiting.upstream_task_ids or "ti.xcom_pull" in str(changes)


def test_rendered_values_are_judged_as_strictly() -> None:
    waiting = sensor(until="{{ params.until }}")
    waiting.until = "val_loss <"
    with pytest.raises(InvalidCondition, match="column 11"):
        wait_spec(waiting, uri=URI)
    waiting = sensor(experiment="{{ x }}")
    for rendered in ("", None, "None", 3, [URI], {"state": "x"}, "{'experiment': 's3://b/x'}"):
        waiting.experiment = rendered  # type: ignore[assignment]
        with pytest.raises(InvalidConfig):
            resolved_experiment(waiting, OWN)


def test_native_templates_make_numbers_of_texts() -> None:
    waiting = sensor(experiment=None, external_task_id="train", external_run_id="{{ x }}", storage_path=URI)
    waiting.external_run_id = 20261129  # type: ignore[assignment]
    assert "/20261129-" in resolved_experiment(waiting, OWN)


@pytest.mark.parametrize("index", ["first", -2, True, 1.5])
def test_a_map_index_is_a_number(index: Any) -> None:
    waiting = sensor(experiment=None, external_task_id="train", external_map_index=index, storage_path=URI)
    with pytest.raises(InvalidConfig, match="external_map_index"):
        resolved_experiment(waiting, OWN)


NAME = "g000002/attempts/000003/checkpoint_4"


@pytest.mark.parametrize(
    "since",
    [
        NAME,
        f"{URI}/{NAME}",
        {"uri": f"{URI}/{NAME}", "name": NAME},
        {"checkpoint": {"uri": f"{URI}/{NAME}", "name": NAME}, "latest_checkpoint": None},
        {"latest_checkpoint": {"uri": f"{URI}/{NAME}", "name": NAME}},
    ],
)
def test_since_takes_a_checkpoint_in_each_form(since: Any) -> None:
    baseline = wait_spec(sensor(until="checkpoint", since=since), uri=URI).baseline
    assert baseline is not None
    assert (baseline.generation, baseline.attempt, baseline.checkpoint) == (2, 3, NAME)


def test_since_on_a_shared_disk() -> None:
    baseline = wait_spec(
        sensor(experiment="/shared/x", until="checkpoint", since=f"file:///shared/x/{NAME}"), uri="/shared/x"
    ).baseline
    assert baseline is not None


@pytest.mark.parametrize("since", [{"checkpoint": None}, {}, 3, f"s3://models/other/{NAME}", f"{NAME}/../../x"])
def test_since_refuses_what_is_no_checkpoint_of_this_experiment(since: Any) -> None:
    waiting = sensor(until="checkpoint", since="{{ x }}")
    waiting.since = since
    with pytest.raises(InvalidConfig):
        wait_spec(waiting, uri=URI)


def test_a_template_that_gave_nothing_is_not_the_default() -> None:
    """`since="{{ ... }}"` that renders to None means that nothing is old, which is what None says."""
    waiting = sensor(until="checkpoint", since="{{ x }}")
    waiting.since = None
    assert wait_spec(waiting, uri=URI).needs_baseline


def test_no_message_repeats_a_secret() -> None:
    with pytest.raises(InvalidConfig) as caught:
        sensor(experiment=f"https://user:{SECRET}@host/x?token={SECRET}")
    assert SECRET not in str(caught.value)


@given(JUNK, JUNK, JUNK, JUNK)
@example(SECRET, SECRET, SECRET, SECRET)
@example({"experiment": SECRET}, SECRET, {"checkpoint": {"uri": SECRET}}, SECRET)
@examples(150)
def test_whatever_a_template_renders_to_only_typed_errors_come(a: Any, b: Any, c: Any, d: Any) -> None:
    a, b, c, d = (without_secret(value) for value in (a, b, c, d))
    waiting = sensor(experiment="{{ x }}")
    waiting.experiment, waiting.until, waiting.since = a, b, c
    with only_typed_errors():
        wait_spec(waiting, uri=resolved_experiment(waiting, OWN))
    waiting = sensor(experiment=None, external_task_id="t", storage_path="{{ x }}", until="checkpoint")
    waiting.storage_path, waiting.external_run_id, waiting.external_map_index, waiting.since = a, b, c, d
    with only_typed_errors():
        wait_spec(waiting, uri=resolved_experiment(waiting, OWN))


def test_mapped_sensors_keep_the_defaults() -> None:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc)):
        mapped = RayTrainSensor.partial(task_id="wait", timeout=60).expand(experiment=[URI, f"{URI}2"])
    one = mapped.operator_class(**{**mapped.partial_kwargs, "experiment": URI, "task_id": "one"})
    assert isinstance(one, RayTrainSensor)
    assert (one.timeout, one.until, one.missing, one.deferrable, one.retries) == (60, "end", "wait", True, 3)
    assert isinstance(one.retry_policy, RayTrainRetryPolicy)
