"""Ray's list of committed checkpoints, as every supported Ray writes it and as crashes leave it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider.core.errors import RecordUnreadable
from airflow_provider.core.manifest import Manifest, ManifestEntry, best_name, parse_manifest

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
KEY = "g000001/attempts/000001/checkpoint_manager_snapshot.json"


def case(name: str, file: str = "checkpoint_manager_snapshot.json") -> Manifest:
    return parse_manifest((CASES / name / file).read_bytes(), key=KEY)


def item(name: str, **metrics: Any) -> dict[str, Any]:
    return {"version": 0, "checkpoint_dir_name": name, "metrics": metrics}


RAY_2_51 = {
    "version": 0,
    "checkpoint_results": [item("c1", loss=1.0)],
    "latest_checkpoint_result": item("c1", loss=1.0),
}
RAY_2_54 = {
    "ray_version": "2.54.0",
    "checkpoint_results": [item("c1", loss=1.0)],
    "checkpoint_report_indices": [0],
    "latest_checkpoint_result": item("c1", loss=1.0),
    "pending_training_results": [],
    "pending_validation_specs": [],
    "current_report_index": 1,
}
RAY_2_58 = RAY_2_54 | {
    "ray_version": "2.58.0",
    "validated_checkpoint_dir_names": [],
    "timed_out_validation_checkpoint_dir_names": [],
    "failed_validation_checkpoint_dir_names": [],
}
FUTURE = RAY_2_58 | {"ray_version": "2.70.0", "something_new": {"a": 1}}


@pytest.mark.parametrize("data", [RAY_2_51, RAY_2_54, RAY_2_58, FUTURE])
def test_every_schema_since_2_51_reads_the_same(data: dict[str, Any]) -> None:
    """A Ray upgrade between two tries must not lose the checkpoints."""
    manifest = parse_manifest(json.dumps(data).encode(), key=KEY)
    assert manifest.entries == (ManifestEntry("c1", {"loss": 1.0}),)
    assert manifest.latest == ManifestEntry("c1", {"loss": 1.0})
    assert manifest.ray_version == data.get("ray_version", "")


def test_entries_nested_as_json_text_are_read() -> None:
    """Some releases dump pydantic models as text inside the JSON."""
    text = json.dumps(item("c1", loss=1.0))
    data = {"checkpoint_results": [text], "latest_checkpoint_result": text}
    assert parse_manifest(json.dumps(data).encode(), key=KEY).latest == ManifestEntry("c1", {"loss": 1.0})


def test_nothing_committed_yet_is_an_answer() -> None:
    data = {"checkpoint_results": [], "latest_checkpoint_result": None}
    assert parse_manifest(json.dumps(data).encode(), key=KEY) == Manifest()


SHAPE_2_60 = {
    "ray_version",
    "checkpoint_results",
    "checkpoint_report_indices",
    "latest_checkpoint_result",
    "pending_training_results",
    "pending_validation_specs",
    "current_report_index",
    "validated_checkpoint_dir_names",
    "timed_out_validation_checkpoint_dir_names",
    "failed_validation_checkpoint_dir_names",
}


@pytest.mark.parametrize("manifest", [Manifest(), case("C21"), case("C02")])
def test_the_2_60_shape_is_written_and_read_back(manifest: Manifest) -> None:
    """2.60 refuses a manifest without any one of these fields; older ones ignore what they don't know."""
    data = json.loads(manifest.body(ray_version="2.60.0"))
    assert set(data) == SHAPE_2_60
    assert data["current_report_index"] == len(manifest.entries)
    assert data["checkpoint_report_indices"] == list(range(len(manifest.entries)))
    back = parse_manifest(manifest.body(ray_version="2.60.0"), key=KEY)
    assert (back.entries, back.latest, back.ray_version) == (manifest.entries, manifest.latest, "2.60.0")


def test_rays_own_report_indices_survive() -> None:
    """Ray numbers the next report after the highest one: a lower number would order it before older checkpoints."""
    entries = (ManifestEntry("c9"), ManifestEntry("c4"))
    data = json.loads(Manifest(entries, entries[0], report_indices=(9, 4)).body(ray_version="2.60.0"))
    assert (data["checkpoint_report_indices"], data["current_report_index"]) == ([9, 4], 10)


@pytest.mark.parametrize("indices", [(3,), (1, 2, 3)])
def test_indices_that_do_not_match_the_entries_are_not_written(indices: tuple[int, ...]) -> None:
    """Ray pairs both lists and would drop or mix up checkpoints."""
    manifest = Manifest((ManifestEntry("a"), ManifestEntry("b")), ManifestEntry("b"), report_indices=indices)
    assert json.loads(manifest.body(ray_version="2.60.0"))["checkpoint_report_indices"] == [0, 1]


