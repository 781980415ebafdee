"""The small bounds of the protocol model: no rule of ours may be broken, and each rule that is removed must be missed."""

from __future__ import annotations

import pytest

from tests.model.configurations import CONFIGURATIONS
from tests.model.decisions import Counters, Facts, decide
from tests.model.explore import STUCK, TRY_STEPS, explore, find
from tests.model.findings import FINDINGS
from tests.model.mistakes import MISTAKES
from tests.model.restore import Files, Left, resolve_point

STORIES = range(1, 13)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_rule_is_broken_within_the_small_bounds(name: str) -> None:
    configuration = CONFIGURATIONS[name]
    found = explore(configuration.small)
    assert found.violations == {}, "\n".join(next(iter(found.violations.values())))
    assert found.is_complete
    assert found.states >= configuration.at_least, "an exploration that reaches next to nothing proves nothing"
    assert set(found.known) == configuration.finds, "an open finding came or went: docs/protocol-model.md lists them"


@pytest.mark.parametrize("name", MISTAKES)
def test_each_seeded_mistake_is_found_with_its_trace(name: str) -> None:
    mistake = MISTAKES[name]
    found = find(mistake.bounds, name, mistake.finds)
    traces = [trace for violation, trace in found.violations.items() if violation.startswith(mistake.finds)]
    assert traces, f"not found in {mistake.configuration}: {list(found.violations)}"
    assert len(traces[0]) > 5


def test_a_state_without_a_way_to_an_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a try that waits never looks again. No seeded mistake is of this kind: without this the check could see nothing."""
    monkeypatch.setitem(TRY_STEPS, "wait", lambda *_: iter(()))
    found = explore(CONFIGURATIONS["silence"].small)
    assert list(found.violations) == [STUCK]


def test_each_story_of_the_protocol_has_a_seeded_mistake() -> None:
    assert sorted(m.story for m in MISTAKES.values() if m.story) == list(STORIES)


def test_every_open_finding_is_met_by_a_configuration() -> None:
    assert frozenset().union(*(c.finds for c in CONFIGURATIONS.values())) == FINDINGS


def test_the_decisions_are_the_products_own() -> None:
    """A model that decided by itself would test a paraphrase."""
    me, before = Counters(1, 2, 0, 0), Counters(1, 1, 0, 0)
    facts = Facts(
        generation=1,
        number=1,
        session=1,
        acting=before,
        is_own=False,
        has_stops=False,
        has_final=False,
        is_alive=False,
        is_fresh=False,
        has_manifest=False,
        outcome="",
        filled="",
        is_collected=False,
        is_accepted=False,
        sight="RUNNING",
        session_now=1,
    )
    answer = decide(me, facts, "auto")
    assert answer.kind == "Attach"
    assert "g1/a1 is RUNNING" in answer.reason
    assert decide(me, facts._replace(has_stops=True), "auto").kind == "StopThenRestore"
    assert decide(me._replace(max_tries=1), facts, "fresh").target == (2, 1)


def test_the_restore_point_is_the_drivers_own() -> None:
    """c1 is retired, c2 is listed and broken: rolled back to a copy of c1, c2 in quarantine."""
    left = (Left((1, 1), 0, (1,), (0, 1)),)
    point = resolve_point((1, 2), 1, left, Files(frozenset({0, 1}), frozenset({1}), frozenset()))
    assert point is not None
    assert (point.chosen, point.copied, point.skipped) == (7, 0, frozenset({1}))
    healthy = resolve_point((1, 2), 1, left, Files(frozenset({0, 1}), frozenset(), frozenset()))
    assert healthy is not None
    assert (healthy.chosen, healthy.manifest) == (1, (1,))
