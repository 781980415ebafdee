"""What descends from what, projected from the records, and small enough for XCom whatever a training reports."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider.core import layout
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.lineage import (
    XCOM_LIMIT,
    AttemptRecords,
    ExperimentFacts,
    Lineage,
    lineage_xcom,
    project,
    result_xcom,
)
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.core.records import RecordSegment, RestartEntry
from tests.support.counted_work import num_calls
from tests.support.records import NOW, attempt_records, collected, entry, manifest, outcome, owner, ref

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
URI = "s3://models/churn/e"


def name(attempt: int, number: int) -> str:
    return f"attempts/{attempt:06d}/c{number}"


def facts(*attempts: AttemptRecords, owners: int = 1, **changes: Any) -> ExperimentFacts:
    return ExperimentFacts(URI, tuple(owner(k) for k in range(1, owners + 1)), attempts, **changes)


def strict_size(value: Any) -> int:
    return len(json.dumps(value, allow_nan=False).encode())


FIRST = attempt_records(
    1,
    recorded=(entry(name(1, 1), 1), entry(name(1, 2), 2), entry(name(1, 3), 3)),
    manifest=manifest(name(1, 2), name(1, 3)),
)
SECOND = attempt_records(
    2,
    restored_from=name(1, 2),
    recorded=(entry(name(2, 4), 4),),
    manifest=manifest(name(1, 2), name(2, 4), name(2, 5)),
    uncommitted=(name(2, 9),),
)


def states(lineage: Lineage) -> dict[str, str]:
    return {c.name.removeprefix("g000001/attempts/"): c.state for c in lineage.checkpoints}


def test_parents_lead_across_attempts_from_the_restored_checkpoint() -> None:
    """The second attempt went back over c3: c4 descends from c2."""
    parents = {c.name: c.parent for c in project(facts(FIRST, SECOND)).checkpoints}
    full = {f"c{n}": f"g000001/{name(a, n)}" for a, n in [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 9)]}
    assert parents == {
        full["c1"]: None,
        full["c2"]: full["c1"],
        full["c3"]: full["c2"],
        full["c4"]: full["c2"],
        full["c5"]: full["c4"],
        full["c9"]: None,
    }


def test_a_recorded_parent_wins_over_the_order() -> None:
    """A refit inside the attempt went back: only the driver knows."""
    recorded = (entry(name(1, 1), 1), entry(name(1, 2), 2), entry(name(1, 3), 3, parent=name(1, 1)))
    lineage = project(facts(attempt_records(1, recorded=recorded)))
    assert lineage.checkpoints[2].parent == f"g000001/{name(1, 1)}"


def test_the_newest_manifest_says_what_is_kept() -> None:
    lineage = project(facts(FIRST, SECOND, quarantined={1: frozenset({name(1, 3)})}))
    assert states(lineage) == {
        "000001/c1": "pruned",
        "000001/c2": "committed",
        "000001/c3": "quarantined",
        "000002/c4": "committed",
        "000002/c5": "committed",
        "000002/c9": "uncommitted",
    }


def test_what_a_loop_ignored_is_still_committed_though_its_own_commit_replaced_it() -> None:
    """Retention deletes nothing at such a report; without the fence it did."""
    fallen = outcome("failed", fallen_metric="epoch", latest_checkpoint=name(1, 3))
    second = attempt_records(2, restored_from=name(1, 3), manifest=manifest(name(2, 0)), outcome=fallen)
    expected = {"000001/c1": "pruned", "000001/c2": "pruned", "000001/c3": "committed", "000002/c0": "committed"}
    assert states(project(facts(FIRST, second))) == expected
    unfenced = replace(second, outcome=fallen.model_copy(update={"fenced": False}))
    assert states(project(facts(FIRST, unfenced))) == expected | {"000001/c3": "pruned"}


def test_generations_do_not_touch_each_other() -> None:
    """A fresh generation has a manifest and a quarantine of its own."""
    fresh = attempt_records(1, generation=2, manifest=manifest(name(1, 1)))
    lineage = project(facts(FIRST, fresh, quarantined={2: frozenset({name(1, 1)})}))
    found = {c.name: c.state for c in lineage.checkpoints}
    assert found[f"g000001/{name(1, 1)}"] == "pruned"
    assert found[f"g000001/{name(1, 3)}"] == "committed"
    assert found[f"g000002/{name(1, 1)}"] == "quarantined"


def test_carried_checkpoints_are_not_counted_as_own() -> None:
    assert SECOND.own_commits == (
        name(2, 4),
        name(2, 5),
    )
    assert attempt_records(1, manifest=manifest(name(10, 1), name(1, 1))).own_commits == (name(1, 1),)


def test_a_copy_that_an_attempt_restores_is_named_and_is_no_commit_of_its_own() -> None:
    """It would count as a new checkpoint of a training that trained nothing."""
    copy = layout.copy_name(2, name(1, 1))
    restoring = attempt_records(
        2, restored_from=copy, recorded=(entry(name(2, 4), parent=copy),), manifest=manifest(copy, name(2, 4))
    )
    third = attempt_records(3, restored_from=copy, manifest=manifest(copy, name(2, 4)))
    assert restoring.own_commits == (name(2, 4),)
    lineage = project(facts(FIRST, restoring, third))
    assert [a.num_commits for a in lineage.attempts] == [3, 1, 0]
    later = {c.name: c.parent for c in lineage.checkpoints[3:]}
    assert later == {
        f"g000001/{copy}": f"g000001/{name(1, 1)}",
        f"g000001/{name(2, 4)}": f"g000001/{copy}",
    }


def test_what_an_attempt_set_aside_stands_where_it_was_committed() -> None:
    """A rollback inside the attempt: the suspect is listed no more, what was committed before it still is."""
    entries = tuple(entry(name(1, i), i) for i in range(5))
    attempt = attempt_records(
        1,
        segments=(RecordSegment(checkpoints=entries, written_at=NOW),),
        manifest=manifest(name(1, 1), name(1, 2), name(1, 4)),
    )
    assert attempt.own_commits == tuple(name(1, i) for i in range(5))


def test_own_commits_come_in_the_order_of_registration_after_the_pruned_ones() -> None:
    """Names that an author chose don't sort; the manifest is sorted by score."""
    recorded = tuple(entry(name(1, n), s) for s, n in enumerate([9, 3, 7]))
    attempt = attempt_records(1, recorded=recorded, manifest=manifest(name(1, 7), name(1, 3), latest=name(1, 7)))
    assert attempt.own_commits == (
        name(1, 9),
        name(1, 3),
        name(1, 7),
    )


