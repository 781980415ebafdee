"""A sensor that starts in the triggerer ends as one that defers from a worker; what can't start there shows when the DAG is parsed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models.trigger import Trigger
from airflow.sdk import DAG, BaseOperator, task_group
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.serialized_objects import DagSerialization
from jinja2 import UndefinedError

from airflow_provider.core.errors import InvalidConfig, RayTrainError, StorePermissionDenied
from airflow_provider.core.identity import TaskInstanceKey, experiment_uri
from airflow_provider.sensors.ray_train import RayTrainSensor
from airflow_provider.triggers.ray_train_sensor import BACKSTOP
from airflow_provider.triggers.ray_train_sensor_start import RENDERED, RayTrainSensorStartTrigger
from tests.support.fake_airflow import RUN_ID
from tests.support.sensor_world import URI, World, fail, succeed, train
from tests.support.watched_experiment import WatchedExperiment

NOW = datetime.now(timezone.utc)
NAME = "g000001/attempts/000001/checkpoint_000000"


@pytest.fixture(autouse=True)
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the XComs that a try deleted."""
    keys: list[str] = []
    monkeypatch.setattr("airflow.sdk.execution_time.xcom.XCom.delete", lambda key, *_: keys.append(key))
    return keys


def started(dag: DAG, *, conf: dict[str, Any] | None = None, ends_at: datetime | None = None) -> Any:
    """The trigger as Airflow's scheduler makes its row and its triggerer the object: serialized, encrypted, rendered."""
    data = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    task = DagSerialization.from_dict(data).get_task("wait")
    assert task.start_from_trigger is True
    args = task.start_trigger_args
    row = Trigger._decrypt_kwargs(Trigger.encrypt_kwargs(args.trigger_kwargs))
    trigger = import_string(args.trigger_cls)(**{name: smart_decode_trigger_kwargs(v) for name, v in row.items()})
    ti = TaskInstanceDTO(
        id=uuid4(), dag_version_id=uuid4(), dag_id=dag.dag_id, task_id="wait", run_id=RUN_ID, try_number=1,
        map_index=-1, pool_slots=1, queue="default", priority_weight=1,
    )  # fmt: skip
    dag_run = {"dag_id": dag.dag_id, "run_id": RUN_ID, "run_after": NOW, "start_date": NOW, "run_type": "manual"}
    dag_run |= {"state": "running", "consumed_asset_events": [], "conf": conf or {}}
    unset = ("logical_date", "data_interval_start", "data_interval_end", "end_date", "partition_key")
    dag_run |= dict.fromkeys(unset)
    runtime = TriggerRunner.create_runtime_ti(ti, data, dag_run)
    trigger.task_instance = runtime
    trigger.timeout_after = ends_at or datetime.now(timezone.utc) + args.timeout
    trigger.render_template_fields(context=runtime.get_template_context())
    return trigger


def dag_with(**options: Any) -> DAG:
    known: dict[str, Any] = {"poke_interval": 0.01, "timeout": 5, "start_from_trigger": True}
    with DAG("d", schedule=None, params={"uri": URI}) as dag:
        RayTrainSensor(task_id="wait", **{**known, **options})
    return dag


def begun_by_a_worker(world: World, **options: Any) -> Any:
    """What the same sensor without `start_from_trigger` ends with, in its first look or later."""
    try:
        return world.execute(**options)
    except TaskDeferred:
        return world.run(**options)


def ended(world: World, *, rendered: dict[str, Any] | None = None, **options: Any) -> Any:
    """From the trigger's start to the task's end; `rendered` is what the worker makes of templates."""
    if "external_task_id" not in options:
        options.setdefault("experiment", URI)
    dag = dag_with(**options)

    async def fire() -> Any:
        return [event.payload async for event in started(dag).run()]

    (payload,) = asyncio.run(asyncio.wait_for(fire(), 20))
    sensor = RayTrainSensor(task_id="wait", poke_interval=0.01, **{"timeout": 5, "start_from_trigger": True, **options})
    for name, value in (rendered or {}).items():
        setattr(sensor, name, value)
    return sensor.resume_execution("execute_complete", {"event": json.loads(json.dumps(payload))}, world.task.context)


def outcome(end: Callable[[], Any]) -> tuple[str, str]:
    """The result, or the error that ended it, as a person sees it."""
    try:
        return "returned", json.dumps(end(), sort_keys=True)
    except (RayTrainError, AirflowSkipException) as error:
        return type(error).__name__, str(error)


