"""The asset events of a finished training: the `extra` of plain outlets, and gated ones through their alias.

Set in the process that ends the task with success, and after it confirmed that no newer one replaced it: Airflow registers
events with that success only, and drops what was set before a deferral.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.definitions.asset import AssetRef

from airflow_provider.assets.model import GatedAsset
from airflow_provider.assets.published import keep, last_kept, newest_models
from airflow_provider.core.publishing import ALWAYS, LastPublished, PublishedModel, Verdict, judge, published_model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.sdk import Context

    from airflow_provider.core.record_parts import AttemptRef
    from airflow_provider.operators.collecting import Published
    from airflow_provider.operators.request import TrainingRequest

MAX_ROUNDS = 3
"""Times another run may replace the last published model under a gate before the gate's word stands."""
_NO_STATE = (
    "Airflow keeps no state for it yet, since no DAG schedules on it or has it in inlets or outlets beside the gate; compared "
    "with its newest event. With inlets=[...] of it on this task there is state from the first night on"
)


def model_of(published: Published, request: TrainingRequest, ref: AttemptRef) -> PublishedModel:
    """The model that a finished training publishes."""
    return published_model(
        published.lineage,
        published.result,
        ref=ref,
        key=request.key,
        progress_metric=request.training.progress_metric,
    )


def missing_metric(outlets: Iterable[Any], model: PublishedModel) -> str | None:
    """Why the success is refused, where an author wants the task to fail for a metric that was never reported."""
    for outlet in outlets:
        if isinstance(outlet, GatedAsset) and outlet.gate.missing_metric == "fail":
            missing = outlet.gate.missing(model)
            if missing is not None:
                return f"nothing can be published to the asset {outlet.asset.name}: {missing} (missing_metric='fail')"
    return None


def emit(outlets: Iterable[Any], model: PublishedModel, *, context: Context, log: Any) -> dict[str, Any]:
    """Set the task's asset events. Returns each outlet's verdict by its asset's name, for the task's result."""
    verdicts: dict[str, Any] = {}
    for outlet in outlets:
        if isinstance(outlet, GatedAsset):
            name, verdict = outlet.asset.name, _emit_gated(outlet, model, context=context, log=log)
        elif isinstance(outlet, (Asset, AssetRef)):
            accessor = context["outlet_events"][outlet]
            accessor.extra = {**accessor.extra, **model.extra()}
            name, verdict = _name(outlet), ALWAYS
        else:
            continue
        log.info("asset %s: %s", name, verdict.reason)
        verdicts[f"{name} ({outlet.name})" if name in verdicts else name] = verdict.shown()
    return verdicts


def _name(outlet: Asset | AssetRef) -> str:
    return str(getattr(outlet, "name", None) or getattr(outlet, "uri", ""))


def _emit_gated(outlet: GatedAsset, model: PublishedModel, *, context: Context, log: Any) -> Verdict:
    if outlet.gate.missing(model) is None:
        newest = newest_models(outlet.asset)
        if any(event.checkpoint == model.checkpoint for event in newest):
            return Verdict(published=True, reason="this checkpoint's event is there already: no second one")
        verdict = _decide(outlet, model, newest=newest, log=log)
    else:
        verdict = judge(outlet.gate, model, last=None)
    if verdict.published:
        context["outlet_events"][outlet].add(outlet.asset, extra=model.extra())
    return verdict


def _decide(outlet: GatedAsset, model: PublishedModel, *, newest: list[PublishedModel], log: Any) -> Verdict:
    """The gate's verdict; where it looks at the last one, that is this model from now on.

    Airflow has no conditional write, so two runs that end together may read the same entry. Each writes its own and looks
    again: the worse one then sees the better and gives way, unless the better one wrote and looked between the worse one's
    reading and writing.
    """
    gate, asset = outlet.gate, outlet.asset
    if not gate.better_than_last:
        return judge(gate, model, last=None)
    last = last_kept(asset, gate.metric) or LastPublished.of_events(gate, newest)
    verdict = judge(gate, model, last=last)
    for _ in range(MAX_ROUNDS):
        if not verdict.published or verdict.value is None:
            break
        if not keep(asset, gate.metric, LastPublished(verdict.value, model.checkpoint, model.run_id)):
            log.warning("asset %s: %s", asset.name, _NO_STATE)
            break
        now = last_kept(asset, gate.metric)
        if now is None or now.checkpoint == model.checkpoint:
            break
        verdict = judge(gate, model, last=now)
    return verdict
