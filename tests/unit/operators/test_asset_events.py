"""Asset events of a finished training: which outlets fire, with what, and never from a process that was replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider.assets.model import GatedAsset
from airflow_provider.core import layout
from airflow_provider.core.errors import RayJobFailed, Superseded
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.records import RestoredRecord
from airflow_provider.core.spec import CheckpointConfig
from tests.support.experiment import ref
from tests.support.fake_airflow import refused
from tests.support.fake_assets import START, FakeAssets, fake_assets
from tests.support.operator_run import World, running_world
from tests.support.records import outcome

CHURN = Asset("churn")
GOOD = Asset("churn_good")
KEY = ("churn_good", "ray_train_last_published:epoch")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_world(monkeypatch) as world:
        yield world


@pytest.fixture
def assets(monkeypatch: pytest.MonkeyPatch) -> FakeAssets:
    return fake_assets(monkeypatch)


def gated(**changes: Any) -> GatedAsset:
    """The bench's checkpoints report their number as `epoch`."""
    return GatedAsset(GOOD, **{"metric": "epoch", "mode": "max", "better_than_last": True, **changes})


def trained(world: World, *outlets: Any, num_checkpoints: int = 3, **changes: Any) -> dict[str, Any]:
    """A whole training with its last checkpoint's `epoch` at `num_checkpoints - 1`. Returns the task's result."""
    trigger = world.defer(world.operator(outlets=list(outlets), **changes))
    world.succeed(trigger, num_checkpoints=num_checkpoints)
    world.task.outlet_events = OutletEventAccessors()  # the resume is a new process
    result: dict[str, Any] = world.resume(trigger, operator=world.operator(outlets=list(outlets), **changes))
    return result


def test_a_plain_outlet_says_where_the_model_is_and_how_good(world: World, assets: FakeAssets) -> None:
    result = trained(world, CHURN, progress_metric="epoch")
    (event,) = assets.succeed(world.task.outlet_events)
    extra = event["extra"]
    assert event["asset"] == "churn"
    assert extra["checkpoint"] == result["latest_checkpoint"]["uri"]
    assert extra["checkpoint"] == f"{result['experiment']}/g000001/attempts/000001/checkpoint_2"
    assert (extra["metrics"], extra["epoch"], extra["selected"]) == ({"epoch": 2}, 2, "latest")
    assert (extra["experiment"], extra["generation"], extra["attempt"]) == (result["experiment"], 1, 1)
    assert (extra["dag_id"], extra["run_id"], extra["map_index"]) == ("d", world.task.ti.run_id, -1)
    assert (extra["restored_from"], extra["submission_id"]) == (None, result["submission_id"])
    assert "t0ken" not in json.dumps(extra, allow_nan=False)
    assert result["published"]["churn"]["published"] is True
    assert assets.asked == [], "a plain outlet needs no question"


def test_a_reference_to_an_asset_is_an_outlet_too(world: World, assets: FakeAssets) -> None:
    result = trained(world, Asset.ref(name="defined-elsewhere"))
    (event,) = assets.succeed(world.task.outlet_events)
    assert event["asset"] == "defined-elsewhere"
    assert event["extra"]["checkpoint"]
    assert list(result["published"]) == ["defined-elsewhere"]


def test_a_training_without_outlets_asks_and_sets_nothing(world: World, assets: FakeAssets) -> None:
    assert trained(world)["published"] == {}
    assert len(world.task.outlet_events) == 0
    assert assets.asked == []


def test_an_alias_of_the_authors_own_is_left_alone(world: World, assets: FakeAssets) -> None:
    assert trained(world, AssetAlias("theirs"))["published"] == {}
    assert assets.succeed(world.task.outlet_events) == []


def test_what_a_hook_of_the_author_put_into_the_event_stays(world: World, assets: FakeAssets) -> None:
    trigger = world.defer()
    world.succeed(trigger)
    world.task.outlet_events[CHURN].extra = {"team": "growth"}
    world.resume(trigger, operator=world.operator(outlets=[CHURN]))
    (event,) = assets.succeed(world.task.outlet_events)
    assert event["extra"]["team"] == "growth"
    assert event["extra"]["checkpoint"]


def test_the_best_checkpoint_is_published_where_the_author_says_what_is_best(world: World, assets: FakeAssets) -> None:
    trigger = world.defer()
    names = world.bench.commit("checkpoint_0", "checkpoint_1")
    record = outcome(latest_checkpoint=names[1], best_checkpoint=names[0])
    world.end(world.server.jobs[trigger.submission_id], "SUCCEEDED", record=record)
    config = CheckpointConfig(checkpoint_score_attribute="epoch", checkpoint_score_order="min")
    world.resume(trigger, operator=world.operator(outlets=[CHURN], checkpoint_config=config))
    (event,) = assets.succeed(world.task.outlet_events)
    assert event["extra"]["checkpoint"].endswith(names[0])
    assert (event["extra"]["selected"], event["extra"]["metrics"]) == ("best", {"epoch": 0})