ENDS: dict[str, tuple[Callable[[WatchedExperiment], None], dict[str, Any]]] = {
    "success": (succeed, {}),
    "condition": (train, {"until": "loss < 0.45 and epoch >= 1"}),
    "newer than a checkpoint": (train, {"until": "checkpoint", "since": NAME}),
    "training failed": (fail, {}),
    "skipped": (fail, {"soft_fail": True}),
    "missing": (lambda _: None, {"missing": "fail"}),
    "never came": (lambda _: None, {"timeout": 0.05}),
    "timed out": (train, {"timeout": 0.05}),
    "not met": (succeed, {"until": "loss < 0.1"}),
    "no metric": (succeed, {"until": "acuracy > 0.1"}),
    "silent": (succeed, {"silent_fail": True}),
}


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_as_a_wait_that_a_worker_began(world: World, name: str) -> None:
    prepare, options = ENDS[name]
    prepare(world.watched)
    deferred = outcome(lambda: begun_by_a_worker(world, **options))
    told = dict(world.task.ti.xcoms)
    world.task.ti.xcoms.clear()
    found = outcome(lambda: ended(world, **options))
    parts = 1 if name == "skipped" else 2  # a skip of a resumed sensor has Airflow's own words
    assert found[:parts] == deferred[:parts]
    assert world.task.ti.xcoms == told


def test_what_an_earlier_try_told_is_deleted_first(world: World, deleted: list[str]) -> None:
    """Airflow clears XComs when a try begins in a worker; this one only resumes there."""
    succeed(world.watched)
    ended(world)
    assert deleted == ["return_value", "ray_train_wait", "ray_train_failure"]
    deleted.clear()
    world.before_look = lambda _: None
    assert begun_by_a_worker(world)["state"] == "success"
    assert deleted == [], "Airflow does it"


def test_a_refusal_keeps_its_type(world: World) -> None:
    def refuse(_: int) -> None:
        raise StorePermissionDenied("no", known="403")

    world.before_look = refuse
    with pytest.raises(StorePermissionDenied):
        ended(world)


def test_the_experiment_is_named_as_in_a_worker(world: World) -> None:
    """By the own DAG run, and by templates of what needs no answer from Airflow."""
    succeed(world.watched)
    ended(world, storage_path=URI, external_task_id="train")
    path = f"{URI}/{len(RUN_ID)}/2026"
    text = "{{ params.uri }}/{{ run_id | length }}/{{ macros.datetime(2026, 1, 2).year }}"
    ended(world, experiment=text, rendered={"experiment": path})
    own = TaskInstanceKey("d", RUN_ID, "train")
    assert world.opened[0] == experiment_uri(URI, own)
    assert world.opened[1] == path


async def test_the_deadline_is_airflows_own_less_the_backstop(world: World) -> None:
    """It stands with the task instance: the next triggerer goes on with it, and doesn't begin anew."""
    passed = datetime.now(timezone.utc) + BACKSTOP - timedelta(seconds=1)
    trigger = started(dag_with(experiment=URI, timeout=3600), ends_at=passed)
    (event,) = [event.payload async for event in trigger.run()]
    assert (event["end"], event["is_absent"]) == ("timeout", True)
    assert world.looks == 1, "a last look"


@pytest.mark.parametrize("text", ["{{ dag_run.conf.team }}", "{{ ds }}", "{{ params.team }}"])
def test_what_a_template_misses_is_an_error_as_in_a_worker(text: str) -> None:
    """Airflow's own environment of a triggerer renders it as nothing: the wait would be for another path, and for days."""
    with pytest.raises(UndefinedError):
        started(dag_with(experiment=f"s3://models/{text}/churn"))


