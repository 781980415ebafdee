"""Where a new experiment begins: what the author may name as parent. Pure; `core/parent.py` says what lies there and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.field_types import shown_part
from airflow_provider.core.identity import checked_storage_path
from airflow_provider.core.spec import Config, Templated, has_template

if TYPE_CHECKING:
    from airflow_provider.core.restore_policy import RestorePolicy

PREVIOUS_RUN = "previous_run"
_NOTHING = ("", "None", "null")
"""What a template gives for an XCom that is not there."""


class WarmStart(Config):
    """Begin a new experiment from a checkpoint of another one. A retry restores the experiment's own checkpoints."""

    source: Templated[str | dict[str, Any]] | None = None
    """URI of a checkpoint or of an experiment, a dict from an XCom or an asset event, or `"previous_run"`."""
    select: Templated[str] = "latest"
    """Of an experiment: its `latest` verified checkpoint, or its `best` by `metric`."""
    metric: Templated[str] | None = None
    """For `best`; default: the `checkpoint_score_attribute` of the checkpoint config."""
    order: Templated[str] | None = None
    """`max` or `min`; default: the `checkpoint_score_order` of the checkpoint config."""
    missing: Templated[str] = "fail"
    """What happens without a usable parent: `fail`, or `fresh` to begin from the start."""

    def check_whole(self) -> None:
        """Words that it takes."""
        for name, known in (("select", ("latest", "best")), ("missing", ("fail", "fresh")), ("order", ("max", "min"))):
            value = getattr(self, name)
            if value is not None and not has_template(value) and value not in known:
                raise ValueError(f"{name} is {' or '.join(repr(word) for word in known)}")

    @classmethod
    def given(cls, value: object) -> dict[str, Any] | None:
        """The operator's parameter, checked at DAG parse: a WarmStart, its dict, or a source alone. Raises InvalidConfig."""
        if value is None:
            return None
        is_whole = isinstance(value, cls) or (isinstance(value, Mapping) and "source" in value)
        # A model is dumped below; anything else alone is the source: text, event, or another task's output.
        data = value if is_whole else {"source": dict(value) if isinstance(value, Mapping) else value}
        return cls.parsed(data, parameter="warm_start")  # type: ignore[arg-type]  # checked there

    @property
    def policy(self) -> RestorePolicy:
        """Which checkpoint of an experiment; parameters must be rendered. Raises InvalidConfig for `best` without a metric."""
        from airflow_provider.core.restore_policy import RestorePolicy  # a DAG file needs none of it

        if self.select == "latest":
            return RestorePolicy()
        if self.metric is None:
            raise InvalidConfig(
                "warm_start with select='best' needs a metric",
                change="set metric=, or the checkpoint config's checkpoint_score_attribute",
            )
        order: Literal["max", "min"] = "min" if self.order == "min" else "max"
        return RestorePolicy(mode="best", metric=self.metric, order=order)


@dataclass(frozen=True)
class Named:
    """The author or another task named a checkpoint or an experiment."""

    uri: str


@dataclass(frozen=True)
class PreviousRun:
    """The experiment of the same task in an earlier DAG run."""


@dataclass(frozen=True)
class NothingNamed:
    """The source rendered to nothing: a task that published none, a run without an asset event."""

    why: str


Source = Named | PreviousRun | NothingNamed


def read_source(wanted: WarmStart) -> Source:
    """What the rendered source means. Raises InvalidConfig for a value that can't name a parent."""
    source = wanted.source
    if source is None or source in _NOTHING:
        return NothingNamed("the source rendered to nothing")
    if isinstance(source, str):
        return PreviousRun() if source == PREVIOUS_RUN else Named(_checked_uri(source))
    return _from_dict(source, select=wanted.select)


def _checked_uri(text: str) -> str:
    if text.startswith("{"):
        raise InvalidConfig(
            "warm_start rendered to the text of a dict",
            known="Jinja makes text of it where the DAG doesn't render native objects",
            change="set render_template_as_native_obj=True in the DAG, or name one field: {{ ...['checkpoint'] }}",
        )
    try:
        return checked_storage_path(text.removeprefix("file://"))  # results of trainings on a shared folder say so
    except InvalidConfig as error:
        raise InvalidConfig(
            f"warm_start names no parent: {error.what.removeprefix('storage_path ')}",
            known=error.known,
            change=f"name s3://bucket/... or an absolute path of a checkpoint or an experiment, or {PREVIOUS_RUN!r}",
        ) from None


def _from_dict(data: Mapping[str, Any], *, select: str) -> Source:
    """An asset event's `extra` (`checkpoint`), a task's result (`latest_checkpoint`), or an experiment alone."""
    extra = data.get("extra")
    if isinstance(extra, Mapping):
        data = extra
    experiment = data.get("experiment")
    if "checkpoint" in data:
        uri = data["checkpoint"]
    elif "latest_checkpoint" in data:
        uri = data.get("best_checkpoint") if select == "best" else data["latest_checkpoint"]
        if uri is None and select == "best":
            uri = experiment  # the run had no score of its own: `metric` decides
    else:
        uri = experiment
    if isinstance(uri, Mapping):
        uri = uri.get("uri")
    if isinstance(uri, str) and uri:
        return Named(_checked_uri(uri))
    if uri is None and data.keys() & {"checkpoint", "latest_checkpoint"}:
        return NothingNamed("the run that is named as parent committed no checkpoint")
    names = ", ".join(shown_part(str(key)) for key in list(data)[:10]) or "nothing"
    raise InvalidConfig(
        "warm_start got a dict that names no checkpoint",
        known=f"it holds {names}",
        change="pass the event's extra or the result of a RayTrainOperator: they name 'checkpoint' or 'experiment' as URIs",
    )
