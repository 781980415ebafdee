"""The whole page of one experiment."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from typing import Any

from airflow_provider.core.lineage import LineageCheckpoint
from airflow_provider.plugin.view import words
from airflow_provider.plugin.view.attempts import (
    ATTEMPTS_PER_PAGE,
    FAILURES_PER_PAGE,
    AttemptRow,
    FailureRow,
    Pages,
    attempt_rows,
    failure_rows,
    page_of,
    state_of,
)
from airflow_provider.plugin.view.chart import Chart, build_chart
from airflow_provider.plugin.view.checkpoints import (
    STATES,
    Detail,
    Filter,
    Order,
    Row,
    Table,
    build_detail,
    build_table,
    row_of,
)
from airflow_provider.plugin.view.facts import Recorded, Seen
from airflow_provider.plugin.view.goodput import GoodputView, build_goodput
from airflow_provider.plugin.view.timeline import Timeline, build_timeline

ORDERS: tuple[Order, ...] = ("newest", "oldest", "highest", "lowest")


@dataclass(frozen=True)
class Choice:
    """What a reader chose. All of it is looked up in what was read; nothing is an address."""

    checkpoints: Filter = field(default_factory=Filter)
    metric: str | None = None
    checkpoint: str | None = None
    attempts_page: int = 1
    failures_page: int = 1

    @classmethod
    def read(cls, values: dict[str, str]) -> Choice:
        """From an address's query; what makes no sense is the default."""
        state, order = values.get("state", ""), values.get("order", "")
        return cls(
            checkpoints=Filter(
                state=state if state in STATES else "",
                attempt=values.get("attempt", "")[:40],
                order=next((o for o in ORDERS if o == order), "newest"),
                page=_page(values.get("page")),
            ),
            metric=values.get("metric") or None,
            checkpoint=values.get("checkpoint") or None,
            attempts_page=_page(values.get("attempts_page")),
            failures_page=_page(values.get("failures_page")),
        )


def _page(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 7 else 1


@dataclass(frozen=True)
class ExperimentPage:
    """All that is shown."""

    experiment: str
    state: str
    phase: str
    num_attempts: int
    num_generations: int
    num_failures: int
    latest: Row | None
    timeline: Timeline | None
    attempts: tuple[AttemptRow, ...]
    attempt_pages: Pages
    failures: tuple[FailureRow, ...]
    failure_pages: Pages
    goodput: GoodputView | None
    chart: Chart | None
    table: Table
    detail: Detail | None
    is_detail_missing: bool
    status: str
    """One sentence for a screen reader, read aloud when it changes."""


def build_page(recorded: Recorded, seen: Seen, choice: Choice) -> ExperimentPage:
    """Linear in the number of checkpoints; what it gives has bounds."""
    lineage = seen.lineage
    shown, attempt_pages = page_of(lineage.attempts, choice.attempts_page, size=ATTEMPTS_PER_PAGE)
    failures, failure_pages = page_of(failure_rows(seen), choice.failures_page, size=FAILURES_PER_PAGE)
    chart = build_chart([c for c in lineage.checkpoints if c.metrics], choice.metric)
    metric = chart.metric if chart else None
    detail = build_detail(seen, recorded, choice.checkpoint, metric=metric) if choice.checkpoint else None
    newest = lineage.attempts[-1] if lineage.attempts else None
    phase = state_of(newest, seen, is_newest=True) if newest else "nothing claimed yet"
    latest = _latest(lineage.checkpoints)
    table = build_table(seen, choice.checkpoints, metric=metric)
    return ExperimentPage(
        experiment=lineage.experiment,
        state=recorded.state or "none",
        phase=phase,
        num_attempts=len(lineage.attempts),
        num_generations=len({a.ref.partition("/")[0] for a in lineage.attempts}),
        num_failures=failure_pages.num_all,
        latest=row_of(latest, {c.name: c for c in lineage.checkpoints}, seen, metric=metric) if latest else None,
        timeline=build_timeline(recorded, seen, shown),
        attempts=attempt_rows(seen, recorded, shown),
        attempt_pages=attempt_pages,
        failures=tuple(reversed(failures)),
        failure_pages=failure_pages,
        goodput=build_goodput(seen),
        chart=chart,
        table=table,
        detail=detail,
        is_detail_missing=choice.checkpoint is not None and detail is None,
        status=_status(recorded, phase, newest.ref if newest else None, table, latest),
    )


def _latest(checkpoints: tuple[LineageCheckpoint, ...]) -> LineageCheckpoint | None:
    return next((c for c in reversed(checkpoints) if c.state == "committed"), None)


def _status(recorded: Recorded, phase: str, attempt: str | None, table: Table, latest: LineageCheckpoint | None) -> str:
    committed = dict(table.counts).get("committed", 0)
    where = f"attempt {attempt} {phase}" if attempt else phase
    newest = f", the newest {latest.name.rpartition('/')[2]}" if latest else ""
    return f"Task {recorded.state or 'without a state'}, {where}, {committed} committed checkpoints{newest}."


def page_as_json(page: ExperimentPage) -> dict[str, Any]:
    """What the API answers: the same facts, without positions on a drawing."""
    return {
        "experiment": page.experiment,
        "task_state": page.state,
        "phase": page.phase,
        "attempts": [_plain(row) for row in page.attempts],
        "attempts_page": _plain(page.attempt_pages),
        "failures": [_plain(row) for row in page.failures],
        "failures_page": _plain(page.failure_pages),
        "checkpoints": [_plain(row) for row in page.table.rows],
        "checkpoints_page": {
            "number": page.table.page,
            "of": page.table.num_pages,
            "num_matching": page.table.num_matching,
            "num_all": page.table.num_all,
        },
        "checkpoint": _plain(page.detail) if page.detail else None,
        "goodput": _goodput_as_json(page.goodput) if page.goodput else None,
        "metric": _chart_as_json(page.chart) if page.chart else None,
    }


def _goodput_as_json(found: GoodputView) -> dict[str, Any]:
    return {"percent": found.percent, "of": found.whole, "sentence": found.sentence}


def _chart_as_json(chart: Chart) -> dict[str, Any]:
    return {
        "name": chart.metric,
        "step_name": chart.step_name,
        "names": list(chart.names),
        "summary": chart.summary,
    }


def _plain(value: Any) -> Any:
    """Dataclasses as dicts, times as texts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return words.machine_time(value) if isinstance(value, datetime) else value