def test_a_retry_that_collects_a_finished_training_emits_its_event(world: World, assets: FakeAssets) -> None:
    """The worker died with the trigger's event in its hand; nobody had published yet."""
    trigger = world.defer(world.operator(outlets=[CHURN]))
    world.succeed(trigger)
    world.next_try()
    world.operator(outlets=[CHURN]).execute(world.task.context)
    (event,) = assets.succeed(world.task.outlet_events)
    assert event["extra"]["attempt"] == 1
    assert world.server.num_posts == 1


def test_a_restored_training_says_what_it_continued(world: World, assets: FakeAssets) -> None:
    trigger = world.defer()
    (name,) = world.bench.commit("checkpoint_0")
    world.end(world.server.jobs[trigger.submission_id], "FAILED", record=outcome("failed"))
    with pytest.raises(RayJobFailed):
        world.resume(trigger)
    world.next_try()
    again = world.defer()
    world.bench.store.put_raw(
        layout.restored(1, 2), RestoredRecord(checkpoint=name, reason="the newest", created_at=START).body()
    )
    world.succeed(again)
    world.resume(again, operator=world.operator(outlets=[CHURN]))
    (event,) = assets.succeed(world.task.outlet_events)
    assert event["extra"]["attempt"] == 2
    assert event["extra"]["restored_from"] == f"{event['extra']['experiment']}/g000001/{name}"


def test_a_replaced_process_emits_nothing_and_keeps_nothing(world: World, assets: FakeAssets) -> None:
    """Airflow archived this task instance while it collected: the marker is refused."""
    trigger = world.defer(world.operator(outlets=[CHURN, gated()]))
    world.succeed(trigger)
    world.task.store.refusal = refused(404)
    with pytest.raises(Superseded):
        world.resume(trigger, operator=world.operator(outlets=[CHURN, gated()]))
    assert assets.succeed(world.task.outlet_events) == []
    assert assets.state == {}


def test_a_failed_training_emits_nothing(world: World, assets: FakeAssets) -> None:
    trigger = world.defer(world.operator(outlets=[CHURN, gated()]))
    world.end(world.server.jobs[trigger.submission_id], "FAILED", record=outcome("failed"))
    with pytest.raises(RayJobFailed):
        world.resume(trigger, operator=world.operator(outlets=[CHURN, gated()]))
    assert assets.succeed(world.task.outlet_events) == []


def test_a_mapped_task_says_which_one_it_is(world: World, assets: FakeAssets) -> None:
    world.task.ti.map_index = 4
    trained(world, CHURN)
    (event,) = assets.succeed(world.task.outlet_events)
    assert event["extra"]["map_index"] == 4


def test_the_first_model_passes_the_gate_and_is_kept(world: World, assets: FakeAssets) -> None:
    result = trained(world, gated(threshold=1))
    (event,) = assets.succeed(world.task.outlet_events)
    assert event["asset"] == "churn_good"
    assert event["extra"]["checkpoint"] == result["latest_checkpoint"]["uri"]
    assert result["published"]["churn_good"] == {
        "published": True,
        "reason": "epoch 2 is at least 1 and the first one: published",
        "value": 2.0,
        "last": None,
    }
    assert assets.state == {
        KEY: {"value": 2.0, "checkpoint": event["extra"]["checkpoint"], "run_id": world.task.ti.run_id}
    }


@pytest.mark.parametrize(
    ("kept", "published", "reason"),
    [
        ({"value": 1.0, "checkpoint": "s3://c", "run_id": "r7"}, True, "epoch 2 is better than 1 of run r7: published"),
        (1, True, "epoch 2 is better than 1: published"),
        ({"value": 2.0, "run_id": "r7"}, False, "epoch 2 is not better than 2 of run r7: not published"),
        ({"value": 3.0, "run_id": "r7"}, False, "epoch 2 is not better than 3 of run r7: not published"),
        ({"value": "many"}, True, "epoch 2 is the first one: published"),
    ],
)
def test_a_model_is_published_when_it_is_better_than_the_last(
    world: World, assets: FakeAssets, kept: Any, published: bool, reason: str
) -> None:
    """A number that a person put there counts; what can't be read counts as nothing."""
    assets.state[KEY] = kept
    result = trained(world, gated())
    assert result["published"]["churn_good"]["reason"] == reason
    assert len(assets.succeed(world.task.outlet_events)) == published
    assert (assets.state[KEY] == kept) is not published