def test_the_last_list_element_is_the_best_and_not_the_latest() -> None:
    """C21: with a score attribute Ray keeps the list sorted by score."""
    manifest, expected = case("C21"), json.loads((CASES / "C21" / "expect.json").read_text())
    assert manifest.latest is not None
    assert manifest.latest.name == expected["latest"]
    assert best_name(manifest, attribute="acc", order="max") == expected["best"]
    assert best_name(manifest, attribute="acc", order="min") == manifest.names[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "0.9", True, [1], 10**400])
def test_the_best_is_never_one_without_a_finite_score(value: Any) -> None:
    manifest = Manifest((ManifestEntry("odd", {"acc": value}), ManifestEntry("fair", {"acc": 0.1})))
    assert best_name(manifest, attribute="acc", order="max") == "fair"
    assert best_name(manifest, attribute="acc", order="min") == "fair"
    assert best_name(manifest, attribute="other", order="max") is None
    assert best_name(manifest, attribute=None, order="max") is None


def test_nan_in_both_dialects_is_read() -> None:
    """C53: null is what today's Ray writes for NaN, a bare NaN what an older writer left."""
    assert case("C53", "snapshot-a.json").entries[0].metrics == {"loss": None, "lr": 0.1}
    bare = case("C53", "snapshot-b.json")
    assert math.isnan(bare.entries[0].metrics["loss"])
    assert bare.latest is not None
    assert bare.latest.metrics["hi"] == -math.inf


def test_an_empty_manifest_is_not_an_empty_experiment() -> None:
    """C04: 0 bytes after a crash; starting from scratch would write over three complete checkpoints."""
    with pytest.raises(RecordUnreadable, match="0 bytes that are not JSON") as caught:
        case("C04")
    assert caught.value.key == KEY
    assert not caught.value.kind.is_retryable


def test_each_torn_prefix_of_a_manifest_is_unreadable() -> None:
    body = (CASES / "C02" / "checkpoint_manager_snapshot.json").read_bytes().rstrip()
    for length in range(len(body)):
        with pytest.raises(RecordUnreadable):
            parse_manifest(body[:length], key=KEY)


@pytest.mark.parametrize("name", ["../other/c1", "/etc", "a/../../b", "", ".", "a//b", "a/.", "c1/"])
def test_a_name_that_is_no_folder_below_the_run_is_refused(name: str) -> None:
    """Retention deletes what the manifest names."""
    data = {"checkpoint_results": [item(name)], "latest_checkpoint_result": None}
    with pytest.raises(RecordUnreadable, match="leaves the run directory"):
        parse_manifest(json.dumps(data).encode(), key=KEY)


@pytest.mark.parametrize("name", ["checkpoint_2026-11-20_10-00-00.000001", "attempts/000001/c1", "..c", "mein…ä"])
def test_names_below_the_run_are_taken(name: str) -> None:
    data = {"checkpoint_results": [item(name)], "latest_checkpoint_result": item(name)}
    assert parse_manifest(json.dumps(data).encode(), key=KEY).names == (name,)


FIELDS = st.sampled_from(
    [
        "checkpoint_results",
        "latest_checkpoint_result",
        "checkpoint_dir_name",
        "metrics",
        "checkpoint_report_indices",
        "version",
        "ray_version",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


def assert_readable_or_typed(body: bytes) -> None:
    try:
        manifest = parse_manifest(body, key=KEY)
    except RecordUnreadable:
        return
    assert parse_manifest(manifest.body(ray_version="x"), key=KEY).names == manifest.names
    best_name(manifest, attribute="loss", order="max")


@given(st.binary(max_size=40))
@example(b"\xff\xfe")
@example(b"[" * 100_000)
@example(b'{"checkpoint_results": [' + b"1" * 5_000 + b"]}")
@example(b'{"checkpoint_results": ["' + b"[" * 100_000 + b'"]}')
def test_any_bytes_are_read_or_refused_with_our_error(body: bytes) -> None:
    assert_readable_or_typed(body)


@given(JSON)
def test_any_json_is_read_or_refused_with_our_error(value: Any) -> None:
    assert_readable_or_typed(json.dumps(value).encode())


@given(st.dictionaries(FIELDS, JSON, max_size=3), JSON, JSON)
def test_any_shape_of_fields_is_read_or_refused_with_our_error(extra: dict[str, Any], entry: Any, latest: Any) -> None:
    data = extra | {"checkpoint_results": [item("c1"), entry], "latest_checkpoint_result": latest}
    assert_readable_or_typed(json.dumps(data).encode())
