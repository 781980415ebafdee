"""Whether a model is good enough to publish, in a sentence with numbers; and what an event that isn't ours reads as."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.errors import AssetEventUnreadable, InvalidConfig
from airflow_provider.core.failure import FailureKind
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import Lineage, LineageCheckpoint
from airflow_provider.core.publishing import LastPublished, MetricGate, PublishedModel, judge, published_model
from tests.support.records import ref

LAST = LastPublished(0.29, "s3://b/last", "r7")


def gate(**changes: Any) -> MetricGate:
    return MetricGate.rendered({"metric": "val_loss", "mode": "min", **changes}, parameter="GatedAsset")


def model(value: object = 0.31, **changes: Any) -> PublishedModel:
    return PublishedModel(**{"checkpoint": "s3://b/new", "metrics": {"val_loss": value}, **changes})


@pytest.mark.parametrize(
    ("changes", "value", "last", "published", "reason"),
    [
        ({"threshold": 0.3}, 0.31, None, False, "val_loss 0.31 is not at most 0.3: not published"),
        ({"threshold": 0.3}, 0.3, None, True, "val_loss 0.3 is at most 0.3: published"),
        ({"threshold": 0.3, "mode": "max"}, 0.3, None, True, "val_loss 0.3 is at least 0.3: published"),
        ({"threshold": 0.3, "mode": "max"}, 0.2, None, False, "val_loss 0.2 is not at least 0.3: not published"),
        ({"better_than_last": True}, 0.31, None, True, "val_loss 0.31 is the first one: published"),
        (
            {"better_than_last": True},
            0.31,
            LAST,
            False,
            "val_loss 0.31 is not better than 0.29 of run r7: not published",
        ),
        (
            {"better_than_last": True},
            0.29,
            LAST,
            False,
            "val_loss 0.29 is not better than 0.29 of run r7: not published",
        ),
        ({"better_than_last": True}, 0.28, LAST, True, "val_loss 0.28 is better than 0.29 of run r7: published"),
        (
            {"better_than_last": True, "mode": "max"},
            0.31,
            LAST,
            True,
            "val_loss 0.31 is better than 0.29 of run r7: published",
        ),
        (
            {"better_than_last": True, "min_delta": 0.05},
            0.25,
            LAST,
            False,
            "val_loss 0.25 is not better than 0.29 of run r7 by more than 0.05: not published",
        ),
        (
            {"better_than_last": True, "threshold": 1},
            0,
            LAST,
            True,
            "val_loss 0 is at most 1 and better than 0.29 of run r7: published",
        ),
        ({"threshold": 0.3}, float("nan"), None, False, "val_loss is nan: not published"),
        ({"threshold": 0.3, "mode": "max"}, "Infinity", None, False, "val_loss is inf: not published"),
        ({"threshold": 0.3}, "-Infinity", None, False, "val_loss is -inf: not published"),
        ({"threshold": 0.3, "mode": "max"}, 10**400, None, False, "val_loss is inf: not published"),
        ({"threshold": 0.3}, True, None, False, "the checkpoint's metric val_loss is no number: not published"),
        ({"threshold": 0.3}, "0.1", None, False, "the checkpoint's metric val_loss is no number: not published"),
    ],
)
def test_the_verdict_has_the_numbers(
    changes: dict[str, Any], value: object, last: LastPublished | None, published: bool, reason: str
) -> None:
    verdict = judge(gate(**changes), model(value), last=last)
    assert (verdict.published, verdict.reason) == (published, reason)
    json.dumps(verdict.shown(), allow_nan=False)


def test_a_model_is_never_worse_than_itself() -> None:
    """An earlier process of the same training kept it and died before its event."""
    own = LastPublished(0.31, "s3://b/new", "r8")
    assert judge(gate(better_than_last=True, min_delta=1), model(), last=own).published
    assert not judge(gate(better_than_last=True, threshold=0.3), model(), last=own).published


def test_a_training_without_a_checkpoint_passes_no_gate() -> None:
    verdict = judge(gate(threshold=1), model(checkpoint=None), last=None)
    assert verdict.reason == "the training committed no checkpoint: not published"


@given(st.floats(allow_nan=True) | st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_whatever_is_published_is_really_better(value: float, last: float, is_max: bool) -> None:
    chosen = gate(better_than_last=True, mode="max" if is_max else "min")
    verdict = judge(chosen, model(value), last=LastPublished(last, "s3://b/other"))
    assert not verdict.published or (value > last if is_max else value < last)
    json.dumps(verdict.shown(), allow_nan=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"min_delta": 0.1, "threshold": 1},
        {"threshold": float("nan")},
        {"threshold": "low"},
        {"better_than_last": True, "min_delta": -1},
        {"threshold": 1, "mode": "lower"},
        {"threshold": 1, "metric": ""},
        {"threshold": 1, "missing_metric": "ignore"},
        {"threshold": 1, "minimum": 1},
    ],
)
def test_a_gate_that_makes_no_sense_is_refused_when_the_dag_is_parsed(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="GatedAsset is not valid"):
        gate(**wrong)


@pytest.mark.parametrize(
    "kept", [None, "x", [], {}, {"value": None}, {"value": True}, {"value": float("nan")}, True, "nan", 10**400]
)
def test_an_entry_without_a_number_is_no_bar(kept: object) -> None:
    assert LastPublished.read(kept) is None


@pytest.mark.parametrize("kept", [0.5, "0.5", {"value": 0.5}, {"value": "0.5", "checkpoint": 7}], ids=repr)
def test_a_number_that_a_person_put_there_is_the_bar(kept: object) -> None:
    assert LastPublished.read(kept) == LastPublished(0.5)


def test_an_entry_survives_its_own_writing() -> None:
    assert LastPublished.read(json.loads(json.dumps(LAST.entry()))) == LAST


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (None, "nothing"),
        ({}, "nothing"),
        ({"by": "hand"}, "by"),
        ({"checkpoint": 7}, "checkpoint"),
        ({"checkpoint": "s3://b/c", "metrics": [1]}, "metrics"),
        ({"checkpoint": None, "run_id": "r1"}, "r1"),
        ({"checkpoint": ""}, "no checkpoint"),
    ],
)
def test_an_event_without_our_fields_is_a_typed_error(extra: object, said: str) -> None:
    """Never retried: the same event says the same next time."""
    with pytest.raises(AssetEventUnreadable, match=said) as caught:
        PublishedModel.read(extra)
    assert caught.value.failure.kind is FailureKind.CONFIG
    assert not caught.value.failure.is_retryable


def test_an_event_of_a_newer_release_is_read_for_what_is_known() -> None:
    extra = {**model().extra(), "schema_version": 9, "colour": "blue"}
    assert PublishedModel.read(json.loads(json.dumps(extra))).checkpoint == "s3://b/new"


def lineage(**metrics: Any) -> Lineage:
    checkpoint = LineageCheckpoint(
        name="g000001/c1",
        attempt="g1/a1",
        parent=None,
        state="committed",
        metrics=metrics,
        size_bytes=None,
        reported_at=None,
        late=False,
    )
    return Lineage(experiment="s3://b/e", tries=(), attempts=(), checkpoints=(checkpoint,))


def made(progress_metric: str | None = None, **metrics: Any) -> PublishedModel:
    latest = {"name": "g000001/c1", "uri": "s3://b/e/g000001/c1", "metrics": {}}
    result = {"best_checkpoint": None, "latest_checkpoint": latest, "restored_from": "g000001/c0", "submission_id": "s"}
    key = TaskInstanceKey("d", "r", "t", 2)
    return published_model(lineage(**metrics), result, ref=ref(1, 3), key=key, progress_metric=progress_metric)


@pytest.mark.parametrize(
    ("progress_metric", "metrics", "epoch"),
    [
        (None, {"epoch": 4}, 4),
        ("step", {"epoch": 4, "step": 900}, 900),
        ("step", {"epoch": 4}, 4),
        (None, {"loss": 1}, None),
        (None, {"epoch": [1]}, None),
        (None, {"epoch": True}, None),
    ],
)
def test_the_epoch_is_the_progress_metrics_value(
    progress_metric: str | None, metrics: dict[str, Any], epoch: object
) -> None:
    assert made(progress_metric, **metrics).epoch == epoch


def test_an_event_stays_small_and_strict_whatever_is_reported() -> None:
    extra = made(**{f"m{n}": float("nan") for n in range(2_000)}, text="x" * 10_000).extra()
    assert len(json.dumps(extra, allow_nan=False)) < 12_000
    assert extra["metrics_cut"] is True
    assert extra["restored_from"] == "s3://b/e/g000001/c0"
    assert (extra["attempt"], extra["map_index"]) == (3, 2)


def test_a_gate_says_when_its_metric_may_have_been_left_out_for_size() -> None:
    verdict = judge(gate(threshold=1), made(**{f"m{n}": float(n) for n in range(2_000)}), last=None)
    assert "left out for their size" in verdict.reason
    assert len(verdict.reason) < 500
