"""What the page shows of an experiment, without Airflow, the bucket or HTML."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.lineage import Lineage, LineageCheckpoint
from airflow_provider.core.records import AliveRecord, Phase, PhaseEntry, RecordSegment
from airflow_provider.plugin.view.chart import MAX_POINTS, build_chart, thinned
from airflow_provider.plugin.view.checkpoints import PAGE_SIZE, Filter, build_table
from airflow_provider.plugin.view.facts import Seen, TaskTry
from airflow_provider.plugin.view.page import Choice, build_page, page_as_json
from airflow_provider.plugin.view.timeline import MAX_BARS, build_timeline
from airflow_provider.plugin.view.words import duration, size
from tests.support.lineage_page import after, facts, name, recorded, seen
from tests.support.records import NOW


def page(**choice: Any) -> Any:
    return build_page(recorded(), seen(), Choice(**choice))


def many(count: int, *, attempts: int = 1) -> Seen:
    """An experiment with so many checkpoints, some steps of which were trained again."""
    per = -(-count // attempts)
    checkpoints = tuple(
        LineageCheckpoint(
            name=f"g000001/attempts/{i // per + 1:06d}/checkpoint_{i:06d}",
            attempt=f"g1/a{i // per + 1}",
            parent=f"g000001/attempts/{(i - 1) // per + 1:06d}/checkpoint_{i - 1:06d}" if i else None,
            state="committed" if i > count - 4 else "pruned",
            metrics={"step": i - 5 * (i // per), "loss": 1 / (i + 1) if i != count // 2 else 50.0},
            size_bytes=10 * i,
            reported_at=after(i),
            late=False,
        )
        for i in range(count)
    )
    return Seen(Lineage(experiment="s3://b/x", tries=(), attempts=(), checkpoints=checkpoints), after(count))


# --- checkpoints --------------------------------------------------------------------------------------------------------


def test_parents_say_by_which_way_a_checkpoint_came_from_them() -> None:
    rows = {row.label + row.attempt: row for row in page().table.rows}
    assert rows["checkpoint_000g1/a1"].parent is None
    assert (rows["checkpoint_001g1/a1"].parent.how, rows["checkpoint_001g1/a1"].parent.label) == (
        "after",
        "checkpoint_000",
    )
    restored = rows["checkpoint_000g1/a2"].parent
    assert (restored.how, restored.name) == ("restored from", f"g000001/{name(1, 2)}")


def test_a_warm_start_names_the_other_experiment() -> None:
    first = replace(seen().lineage.checkpoints[0], parent="s3://models/other/g000001/attempts/000001/c")
    found = Seen(seen().lineage.model_copy(update={"checkpoints": (first,)}), NOW)
    (row,) = build_table(found, Filter(), metric=None).rows
    assert (row.parent.how, row.parent.is_known) == ("warm-started from", False)  # type: ignore[union-attr]


def test_checkpoints_can_be_filtered_and_ordered() -> None:
    by_state = page(checkpoints=Filter(state="quarantined")).table
    assert [(r.label, r.why) for r in by_state.rows] == [
        ("checkpoint_003", "its files are not those that were recorded")
    ]
    assert {r.attempt for r in page(checkpoints=Filter(attempt="g1/a2")).table.rows} == {"g1/a2"}
    lowest = page(checkpoints=Filter(order="lowest"), metric="loss").table.rows
    assert lowest[0].metrics[0] == ("loss", "0.9")
    assert lowest[-1].metrics[0] == ("loss", "4")
    assert page(checkpoints=Filter(order="oldest")).table.rows[0].label == "checkpoint_000"


def test_ten_thousand_checkpoints_are_a_page_of_a_hundred_and_a_bounded_drawing() -> None:
    found = many(10_000, attempts=12)
    table = build_table(found, Filter(page=3), metric="loss")
    assert (len(table.rows), table.num_pages, table.first) == (PAGE_SIZE, 100, 201)
    assert table.rows[0].label == "checkpoint_009799"
    chart = build_chart(found.lineage.checkpoints, None)
    assert chart is not None
    assert chart.num_values == 10_000
    assert chart.num_shown <= MAX_POINTS
    assert len(chart.lines) == 12
    assert "50" in {p.title.rpartition(" ")[2] for line in chart.lines for p in line.points}, "the peak is kept"
    last = build_table(found, Filter(page=999_999), metric=None)
    assert (last.page, last.rows[-1].label) == (100, "checkpoint_000000")


def test_one_checkpoint_is_enough() -> None:
    found = many(1)
    chart = build_chart(found.lineage.checkpoints, "loss")
    assert chart is not None
    assert (chart.num_shown, chart.metric) == (1, "loss")
    assert 0 <= chart.lines[0].points[0].y <= 100


def test_detail_knows_ancestors_and_descendants() -> None:
    detail = page(checkpoint=f"g000001/{name(1, 2)}").detail
    assert [a.label for a in detail.ancestors] == ["checkpoint_001", "checkpoint_000"]
    assert detail.children == (f"g000001/{name(1, 3)}", f"g000001/{name(2, 0)}")
    assert [f.key for f in detail.files] == ["model.pt"]
    assert detail.object_url == f"http://s3:8333/models/d/train/x/g000001/{name(1, 2)}/"


@pytest.mark.parametrize("unknown", ["", "g000001", "../x", "g000001/attempts/000001/claim.json"])
def test_what_is_no_checkpoint_of_the_lineage_is_not_shown(unknown: str) -> None:
    found = page(checkpoint=unknown or None)
    assert found.detail is None
    assert found.is_detail_missing is bool(unknown)


@pytest.mark.parametrize("state", ["pruned", "quarantined"])
def test_a_checkpoint_that_can_not_be_restored_has_no_snippet(state: str) -> None:
    number = next(c.name for c in seen().lineage.checkpoints if c.state == state)
    assert page(checkpoint=number).detail.snippets == ()


# --- attempts, failures, timeline ---------------------------------------------------------------------------------------


def test_each_failure_has_its_kind_and_its_reason() -> None:
    worker, end = sorted(page().failures, key=lambda f: f.at)
    assert (worker.kind, worker.reason, worker.then) == (
        "infrastructure",
        "node 3 died at step 1200",
        "restart the workers",
    )
    assert (end.attempt, end.at) == ("g1/a1", after(60))


def test_attempts_name_their_tries_and_what_they_restored() -> None:
    second, first = page().attempts
    assert (first.tries, first.began_from, second.tries) == ((1,), "from the start", (2,))
    assert (second.began_from, second.origin_label) == ("restored from", "checkpoint_002")
    assert second.job_url == "http://ray:8265/#/jobs/raytrain-1-2"


def lanes(found: Seen, **changes: Any) -> dict[str, Any]:
    task = recorded(**changes)
    timeline = build_timeline(task, found, found.lineage.attempts)
    assert timeline is not None
    return {lane.label: lane for lane in timeline.lanes}


def test_the_timeline_shows_phases_and_failures_where_they_were() -> None:
    found = lanes(seen())
    first = found["Attempt g1/a1"]
    assert [b.phase for b in first.bars] == [
        "pending",
        "starting",
        "waiting",
        "training",
        "lost",
        "waiting",
        "training",
    ]
    whole = (after(140) - after(-2)).total_seconds()
    training = first.bars[3]
    assert training.x == pytest.approx((8 + 2) / whole * 100)
    assert training.width == pytest.approx((25 - 8) / whole * 100)
    assert [m.kind for m in first.marks] == ["restart", "end"]
    assert [b.phase for b in found["Try 1"].bars] == ["queued", "failed"]
    assert "node 3 died" in first.marks[0].title
    assert "training 47" in first.summary


def test_failures_that_would_cover_one_another_are_one_mark_with_their_number() -> None:
    busy = facts()
    entry = busy.attempts[0].segments[0].restarts[0]
    many = tuple(entry.model_copy(update={"at": after(20 + i / 100)}) for i in range(50))
    first = replace(busy.attempts[0], segments=(RecordSegment(restarts=many, written_at=NOW),))
    lane = lanes(seen(replace(busy, attempts=(first, busy.attempts[1]))))["Attempt g1/a1"]
    assert [m.number for m in lane.marks] == [50, 1]
    assert lane.marks[0].title.startswith("50 failures, the last")
    assert "51 failures" in lane.summary


def test_an_attempt_of_an_older_release_has_no_phases_but_a_place() -> None:
    older = facts()
    attempts = tuple(
        replace(a, segments=tuple(s.model_copy(update={"phases": ()}) for s in a.segments)) for a in older.attempts
    )
    found = lanes(seen(replace(older, attempts=attempts)))
    assert [b.phase for b in found["Attempt g1/a2"].bars] == ["pending", "training"] or [
        b.phase for b in found["Attempt g1/a2"].bars
    ] == ["training"]


def test_a_running_attempt_goes_up_to_the_newest_that_is_known() -> None:
    running = facts()
    alive = AliveRecord(run_uid="u", phase=Phase.RESTORING, phase_since=after(120), written_at=after(135))
    attempts = (running.attempts[0], replace(running.attempts[1], outcome=None, manifest=running.attempts[1].manifest))
    at_hand = seen(replace(running, attempts=attempts), alive=alive)
    open_try = TaskTry(2, "deferred", after(65), after(66), None)
    found = lanes(at_hand, state="deferred", tries=(open_try,))
    lane = found["Attempt g1/a2"]
    assert (lane.state, lane.bars[-1].phase) == ("restoring", "restoring")
    assert lane.bars[-1].x + lane.bars[-1].width == pytest.approx(100.0)
    assert found["Try 2"].bars[-1].x + found["Try 2"].bars[-1].width == pytest.approx(100.0)


def test_ten_thousand_phases_are_a_bounded_drawing() -> None:
    busy = facts()
    names = [Phase.TRAINING, Phase.LOST]
    entered = tuple(PhaseEntry(phase=names[i % 2], at=NOW + timedelta(milliseconds=6 * i)) for i in range(10_000))
    first = replace(busy.attempts[0], segments=(RecordSegment(phases=entered, written_at=NOW),))
    found = lanes(seen(replace(busy, attempts=(first, busy.attempts[1]))))
    assert 1 < len(found["Attempt g1/a1"].bars) <= MAX_BARS


def test_clocks_that_differ_give_no_negative_width() -> None:
    odd = facts()
    early = RecordSegment(
        phases=(PhaseEntry(phase=Phase.TRAINING, at=after(-500)), PhaseEntry(phase=Phase.LOST, at=after(9000))),
        written_at=NOW,
    )
    found = lanes(seen(replace(odd, attempts=(replace(odd.attempts[0], segments=(early,)), odd.attempts[1]))))
    assert all(b.width >= 0 and 0 <= b.x <= 100 for lane in found.values() for b in lane.bars)


def test_the_same_facts_give_the_same_page() -> None:
    """Or no browser could keep it; within 15 s also where a clock counts."""
    first = page_as_json(build_page(recorded(), seen(), Choice()))
    again = page_as_json(build_page(recorded(), replace(seen(), read_at=after(153)), Choice()))
    assert first == again


# --- numbers --------------------------------------------------------------------------------------------------------------


@given(
    values=st.lists(st.one_of(st.floats(), st.integers(), st.booleans(), st.text(max_size=3), st.none()), max_size=30)
)
def test_any_metrics_can_be_drawn(values: list[Any]) -> None:
    checkpoints = [
        replace(many(1).lineage.checkpoints[0], name=f"g000001/c{i}", metrics={"m": v, "step": v})
        for i, v in enumerate(values)
    ]
    chart = build_chart(checkpoints, "m")
    for line in chart.lines if chart else ():
        assert all(0 <= p.x <= 100 and 0 <= p.y <= 100 for p in line.points)


@given(count=st.integers(1, 500), most=st.integers(2, 60))
def test_thinning_keeps_ends_and_extremes(count: int, most: int) -> None:
    rows = [(float(i), float(i * 37 % 101), str(i)) for i in range(count)]
    kept = thinned(rows, most)
    assert len(kept) <= max(most, 2)
    assert (kept[0], kept[-1]) == (rows[0], rows[-1])
    assert kept == sorted(kept)
    if most >= 4:
        assert max(r[1] for r in kept) == max(r[1] for r in rows)


@pytest.mark.parametrize(
    ("num", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_500_000_000, "2.5 GB"), (2**63, "9223 PB")],
)
def test_sizes(num: int | None, text: str) -> None:
    assert size(num) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (59.6, "1 min"), (3725, "1 h 2 min"), (90_000, "1 d 1 h"), (-3, "0.0 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == text


@given(
    values=st.dictionaries(st.sampled_from(["page", "state", "order", "attempts_page", "metric"]), st.text(max_size=12))
)
def test_any_choice_is_one(values: dict[str, str]) -> None:
    build_page(recorded(), seen(), Choice.read(values))
