"""Finds experiments below a storage path: folders that hold owner records."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider.cli.target import open_folder
from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, RayTrainError
from airflow_provider.core.records import OwnerRecord
from airflow_provider.core.wait_parameters import experiment_path
from airflow_provider.hooks.experiment import open_experiment
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.object_store import check_prefix
from airflow_provider.storage.run_index import RunIndex

if TYPE_CHECKING:
    from airflow_provider.storage.object_store import ObjectStore

_OWNERS = "owners/"
_RUN_INDEX = re.compile(r"(^|/)runs-[0-9a-f]{12}/$")
_STORES_OWN = "/.objectstore/"
"""Locks of an experiment on a disk."""
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


@dataclass(frozen=True)
class Discovered:
    """What lies below a path."""

    experiments: list[Found]
    run_indexes: list[RunIndex]
    """The run records of tasks, from which `previous_run` chooses."""
    is_whole: bool
    """Whether no folder was too deep to be looked at."""


def find_experiments(storage_path: str, *, aws_conn_id: str | None, depth: int) -> Discovered:
    """All experiments below (or at) a path, sorted by URI. Raises the store's errors and InvalidConfig."""
    if depth < 0:
        raise InvalidConfig(f"--depth {depth} is no depth", change="0 looks at the path alone")
    root = experiment_path(storage_path)
    store = open_folder(root, aws_conn_id=aws_conn_id)
    folders = _walk(store, depth=depth)

    def opened(path: str) -> ObjectStore:
        return open_experiment(f"{root}/{path}".rstrip("/"), aws_conn_id=aws_conn_id, storage_path=root)

    def read(path: str) -> Found | None:
        records = ExperimentRecords(opened(path))
        uri = f"{root}/{path}".rstrip("/")
        try:
            newest = records.newest_owner()
        except RayTrainError as error:
            return Found(uri, records, None, error)
        # On a disk, the folder of an experiment that was deleted is still there.
        return Found(uri, records, newest[1]) if newest is not None else None

    with ThreadPoolExecutor(_READERS) as pool:
        experiments = [found for found in pool.map(read, sorted(folders.experiments)) if found is not None]
    return Discovered(experiments, [RunIndex(opened(path)) for path in folders.run_indexes], folders.is_whole)


@dataclass
class _Folders:
    """Paths relative to the store, without a slash at the end."""

    experiments: list[str] = field(default_factory=list)
    run_indexes: list[str] = field(default_factory=list)
    is_whole: bool = True


def _walk(store: ObjectStore, *, depth: int) -> _Folders:
    """Level by level. An experiment's own folders are not listed; others in it are, for `experiment_name` may be `a` and `a/b`."""
    found, level, num_listed = _Folders(), [""], 0
    for _ in range(depth + 1):
        if not level:
            break  # whatever depth was asked for
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
            is_experiment = f"{folder}{_OWNERS}" in inside
            if is_experiment:
                found.experiments.append(folder.rstrip("/"))
            for name in inside:
                if _RUN_INDEX.search(name):
                    found.run_indexes.append(name.rstrip("/"))
                elif not (is_experiment and layout.is_ours(name.removeprefix(folder))) and _can_hold_experiments(name):
                    below.append(name)
        level = below
    found.is_whole = not level
    return found


def _can_hold_experiments(folder: str) -> bool:
    """Not where no key of ours can begin so: others' folders may be called anything, `a//` too."""
    try:
        check_prefix(folder)
    except InvalidConfig:
        return False
    return not folder.endswith(_STORES_OWN)