def test_a_first_hand_record_wins_over_a_late_one() -> None:
    late = entry(name(1, 1), 50, late=True, metrics={"loss": 0.0}, files=())
    first = entry(name(1, 1), 1, metrics={"loss": 2.0})
    for order in ((late, first), (first, late)):
        [found] = project(facts(attempt_records(1, recorded=order))).checkpoints
        assert (found.metrics, found.late, found.size_bytes, found.reported_at) == (
            {"loss": 2.0},
            False,
            8,
            first.reported_at,
        )


def test_a_checkpoint_that_only_the_manifest_knows_is_late_with_the_manifests_metrics() -> None:
    listed = manifest(name(1, 1), **{name(1, 1): {"loss": 0.5}})
    [found] = project(facts(attempt_records(1, manifest=listed))).checkpoints
    assert (found.metrics, found.late, found.size_bytes, found.reported_at) == ({"loss": 0.5}, True, None, None)


def test_an_attempt_tells_its_story() -> None:
    failure = Failure(kind=FailureKind.PREEMPTION, reason="preempted 2/5")
    restart = RestartEntry(failure=failure, decision="retry", at=NOW)
    end = RestartEntry(failure=failure, decision="ended the fit", at=NOW, is_restart=False)
    attempt = attempt_records(
        2,
        restored_from=name(1, 2),
        outcome=outcome("failed", failure=failure, fenced=False),
        segments=(RecordSegment(restarts=(restart, restart, end), written_at=NOW),),
    )
    [told] = project(facts(attempt)).attempts
    assert (told.ref, told.state, told.failure_kind, told.failure_reason) == (
        "g1/a2",
        "failed",
        "preemption",
        "preempted 2/5",
    )
    assert (told.restored_from, told.num_restarts, told.fenced) == (f"g000001/{name(1, 2)}", 2, False)
    [unknown] = project(facts(attempt_records(1))).attempts
    assert (unknown.state, unknown.fenced, unknown.finished_at) == ("unknown", None, None)


