"""What a DAG author writes: an outlet that fires only for a good enough model, and how a consumer reads its event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from airflow.sdk import Asset, AssetAlias

from airflow_provider.core.errors import AssetEventUnreadable, InvalidConfig
from airflow_provider.core.publishing import MetricGate, PublishedModel


class GatedAsset(AssetAlias):
    """An outlet of a training that emits an event of `asset` only when its model passes a gate.

    A plain outlet always fires, so this is an `AssetAlias` (Airflow's way to decide at run time). Consumers schedule on
    `asset` itself. Works in `outlets` of `RayTrainOperator`, also in `partial(outlets=[...])` of a mapped one.

    :param asset: the asset that gets the event; its name stays the same from run to run.
    :param metric: reported with the checkpoint that is published.
    :param mode: `min` where less is better, `max` where more is.
    :param threshold: at most this with `min`, at least this with `max`.
    :param better_than_last: better than the last model published to the asset, whichever DAG or run it was of.
    :param min_delta: better by more than this.
    :param missing_metric: `skip` (no event, the task succeeds) or `fail` when the training reported no such metric.
    :param alias: the alias's own name, which Airflow shows between task and asset.
    """

    def __init__(
        self,
        asset: Asset,
        *,
        metric: str,
        mode: Literal["min", "max"],
        threshold: float | None = None,
        better_than_last: bool = False,
        min_delta: float = 0.0,
        missing_metric: Literal["skip", "fail"] = "skip",
        alias: str | None = None,
    ) -> None:
        if not isinstance(asset, Asset):
            raise InvalidConfig(
                f"GatedAsset takes an Asset, not a {type(asset).__name__}", change='pass Asset("name-of-the-model")'
            )
        given = {"metric": metric, "mode": mode, "threshold": threshold, "better_than_last": better_than_last}
        given |= {"min_delta": min_delta, "missing_metric": missing_metric}
        gate = MetricGate.rendered(given, parameter="GatedAsset")
        super().__init__(name=alias or f"{asset.name}-gated-by-{metric}")
        self.asset, self.gate = asset, gate

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive copies and pickling: Airflow's base class would keep its own two fields only."""
        return (_rebuild, (self.asset, self.gate, self.name))


def _rebuild(asset: Asset, gate: MetricGate, alias: str) -> GatedAsset:
    return GatedAsset(asset, **gate.model_dump(), alias=alias)


def newest_model(events: Iterable[Any]) -> PublishedModel:
    """The model of the newest of some asset events, such as `triggering_asset_events[asset]` or `inlet_events[asset]`.

    One DAG run may be triggered by several events at once. Raises AssetEventUnreadable where there is none, or where the
    newest isn't of a training.
    """
    ordered = sorted(events, key=lambda event: event.timestamp)
    if not ordered:
        raise AssetEventUnreadable(
            "There is no event of the asset",
            known="nothing was published yet, or the DAG run was started by hand",
            change="train first, or pass the checkpoint in the DAG run's configuration",
        )
    return PublishedModel.read(ordered[-1].extra)
