"""Pages from templates. Every value is escaped by the template engine; no template marks anything as safe."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from airflow_provider.core.strict_json import storable
from airflow_provider.links.ray_train import task_instance_path
from airflow_provider.plugin.view import words
from airflow_provider.plugin.view.checkpoints import STATES
from airflow_provider.plugin.view.page import ORDERS

if TYPE_CHECKING:
    import jinja2

    from airflow_provider.core.identity import TaskInstanceKey
    from airflow_provider.plugin.recorded import Training
    from airflow_provider.plugin.view.facts import Problem, Recorded, Seen
    from airflow_provider.plugin.view.goodput import GoodputView
    from airflow_provider.plugin.view.page import Choice, ExperimentPage

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_NO_WORD = re.compile(r"[^a-z0-9_-]+")
_LEAST_BAR = 0.15
"""Per cent of a bar that can still be seen."""


class Asset(NamedTuple):
    """A file that pages load."""

    body: bytes
    media_type: str
    digest: str


@cache
def assets() -> dict[str, Asset]:
    """The static files by name, read once: no request ever names a path."""
    found = {}
    for file in files("airflow_provider.plugin").joinpath("static").iterdir():
        ending = file.name.rpartition(".")[2]
        if ending in _TYPES:
            body = file.read_bytes()
            digest = hashlib.sha256(body).hexdigest()[:16]
            found[file.name] = Asset(body, f"{_TYPES[ending]}; charset=utf-8", digest)
    return found


@cache
def _environment() -> jinja2.Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("airflow_provider.plugin"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"pct": _percent, "bar_width": _bar_width, "css_word": _css_word}
    environment.globals |= {
        "asset": _asset_address,
        "machine_time": words.machine_time,
        "moment": words.moment,
    }
    return environment


def _asset_address(name: str) -> str:
    return f"static/{name}?v={assets()[name].digest}"


def _percent(value: float) -> str:
    return f"{value:.3f}%"


def _bar_width(value: float) -> str:
    return f"{max(value, _LEAST_BAR):.3f}%"


def _css_word(text: str) -> str:
    """Part of a class name, whatever a record says."""
    return _NO_WORD.sub("-", text.lower())[:30]


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def message_page(heading: str, *, text: str = "", problem: Problem | None = None) -> str:
    """A page with a sentence."""
    return _render("message.html", title=heading, heading=heading, text=text, problem=problem)


class Addresses:
    """Links of a page. They are relative, so that they hold wherever Airflow is served."""

    def __init__(self, page: str, query: Mapping[str, str | int]) -> None:
        """`query` is what the page itself was asked for, without defaults."""
        self._page, self._query = page, dict(query)

    def __call__(self, change: Mapping[str, str | int | None]) -> str:
        """The same page with other choices; None takes one out."""
        query = {k: v for k, v in {**self._query, **change}.items() if v is not None}
        return f"{self._page}?{_encoded(query)}"

    @property
    def query(self) -> dict[str, str | int]:
        """The choices."""
        return dict(self._query)


def lineage_address(key: TaskInstanceKey) -> str:
    """The lineage page of a task instance, from another page of the app."""
    return f"lineage?{_encoded(key_query(key))}"


def _encoded(query: Mapping[str, str | int]) -> str:
    """A query; half of a character, which no address can hold, stands as U+FFFD there."""
    return urlencode({name: storable(str(value)) for name, value in query.items()})


def key_query(key: TaskInstanceKey) -> dict[str, str | int]:
    """What names a task instance in an address."""
    return {"dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id, "map_index": key.map_index}


def _dag_address(key: TaskInstanceKey) -> str:
    return f"../dags/{quote(storable(key.dag_id), safe='')}"


def _run_address(key: TaskInstanceKey) -> str:
    return f"{_dag_address(key)}/runs/{quote(storable(key.run_id), safe='')}"


def log_address(key: TaskInstanceKey, try_number: int) -> str:
    """Airflow's own page of a try's log."""
    return f"../{task_instance_path(key)}?try_number={try_number}"


class Listed(NamedTuple):
    """A page of trainings."""

    rows: Sequence[Training]
    total: int
    page: int
    pages: int


def trainings_page(
    heading: str, found: Listed, *, empty: str, link: Addresses, goodput: GoodputView | None = None, num_told: int = 0
) -> str:
    """The list of trainings, of one DAG run or of all DAGs that the user may read.

    `goodput` is that of the `num_told` trainings of the run that have told theirs.
    """
    return _render(
        "trainings.html",
        title=heading,
        heading=heading,
        empty=empty,
        **found._asdict(),
        link=link,
        goodput=goodput,
        num_told=num_told,
        run_id=link.query.get("run_id"),
        lineage_link=lineage_address,
        dag_link=_dag_address,
        run_link=_run_address,
    )


class Shown(NamedTuple):
    """What a lineage page is made of."""

    recorded: Recorded
    seen: Seen | None
    page: ExperimentPage | None
    problem: Problem | None


def lineage_page(shown: Shown, choice: Choice, link: Addresses) -> str:
    """The lineage of one task instance."""
    recorded = shown.recorded
    return _render(
        "lineage.html",
        title=f"Lineage of {recorded.key.task_id}",
        key=recorded.key,
        seen=shown.seen,
        page=shown.page,
        choice=choice,
        problem=shown.problem,
        link=link,
        live=recorded.is_live or shown.problem is not None,
        empty=_empty(recorded),
        tries=recorded.tries[-5:],
        log_link=lambda number: log_address(recorded.key, number),
        experiment_url=words.web_address(recorded.experiment_url),
        job_url=words.web_address(recorded.job_url),
        states=STATES,
        orders=ORDERS,
        hidden_fields=lambda without: _hidden_fields(link, without),
    )


def _hidden_fields(link: Addresses, without: list[str]) -> Any:
    from markupsafe import Markup

    # Markup.format escapes what it puts in.
    field = Markup('<input type="hidden" name="{}" value="{}">')
    return Markup("").join(field.format(k, v) for k, v in link.query.items() if k not in without)


def _empty(recorded: Recorded) -> str:
    if recorded.experiment is None and recorded.is_live:
        return "This task has not recorded a Ray Train experiment yet. The page looks again by itself."
    return "This task has recorded no Ray Train experiment: it is no RayTrainOperator, or it failed before it began."