def test_an_experiment_that_is_owned_and_not_claimed_has_a_lineage() -> None:
    """What a try that fails before its claim publishes, and what a watcher sees in between."""
    assert project(facts()).attempts == ()


def test_an_attempt_that_nobody_concluded_was_lost_when_another_followed() -> None:
    """Its driver and its Airflow worker died together: the next claim says what was seen of the job."""
    lost, last = project(facts(attempt_records(1), attempt_records(2))).attempts
    assert (lost.state, lost.failure_kind, last.state) == ("lost", "lost", "unknown")
    assert lost.failure_reason == f"the driver left no outcome; g1/a2 followed: {last.intent}"


def test_an_outcome_that_collect_filled_in_counts() -> None:
    [told] = project(facts(attempt_records(1, collected=collected(True, outcome=outcome())))).attempts
    assert told.state == "success"


def test_each_owner_is_a_try_with_what_it_acted_on() -> None:
    owners = (owner(1, acted_on=ref(1, 1)), owner(2), owner(3, final=True))
    lineage = project(ExperimentFacts(URI, owners, (FIRST,)))
    assert [(t.k, t.acted_on, t.final) for t in lineage.tries] == [
        (1, "g1/a1", False),
        (2, None, False),
        (3, None, True),
    ]


# --- XCom ---------------------------------------------------------------------------------------------------------


def many(count: int, **metrics: Any) -> ExperimentFacts:
    recorded = tuple(entry(name(1, n), n, metrics=metrics) for n in range(count))
    kept = manifest(*(e.checkpoint for e in recorded[-3:]))
    return facts(attempt_records(1, recorded=recorded, manifest=kept, outcome=outcome()))


def test_a_small_lineage_is_complete_and_not_truncated() -> None:
    lineage = project(facts(FIRST, SECOND))
    data = lineage_xcom(lineage)
    assert not data["truncated"]
    assert (data["num_checkpoints"], data["full_record"]) == (6, URI)
    assert [c["name"] for c in data["checkpoints"]] == [c.name for c in lineage.checkpoints]


@pytest.mark.parametrize("metrics", [{}, {"loss": math.nan, "text": "ä" * 500, "row": [1.5] * 50}])
def test_ten_thousand_checkpoints_fit_with_the_newest_kept(metrics: dict[str, Any]) -> None:
    lineage = project(many(10_000, **metrics))
    data = lineage_xcom(lineage)
    assert strict_size(data) <= XCOM_LIMIT
    assert data["truncated"]
    assert data["num_checkpoints"] == 10_000
    assert data["checkpoints"][-1]["name"] == lineage.checkpoints[-1].name
    assert strict_size(data) > XCOM_LIMIT * 0.8, "more was left out than had to be"


def test_long_reasons_do_not_push_out_the_checkpoints() -> None:
    """C52: a job's message of 20,000 characters, in each of five attempts."""
    failure = Failure(kind=FailureKind.USER, reason="x" * 20_000)
    attempts = [
        attempt_records(n, outcome=outcome("failed", failure=failure), recorded=(entry(name(n, n)),))
        for n in range(1, 6)
    ]
    data = lineage_xcom(project(facts(*attempts)))
    assert strict_size(data) <= XCOM_LIMIT
    assert (len(data["checkpoints"]), len(data["attempts"]), data["truncated"]) == (5, 5, False)
    assert data["attempts"][0]["failure_reason"] == "x" * 1_000 + "..."


def test_very_many_tries_and_attempts_fit_too() -> None:
    attempts = [attempt_records(n) for n in range(1, 400)]
    data = lineage_xcom(project(facts(*attempts, owners=800)))
    assert strict_size(data) <= XCOM_LIMIT
    assert data["tries"][-1]["k"] == 800
    assert data["attempts"][-1]["ref"] == "g1/a399"


METRICS = st.dictionaries(
    st.text(max_size=50), st.floats() | st.text(max_size=3_000) | st.lists(st.integers(), max_size=50), max_size=5
)


@settings(max_examples=40)
@given(METRICS, st.integers(1, 60), st.text(max_size=30_000))
def test_both_values_are_strict_json_within_the_limit(metrics: dict[str, Any], count: int, reason: str) -> None:
    failure = Failure(kind=FailureKind.USER, reason=reason)
    recorded = tuple(entry(name(1, n), n, metrics=metrics) for n in range(count))
    ended = outcome("failed", failure=failure, latest_checkpoint=name(1, count - 1), best_checkpoint=name(1, 0))
    attempt = attempt_records(1, recorded=recorded, outcome=ended)
    lineage = project(facts(attempt))
    assert strict_size(lineage_xcom(lineage)) <= XCOM_LIMIT
    assert strict_size(result_xcom(lineage, [attempt], new_checkpoints=count)) <= XCOM_LIMIT