TASK: dict[str, Any] = {"experiment": None, "storage_path": URI, "external_task_id": "train"}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an XCom": ({"experiment": "{{ ti.xcom_pull('train')['experiment'] }}"}, "template with ti"),
    "an XCom behind a name": ({"until": "{% set x = task_instance %}epoch >= {{ x }}"}, "task_instance"),
    "a variable": ({"storage_path": "{{ var.value.bucket }}", "experiment": None, "external_task_id": "t"}, "var"),
    "a macro of the DAG": ({"experiment": "{{ my_macro() }}"}, "my_macro"),
    "a filter of the DAG": ({"experiment": "{{ run_id | mine }}"}, "No filter named 'mine'"),
    "a broken template": ({"experiment": "{{ run_id"}, "can't render"),
    "a native template": (
        {"external_run_id": "{{ params.x }}", "render_template_as_native_obj": True} | TASK,
        "native",
    ),
    "a dict": ({"experiment": {"experiment": URI}}, "experiment is a dict"),
    "the next checkpoint": ({"until": "checkpoint"}, "compares with what was there"),
    "from now on": ({"since": "now"}, "compares with what was there"),
    "blocking": ({"deferrable": False}, "deferrable=False"),
    "execution_timeout": ({"execution_timeout": timedelta(seconds=4)}, "execution_timeout"),
    "execution_timeout within the backstop": ({"execution_timeout": timedelta(seconds=60)}, "execution_timeout"),
    "a wrong condition": ({"until": "loss <"}, "until"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_start_there_is_found_when_the_dag_is_parsed(name: str) -> None:
    options, words = BAD[name]
    with pytest.raises(InvalidConfig, match=words) as caught:
        dag_with(**{"experiment": URI, **options})
    assert caught.value.change or caught.value.known


def test_outputs_and_mapped_tasks_are_found_too() -> None:
    with DAG("d", schedule=None):
        upstream = BaseOperator(task_id="up")
        for number, output in enumerate((upstream.output, upstream.output["experiment"])):
            with pytest.raises(InvalidConfig, match="another task's output"):
                RayTrainSensor(task_id=f"w{number}", experiment=output, start_from_trigger=True)
        with pytest.raises(InvalidConfig, match="mapped"):
            RayTrainSensor.partial(task_id="mapped", start_from_trigger=True).expand(experiment=[URI])

        @task_group
        def group(index: int) -> None:
            with pytest.raises(InvalidConfig, match="mapped"):
                RayTrainSensor(task_id="wait", experiment=URI, start_from_trigger=True)
            BaseOperator(task_id=f"other_{index}"[:5])

        group.expand(index=[1, 2])
        mapped = RayTrainSensor.partial(task_id="fine").expand(experiment=[URI])
    assert mapped.start_from_trigger is False


def test_nothing_but_partial_itself_can_set_it_for_an_index() -> None:
    """Airflow hands defaults and mapped arguments to each index on a worker, where all of them would fail."""
    with DAG("d", schedule=None, default_args={"start_from_trigger": True}):
        partial = RayTrainSensor.partial(task_id="mapped")
        with pytest.raises(TypeError, match="start_from_trigger"):
            partial.expand(experiment=[URI], start_from_trigger=[True])
        mapped = partial.expand(experiment=[URI])
        single = RayTrainSensor(task_id="single", experiment=URI)
    assert single.start_from_trigger is True
    assert mapped.start_from_trigger is False
    assert mapped.unmap({"experiment": URI}).start_from_trigger is False


def test_native_templates_of_the_whole_dag_are_found() -> None:
    with DAG("d", schedule=None, render_template_as_native_obj=True):
        with pytest.raises(InvalidConfig, match="native"):
            RayTrainSensor(task_id="w", experiment="{{ params.x }}", start_from_trigger=True)
        fine = RayTrainSensor(task_id="fine", experiment=URI, start_from_trigger=True)
        text = {"render_template_as_native_obj": False, "experiment": "{{ params.x }}"}
        too = RayTrainSensor(task_id="too", start_from_trigger=True, **text)
    assert fine.start_from_trigger
    assert too.start_from_trigger


class Nightly(RayTrainSensor):
    """A subclass that always starts so, and has one more templated field."""

    template_fields = (*RayTrainSensor.template_fields, "note")
    start_from_trigger = True
    note = "{{ ds }}"


def test_a_subclass_may_choose_it_for_all_of_its_tasks() -> None:
    with DAG("d", schedule=None) as dag:
        Nightly(task_id="wait", experiment=URI)
        worker = Nightly(task_id="worker", experiment=URI, start_from_trigger=False)
        with pytest.raises(InvalidConfig, match="mapped"):
            Nightly.partial(task_id="mapped").expand(experiment=[URI])
        mapped = Nightly.partial(task_id="fine", start_from_trigger=False).expand(experiment=[URI])
    assert started(dag).experiment == URI
    assert (worker.start_from_trigger, worker.start_trigger_args) == (False, None)
    assert mapped.unmap({"experiment": URI}).start_from_trigger is False


def test_a_trigger_that_failed_leaves_nothing_of_an_earlier_try_either(world: World, deleted: list[str]) -> None:
    sensor = world.sensor(start_from_trigger=True)
    with pytest.raises(AirflowSensorTimeout):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, world.task.context)
    assert deleted == ["return_value", "ray_train_wait", "ray_train_failure"]


def test_a_template_that_needs_a_memory_is_found_once_rendered(world: World) -> None:
    with pytest.raises(InvalidConfig, match="compares with what was there"):
        ended(world, until="{{ 'checkpoint' }}", rendered={"until": "checkpoint"})


def test_without_it_nothing_starts_in_the_triggerer() -> None:
    with DAG("d", schedule=None) as dag:
        RayTrainSensor(task_id="wait", experiment=URI)
    task = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("wait")
    assert (task.start_from_trigger, task.start_trigger_args) == (False, None)


def test_the_row_makes_the_same_trigger_again() -> None:
    trigger = started(dag_with(experiment=URI, until="loss < 0.3", max_checkpoints_without_metric=7))
    path, row = trigger.serialize()
    assert set(RENDERED) == set(RayTrainSensor.template_fields)
    assert RayTrainSensorStartTrigger(**json.loads(json.dumps(row))).serialize() == (path, row)
    assert (row["until"], row["wait_s"], row["max_checkpoints_without_metric"]) == ("loss < 0.3", 5, 7)
