"""What an asset's last published model was, as Airflow keeps it: its events, and an entry in its state store.

The entry is the bar that a new model must pass: a person sees it beside the asset in Airflow's UI and can change or delete
it. Events are registered with the task's success only, so they alone say what was really published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.core.errors import AssetEventUnreadable
from airflow_provider.core.publishing import LastPublished, PublishedModel

if TYPE_CHECKING:
    from airflow.sdk import Asset

KEY = "ray_train_last_published"
_NEWEST = 10


def newest_models(asset: Asset) -> list[PublishedModel]:
    """The models of the asset's newest events, the newest first; events of others are left out."""
    # The accessor in a task's context knows inlets only. The server asks for no such declaration.
    from airflow.sdk.execution_time.context import InletEventsAccessor

    events = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri)
    found = []
    for event in events.ascending(ascending=False).limit(_NEWEST):
        try:
            found.append(PublishedModel.read(event.extra))
        except AssetEventUnreadable:
            continue
    return found


def last_kept(asset: Asset, metric: str) -> LastPublished | None:
    """The entry for the metric. None where there is none, or where it holds no number."""
    return LastPublished.read(_store(asset).get(key_of(metric)))


def keep(asset: Asset, metric: str, last: LastPublished) -> bool:
    """Write the entry. False where Airflow has no active asset of that name: no DAG schedules on it or lists it."""
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        _store(asset).set(key_of(metric), last.entry())
    except AirflowRuntimeError as error:
        if (error.error.detail or {}).get("status_code") == 404:
            return False
        raise
    return True


def key_of(metric: str) -> str:
    """Each metric has an entry of its own: values of two can't be compared."""
    return f"{KEY}:{metric}"


def _store(asset: Asset) -> Any:
    # As above: the context's accessor leaves out what an alias emits.
    from airflow.sdk.execution_time.context import AssetStateStoreAccessor

    return AssetStateStoreAccessor(name=asset.name)
