"""What an asset event says of a trained model, and whether a gate lets it out. Pure: who reads and emits is elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider.core.errors import AssetEventUnreadable
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import Lineage
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.spec import Config
from airflow_provider.core.strict_json import bounded_metrics, shortened

_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
_MAX_NAMED = 10


class PublishedModel(BaseModel):
    """The `extra` of a model's asset event: which checkpoint, how good it is, and where it comes from."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: int = 1
    checkpoint: str | None
    """URI of the checkpoint's folder; None where the training committed none."""
    selected: Literal["best", "latest"] = "latest"
    """`best` by `checkpoint_config.checkpoint_score_attribute` where that is set, else `latest`."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """What the training reported with this checkpoint."""
    metrics_cut: bool = False
    epoch: int | float | str | None = None
    """The progress metric's value at this checkpoint, where one was declared and reported; else the metric `epoch`."""
    experiment: str | None = None
    generation: int | None = None
    attempt: int | None = None
    """The attempt that ended the training."""
    submission_id: str | None = None
    restored_from: str | None = None
    """URI of the checkpoint that this attempt restored."""
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int = -1

    @classmethod
    def read(cls, extra: object) -> PublishedModel:
        """The model of an asset event's `extra`. Raises AssetEventUnreadable for an event that has no checkpoint of ours."""
        if not isinstance(extra, Mapping) or "checkpoint" not in extra:
            held = sorted(str(k)[:40] for k in extra)[:_MAX_NAMED] if isinstance(extra, Mapping) else []
            raise AssetEventUnreadable(
                "The asset event names no checkpoint",
                known=f"its extra holds {', '.join(held) or 'nothing'}",
                change="let a RayTrainOperator emit the event: list the asset in its outlets, or in a GatedAsset there",
            )
        try:
            model = cls.model_validate(dict(extra))
        except ValidationError as error:
            fields = ", ".join(sorted({str(e["loc"][0]) for e in error.errors(include_input=False)}))
            raise AssetEventUnreadable(
                "The asset event's extra can't be read", known=f"wrong fields: {fields}"
            ) from None
        if not model.checkpoint:
            raise AssetEventUnreadable(
                "The training that emitted the asset event committed no checkpoint",
                known=f"experiment {model.experiment}, run {model.run_id}",
                change="set require_new_checkpoint=True on the training, or emit through a GatedAsset",
            )
        return model

    def extra(self) -> dict[str, Any]:
        """The event's `extra`: strict JSON, a few kilobytes."""
        return self.model_dump(mode="json")


def published_model(
    lineage: Lineage,
    result: Mapping[str, Any],
    *,
    ref: AttemptRef,
    key: TaskInstanceKey,
    progress_metric: str | None,
) -> PublishedModel:
    """The model of a finished training: its best checkpoint where the author says what is best, else its latest."""
    chosen = result["best_checkpoint"] or result["latest_checkpoint"]
    known = {c.name: c for c in lineage.checkpoints}.get(chosen["name"]) if chosen else None
    # Bounded already, to 8 kB, where the lineage was projected; here for what only a result knows.
    metrics, is_cut = bounded_metrics(known.metrics if known else chosen["metrics"] if chosen else {})
    epoch = metrics.get(progress_metric or "epoch", metrics.get("epoch"))
    restored = result["restored_from"]
    return PublishedModel(
        checkpoint=chosen["uri"] if chosen else None,
        selected="best" if result["best_checkpoint"] else "latest",
        metrics=metrics,
        metrics_cut=is_cut or bool(known and known.metrics_cut),
        epoch=epoch if isinstance(epoch, (int, float, str)) and not isinstance(epoch, bool) else None,
        experiment=lineage.experiment,
        generation=ref.generation,
        attempt=ref.attempt,
        submission_id=result["submission_id"],
        restored_from=f"{lineage.experiment}/{restored}" if restored else None,
        dag_id=key.dag_id,
        run_id=key.run_id,
        task_id=key.task_id,
        map_index=key.map_index,
    )


