"""Finds experiments below a storage path: folders that hold owner records."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider.cli.target import open_folder
from airflow_provider.core.errors import InvalidConfig, RayTrainError
from airflow_provider.core.records import OwnerRecord
from airflow_provider.hooks.experiment import open_experiment
from airflow_provider.sensors.parameters import experiment_path
from airflow_provider.storage.experiment_records import ExperimentRecords

if TYPE_CHECKING:
    from airflow_provider.storage.object_store import ObjectStore

_OWNERS = "owners/"
_READERS = 8
MAX_FOLDERS = 20_000
"""A path that holds more is another kind of bucket."""


@dataclass(frozen=True)
class Found:
    """An experiment with its newest owner, or why that can't be read."""

    uri: str
    records: ExperimentRecords
    owner: OwnerRecord | None
    error: RayTrainError | None = None


def find_experiments(storage_path: str, *, aws_conn_id: str | None, depth: int) -> list[Found]:
    """All experiments below (or at) a path, sorted by URI. Raises the store's errors and InvalidConfig."""
    root = experiment_path(storage_path)
    store = open_folder(root, aws_conn_id=aws_conn_id)
    paths = sorted(_experiment_folders(store, depth=depth))

    def read(path: str) -> Found | None:
        uri = f"{root}/{path}".rstrip("/")
        records = ExperimentRecords(open_experiment(uri, aws_conn_id=aws_conn_id, storage_path=root))
        try:
            newest = records.newest_owner()
        except RayTrainError as error:
            return Found(uri, records, None, error)
        # On a disk, the folder of an experiment that was deleted is still there.
        return Found(uri, records, newest[1]) if newest is not None else None

    with ThreadPoolExecutor(_READERS) as pool:
        return [found for found in pool.map(read, paths) if found is not None]


def _experiment_folders(store: ObjectStore, *, depth: int) -> Iterator[str]:
    """Paths relative to the store, without a slash at the end; nothing inside an experiment is listed."""
    level, num_listed = [""], 0
    for _ in range(depth + 1):
        num_listed += len(level)
        if num_listed > MAX_FOLDERS:
            raise InvalidConfig(
                f"There are more than {MAX_FOLDERS:,} folders below {store.uri}",
                known="an experiment lies at storage_path/dag/task/run, or where experiment_name puts it",
                change="name a path nearer to the experiments, or a smaller --depth",
            )
        with ThreadPoolExecutor(_READERS) as pool:
            listed = list(pool.map(store.list_folders, level))
        below: list[str] = []
        for folder, inside in zip(level, listed, strict=True):
            if f"{folder}{_OWNERS}" in inside:
                yield folder.rstrip("/")
            else:
                below.extend(inside)
        level = below