@pytest.mark.scenario("C21")
def test_the_result_names_latest_and_best_separately() -> None:
    """C21."""
    attempt = attempt_records(
        1,
        manifest=parse_manifest((CASES / "C21" / "checkpoint_manager_snapshot.json").read_bytes(), key="k"),
        recorded=(entry(name(1, 3), metrics={"acc": 0.8}), entry(name(1, 4), metrics={"acc": 0.74})),
        outcome=outcome(latest_checkpoint=name(1, 4), best_checkpoint=name(1, 3), restore_proven="yes"),
    )
    result = result_xcom(project(facts(attempt, owners=2)), [attempt], new_checkpoints=2)
    assert result["latest_checkpoint"] == {
        "uri": f"{URI}/g000001/{name(1, 4)}",
        "name": f"g000001/{name(1, 4)}",
        "metrics": {"acc": 0.74},
        "truncated": False,
    }
    assert result["best_checkpoint"]["metrics"] == {"acc": 0.8}
    assert (result["state"], result["new_checkpoints"], result["tries"]) == ("success", 2, 2)
    assert (result["restore_proven"], result["fenced"], result["experiment"]) == ("yes", True, URI)


def test_attempts_of_an_older_generation_are_not_counted() -> None:
    fresh = attempt_records(1, generation=2)
    result = result_xcom(project(facts(FIRST, SECOND, fresh)), [FIRST, SECOND, fresh], new_checkpoints=0)
    assert (result["generation"], result["attempts"]) == (2, 1)
    assert (result["state"], result["latest_checkpoint"], result["restore_proven"]) == ("failed", None, "unknown")


def test_a_huge_metric_is_replaced_and_the_result_says_truncated() -> None:
    """C52: a confusion matrix of a megabyte."""
    matrix = [list(range(500))] * 500
    found = many(900, loss=0.25, epoch=9, confusion=matrix)
    last = f"attempts/{1:06d}/c899"
    attempt = attempt_records(
        1, recorded=found.attempts[0].segments[0].checkpoints[-1:], outcome=outcome(latest_checkpoint=last)
    )
    result = result_xcom(project(facts(attempt)), [attempt], new_checkpoints=900)
    checkpoint = result["latest_checkpoint"]
    assert checkpoint["truncated"]
    assert (checkpoint["metrics"]["loss"], checkpoint["metrics"]["epoch"]) == (0.25, 9)
    assert checkpoint["metrics"]["confusion"].endswith("bytes of JSON>")
    assert lineage_xcom(project(facts(attempt)))["checkpoints"][0]["metrics_cut"]


def test_the_projection_is_linear_in_the_checkpoints() -> None:
    small, large = many(200, loss=0.5), many(800, loss=0.5)
    assert num_calls(lambda: project(large)) < 4.4 * num_calls(lambda: project(small))
    few, lots = project(small), project(large)
    assert num_calls(lambda: lineage_xcom(lots)) < 4.4 * num_calls(lambda: lineage_xcom(few))


class Counted(str):
    """A name that counts how often it is compared; what is sorted or hashed alone doesn't count."""

    __slots__ = ()
    num = 0
    limit = 400_000

    def __eq__(self, other: object) -> bool:
        Counted.num += 1
        assert Counted.num < Counted.limit, "each name is compared with each other"
        return str.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = str.__hash__


def test_own_commits_among_ten_thousand_carried_ones_take_linear_work() -> None:
    """Retention off, and a long history: a listed name looked for in a list would be 200 million comparisons."""
    carried = [Counted(name(1, n)) for n in range(10_000)]
    own = [Counted(name(2, n)) for n in range(10_000)]
    recorded = tuple(entry(str(n), i) for i, n in enumerate(own))
    attempt = attempt_records(2, recorded=recorded, manifest=manifest(*carried, *own))
    Counted.num = 0
    assert attempt.own_commits == tuple(name(2, n) for n in range(10_000))
    assert Counted.num > 0
