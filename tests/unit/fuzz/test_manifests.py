"""Ray's manifests, of every shape since 2.51."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from airflow_provider.core.errors import RecordUnreadable
from airflow_provider.core.manifest import Manifest, best_name, parse_manifest
from airflow_provider.core.restore import (
    AttemptCheckpoints,
    RestorePoint,
    candidates,
    registration_order,
    start_manifest,
)
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.core.strict_json import bounded_metrics
from tests.support.damage import damaged_json, examples, is_utf8, only_typed_errors
from tests.support.records import ref


def item(name: str) -> dict[str, Any]:
    return {"version": 0, "checkpoint_dir_name": name, "metrics": {"loss": 0.5, "note": "ä", "list": [1, {"a": None}]}}


ITEMS = [item(f"checkpoint_2026-11-20_23-00-00.00001{n}") for n in range(3)]
OLD: dict[str, Any] = {"version": 0, "checkpoint_results": ITEMS, "latest_checkpoint_result": ITEMS[-1]}
NESTED = OLD | {"checkpoint_results": [json.dumps(i) for i in ITEMS], "latest_checkpoint_result": json.dumps(ITEMS[-1])}
NEW = json.loads(parse_manifest(json.dumps(OLD).encode(), key="m").body(ray_version="2.60.0"))


@given(damaged_json([OLD, NESTED, NEW]))
@examples(300)
def test_a_manifest_is_read_whole_or_refused(body: bytes) -> None:
    with only_typed_errors():
        use(parse_manifest(body, key="m"))


def use(manifest: Manifest) -> None:
    """All that the product does with one."""
    again = parse_manifest(manifest.body(ray_version=manifest.ray_version), key="m")
    assert again.names == manifest.names
    registration_order(manifest)
    best_name(manifest, attribute="loss", order="max")
    read = [AttemptCheckpoints(ref=ref(1, 1), manifest=manifest)]
    for policy in (RestorePolicy(), RestorePolicy(mode="best", metric="loss")):
        for candidate in candidates(read, policy=policy):
            start = start_manifest(read, point=RestorePoint(candidate, ""), on_disk=frozenset(manifest.names))
            parse_manifest(start.body(ray_version="2"), key="m")
    for entry in manifest.entries:
        assert is_utf8([entry.name, bounded_metrics(entry.metrics)[0]])


@pytest.mark.parametrize("whole", [OLD, NESTED, NEW], ids=["old", "nested", "new"])
def test_a_manifest_cut_anywhere_is_refused(whole: dict[str, Any]) -> None:
    """A torn manifest must never look like one with fewer checkpoints."""
    body = json.dumps(whole).encode()
    for end in range(len(body)):
        with pytest.raises(RecordUnreadable):
            parse_manifest(body[:end], key="m")