def test_without_a_kept_one_the_newest_event_with_the_metric_counts(world: World, assets: FakeAssets) -> None:
    """The entry was lost, or the gate is new on an asset that had events before."""
    assets.emit("churn_good", {"checkpoint": "s3://a", "metrics": {"epoch": 9}, "run_id": "old"})
    assets.emit("churn_good", {"checkpoint": "s3://b", "metrics": {"epoch": 5}, "run_id": "r5"})
    assets.emit("churn_good", {"checkpoint": "s3://c", "metrics": {"loss": 1}})
    assets.emit("churn_good", {"by": "hand"})
    reason = trained(world, gated())["published"]["churn_good"]["reason"]
    assert reason == "epoch 2 is not better than 5 of run r5: not published"


def test_a_process_that_dies_between_entry_and_event_loses_no_event(world: World, assets: FakeAssets) -> None:
    """The entry is this run's own: the next process of it publishes all the same, and says so."""
    trained(world, gated())
    world.task.outlet_events = OutletEventAccessors()
    world.next_try()
    result = world.operator(outlets=[gated()]).execute(world.task.context)
    assert len(assets.succeed(world.task.outlet_events)) == 1
    assert result["published"]["churn_good"]["reason"] == "epoch 2 is this run's own: published"


def test_a_finished_try_that_airflow_runs_again_emits_no_second_event(world: World, assets: FakeAssets) -> None:
    trained(world, gated())
    assets.succeed(world.task.outlet_events)
    assets.emit("churn_good", {"checkpoint": "s3://other", "metrics": {"epoch": 9}})
    world.task.outlet_events = OutletEventAccessors()
    world.next_try()
    result = world.operator(outlets=[gated()]).execute(world.task.context)
    assert assets.succeed(world.task.outlet_events) == []
    assert result["published"]["churn_good"]["published"] is True


@pytest.mark.parametrize(("theirs", "published"), [(9.0, False), (1.5, True)])
def test_of_two_runs_that_end_together_the_worse_gives_way(
    world: World, assets: FakeAssets, theirs: float, published: bool
) -> None:
    """The other run's entry lands between our writing and our second look."""

    def land() -> None:
        assets.after_set = lambda: None
        assets.state[KEY] = {"value": theirs, "checkpoint": "s3://theirs", "run_id": "theirs"}

    assets.after_set = land
    result = trained(world, gated())
    assert result["published"]["churn_good"]["published"] is published
    assert len(assets.succeed(world.task.outlet_events)) == published
    assert assets.state[KEY]["value"] == max(theirs, 2.0), "the entry ends at the better one"


def test_an_asset_that_no_dag_refers_to_is_compared_by_its_events(
    world: World, assets: FakeAssets, capsys: pytest.CaptureFixture[str]
) -> None:
    assets.is_active = False
    assets.emit("churn_good", {"checkpoint": "s3://a", "metrics": {"epoch": 1}, "run_id": "r1"})
    assert trained(world, gated())["published"]["churn_good"]["published"] is True
    assert "Airflow keeps no state for it yet, since no DAG schedules on it" in capsys.readouterr().out


def test_a_missing_metric_emits_nothing_and_the_task_succeeds(world: World, assets: FakeAssets) -> None:
    result = trained(world, CHURN, gated(metric="val_loss"))
    assert result["published"]["churn_good"]["reason"] == (
        "the checkpoint has no metric val_loss; it has epoch: not published"
    )
    assert [e["asset"] for e in assets.succeed(world.task.outlet_events)] == ["churn"]


def test_a_missing_metric_refuses_the_training_where_the_author_wants_that(world: World, assets: FakeAssets) -> None:
    """Refused before it is accepted, so that a clear restores it instead of training anew. A retry says the same."""
    with pytest.raises(RayJobFailed) as caught:
        trained(world, CHURN, gated(metric="val_loss", missing_metric="fail"))
    assert caught.value.failure.kind is FailureKind.USER
    assert "val_loss" in caught.value.failure.reason
    record = world.records.collected(ref(1, 1))
    assert record is not None
    assert record.record.accepted is False
    assert assets.succeed(world.task.outlet_events) == []
    world.next_try(is_clear=True)
    again = world.defer(world.operator(outlets=[gated()]))
    assert (again.generation, again.attempt) == (1, 2), "restores"


def test_two_gates_on_one_asset_have_a_verdict_each(world: World, assets: FakeAssets) -> None:
    result = trained(world, gated(), gated(metric="loss", mode="min", alias="by-loss"))
    assert {k: v["published"] for k, v in result["published"].items()} == {
        "churn_good": True,
        "churn_good (by-loss)": False,
    }
    assert len(assets.succeed(world.task.outlet_events)) == 1
