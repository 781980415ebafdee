"""Reads an experiment in the interpreter that measures: ours, every object unparsed, and what plain Ray would have."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

from airflow_provider.core.layout import manifest
from airflow_provider.core.lineage import Lineage, lineage_xcom, project
from airflow_provider.operators.collecting import read_experiment
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.object_store import ObjectStore, open_object_store
from benchmarks.lineage_experiment import NUM_ATTEMPTS
from benchmarks.measure import peak_mib, reset_peak
from tests.support.counting_store import CountingStore

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def ours(uri: str) -> dict[str, float]:
    """Read all records and project them; and, timed apart, make the XCom of it, as each try does at its end."""
    found: list[Lineage] = []

    def read(store: ObjectStore) -> int:
        found.append(project(read_experiment(ExperimentRecords(store))))
        return len(found[0].checkpoints)

    figures = _measured(uri, read)
    began = time.perf_counter()
    lineage_xcom(found[0])
    return figures | {"xcom_s": time.perf_counter() - began}


def raw(uri: str) -> dict[str, float]:
    """The floor: list the objects, fetch each and parse its JSON; nothing is checked, nothing related."""

    def read(store: ObjectStore) -> int:
        bodies = [store.read(info.key) for info in list(store.list(""))]
        found = [json.loads(body.body) for body in bodies if body is not None]
        return sum(len(one.get("checkpoints", ())) for one in found)

    return _measured(uri, read)


def ray_alone(uri: str) -> dict[str, float]:
    """Ray's newest manifest: names and metrics of what was kept; no parents, attempts, files or failures."""

    def read(store: ObjectStore) -> int:
        stored = store.read(manifest(1, NUM_ATTEMPTS))
        assert stored is not None  # noqa: S101 - the experiment was written by this benchmark
        return len(json.loads(stored.body)["checkpoint_results"])

    return _measured(uri, read)


def _measured(uri: str, read: Callable[[ObjectStore], int]) -> dict[str, float]:
    store = CountingStore(open_object_store(uri, client_factory=_client))
    store.head("none")  # the SDK is loaded and the connection open, as they are when a try ends
    store.reset()
    reset_peak()
    before, began = peak_mib(), time.perf_counter()
    num_checkpoints = read(store)
    took = time.perf_counter() - began
    return {"s": took, "mib": peak_mib() - before, "calls": store.num_calls, "checkpoints": num_checkpoints}


def _client() -> S3Client:
    config = Config(s3={"addressing_style": "path"}, proxies={})
    return boto3.session.Session().client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], config=config)