class MetricGate(Config):
    """When a model is good enough to publish: a metric of its checkpoint, a threshold, better than the last one, or both."""

    metric: Annotated[str, Field(min_length=1, max_length=200)]
    mode: Literal["min", "max"]
    """Whether less is better or more."""
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """At most this with `min`, at least this with `max`."""
    better_than_last: bool = False
    """Better than the last one published to the asset."""
    min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Better by more than this."""
    missing_metric: Literal["skip", "fail"] = "skip"
    """What a training without the metric means: no event, or a failed task."""

    def check_whole(self) -> None:
        """A gate that asks for nothing, or for a difference to nothing."""
        if self.threshold is None and not self.better_than_last:
            raise ValueError("a gate needs a threshold, better_than_last=True, or both")
        if self.min_delta and not self.better_than_last:
            raise ValueError("min_delta has no effect without better_than_last=True")

    def value(self, model: PublishedModel) -> float | None:
        """The metric as a number; NaN and infinity included. None where the training reported none."""
        found = model.metrics.get(self.metric)
        if isinstance(found, str) and found in _NOT_FINITE:
            return float(found)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            return None
        try:
            return float(found)
        except OverflowError:  # an event of others may hold any integer
            return math.inf if found > 0 else -math.inf

    def missing(self, model: PublishedModel) -> str | None:
        """Why the gate has nothing to judge, or None."""
        if not model.checkpoint:
            return "the training committed no checkpoint"
        if self.value(model) is not None:
            return None
        if self.metric in model.metrics:
            return f"the checkpoint's metric {self.metric} is no number"
        names = ", ".join(shortened(name, limit=80) for name in sorted(model.metrics)[:_MAX_NAMED])
        more = ", and some left out for their size" if model.metrics_cut else ""
        return f"the checkpoint has no metric {self.metric}; it has {names or 'none'}{more}"


@dataclass(frozen=True)
class LastPublished:
    """What a new model is compared with."""

    value: float
    checkpoint: str | None = None
    run_id: str | None = None

    @classmethod
    def read(cls, value: object) -> LastPublished | None:
        """What is kept for an asset: ours, or a number that a person put there. None for anything else."""
        data = value if isinstance(value, Mapping) else {"value": value}
        given = data.get("value")
        if isinstance(given, bool) or not isinstance(given, (int, float, str)):
            return None
        try:
            number = float(given)
        except (ValueError, OverflowError):
            return None
        if not math.isfinite(number):
            return None
        checkpoint, run_id = data.get("checkpoint"), data.get("run_id")
        return cls(
            number,
            checkpoint if isinstance(checkpoint, str) else None,
            run_id if isinstance(run_id, str) else None,
        )

    @classmethod
    def of_events(cls, gate: MetricGate, models: Iterable[PublishedModel]) -> LastPublished | None:
        """The newest event that has the gate's metric; `models` are the newest first."""
        for model in models:
            value = gate.value(model)
            if value is not None and math.isfinite(value):
                return cls(value, model.checkpoint, model.run_id)
        return None

    def entry(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)

    def __str__(self) -> str:
        """The number and whose it is."""
        return f"{self.value:g} of run {shortened(self.run_id, limit=250)}" if self.run_id else f"{self.value:g}"


@dataclass(frozen=True)
class Verdict:
    """Whether a model is published, and why, in a sentence with numbers."""

    published: bool
    reason: str
    value: float | None = None
    last: float | None = None

    def shown(self) -> dict[str, Any]:
        """For the task's result: strict JSON."""
        return asdict(self)


ALWAYS = Verdict(published=True, reason="an outlet without a gate: each successful training")


def judge(gate: MetricGate, model: PublishedModel, *, last: LastPublished | None) -> Verdict:
    """Whether the gate lets the model out. The model itself as the last one was kept by a process that ended too early."""
    missing, value = gate.missing(model), gate.value(model)
    if missing is not None or value is None:
        return Verdict(published=False, reason=f"{missing}: not published")
    if not math.isfinite(value):
        return Verdict(published=False, reason=f"{gate.metric} is {value:g}: not published")
    sign = 1.0 if gate.mode == "max" else -1.0
    said = f"{gate.metric} {value:g}"
    if gate.threshold is not None:
        bound = f"{'at least' if gate.mode == 'max' else 'at most'} {gate.threshold:g}"
        if sign * (value - gate.threshold) < 0:
            return Verdict(published=False, reason=f"{said} is not {bound}: not published", value=value)
        said = f"{said} is {bound}"
    if not gate.better_than_last:
        return Verdict(published=True, reason=f"{said}: published", value=value)
    said = f"{said} and" if gate.threshold is not None else f"{said} is"
    if last is None:
        return Verdict(published=True, reason=f"{said} the first one: published", value=value)
    if last.checkpoint is not None and last.checkpoint == model.checkpoint:
        return Verdict(published=True, reason=f"{said} this run's own: published", value=value, last=last.value)
    gain = sign * (value - last.value)
    by = f" by more than {gate.min_delta:g}" if gate.min_delta else ""
    if gain > gate.min_delta:
        return Verdict(published=True, reason=f"{said} better than {last}{by}: published", value=value, last=last.value)
    return Verdict(
        published=False, reason=f"{said} not better than {last}{by}: not published", value=value, last=last.value
    )
