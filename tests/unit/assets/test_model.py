"""A gated outlet in Airflow's hands: parsed, serialised, mapped, copied; and the newest event for a consumer."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.collection import _get_dag_assets
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.serialization.serialized_objects import LazyDeserializedDAG

from airflow_provider.assets.model import GatedAsset, newest_model
from airflow_provider.core.errors import AssetEventUnreadable, InvalidConfig
from airflow_provider.operators.ray_train import RayTrainOperator

CHURN = Asset("churn")
GATED = GatedAsset(CHURN, metric="val_loss", mode="min", threshold=0.3, better_than_last=True)
COMMON: dict[str, Any] = {"task_id": "train", "storage_path": "s3://models/churn", "train_loop": "m:loop"}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])  # noqa: S301
def test_a_copy_keeps_asset_and_gate(copied: Callable[[Any], Any]) -> None:
    again = copied(GATED)
    assert again == GATED
    assert (again.asset, again.gate, again.name) == (CHURN, GATED.gate, "churn-gated-by-val_loss")


@pytest.mark.parametrize("is_mapped", [False, True])
def test_airflow_sees_an_alias_and_the_worker_sees_the_gate(is_mapped: bool) -> None:
    """Mapped too: what an operator's `__init__` adds to the outlets is unknown to Airflow there, so the author writes them."""
    with DAG("d", schedule=None) as dag:
        if is_mapped:
            RayTrainOperator.partial(**COMMON, outlets=[CHURN, GATED]).expand(train_loop_config=[{"a": 1}])
        else:
            RayTrainOperator(**COMMON, outlets=[CHURN, GATED])
    task = dag.get_task("train")
    assert task.outlets[1].gate.threshold == 0.3
    stored = list(_get_dag_assets(LazyDeserializedDAG.from_dag(dag), of=object, inlets=False))
    assert [(name, type(o).__name__, o.name) for name, o in stored] == [
        ("train", "SerializedAsset", "churn"),
        ("train", "SerializedAssetAlias", "churn-gated-by-val_loss"),
    ]


def test_the_alias_can_be_named() -> None:
    assert GatedAsset(CHURN, metric="m", mode="max", threshold=1, alias="by-m").name == "by-m"
    assert isinstance(GATED, AssetAlias)


def test_a_gate_takes_an_asset() -> None:
    with pytest.raises(InvalidConfig, match="takes an Asset, not a str"):
        GatedAsset("churn", metric="m", mode="max", threshold=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="threshold, better_than_last"):
        GatedAsset(CHURN, metric="m", mode="max")


def event(second: int, **extra: Any) -> SimpleNamespace:
    moment = datetime(2026, 11, 29, tzinfo=timezone.utc) + timedelta(seconds=second)
    return SimpleNamespace(timestamp=moment, extra=extra)


def test_the_newest_of_several_events_is_read() -> None:
    """Airflow may start one run for several events, in any order."""
    events = [event(2, checkpoint="s3://b/2"), event(3, checkpoint="s3://b/3"), event(1, checkpoint="s3://b/1")]
    assert newest_model(events).checkpoint == "s3://b/3"


def test_no_event_or_a_strangers_is_a_typed_error() -> None:
    with pytest.raises(AssetEventUnreadable, match="no event"):
        newest_model([])
    with pytest.raises(AssetEventUnreadable, match="names no checkpoint"):
        newest_model([event(1, checkpoint="s3://b/1"), event(2, by="hand")])
