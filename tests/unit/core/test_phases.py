"""Phases stay few enough for a segment, and their seconds true, however often a training changes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.phases import MAX_PHASES, merged, with_phase
from airflow_provider.core.records import Phase, PhaseEntry
from tests.support.time_story import at


def seconds(phases: Sequence[PhaseEntry], end: datetime) -> dict[Phase, timedelta]:
    found: dict[Phase, timedelta] = {}
    for entry, until in zip(phases, [*(p.at for p in phases[1:]), end], strict=True):
        found[entry.phase] = found.get(entry.phase, timedelta()) + (until - entry.at)
    return {phase: duration for phase, duration in found.items() if duration}


def test_phases_are_kept_in_the_order_of_time_and_never_twice() -> None:
    phases: list[PhaseEntry] = []
    for phase, second in [("starting", 0), ("waiting", 5), ("restoring", 3), ("waiting", 6), ("training", 9)]:
        phases = with_phase(phases, Phase(phase), at(second))
    assert [(p.phase.value, p.at) for p in phases] == [
        ("starting", at(0)),
        ("restoring", at(3)),
        ("waiting", at(5)),
        ("training", at(9)),
    ]


def test_a_training_that_flaps_for_weeks_stays_small() -> None:
    """Three phases per loss, ten thousand losses: bounded, exact in sum, and exact to the second for the last ones."""
    phases: list[PhaseEntry] = with_phase([], Phase.STARTING, at(0))
    second = 10
    for _ in range(10_000):
        for phase, lasts in ((Phase.WAITING, 4), (Phase.TRAINING, 20), (Phase.LOST, 1)):
            phases = with_phase(phases, phase, at(second))
            second += lasts
        assert len(phases) <= MAX_PHASES
    assert seconds(phases, at(second)) == {
        Phase.STARTING: timedelta(seconds=10),
        Phase.WAITING: timedelta(seconds=40_000),
        Phase.TRAINING: timedelta(seconds=200_000),
        Phase.LOST: timedelta(seconds=10_000),
    }
    assert [p.phase for p in phases[-3:]] == [Phase.WAITING, Phase.TRAINING, Phase.LOST]
    assert phases[-2].at == at(second - 21)


@given(st.lists(st.tuples(st.sampled_from(list(Phase)), st.integers(0, 50)), min_size=1, max_size=400))
def test_merging_keeps_order_and_seconds(visits: list[tuple[Phase, int]]) -> None:
    phases, second = [], 0
    for phase, lasts in visits:
        phases.append(PhaseEntry(phase=phase, at=at(second)))
        second += lasts
    fewer = merged(phases)
    assert len(fewer) <= len(phases)
    assert fewer[0].at == phases[0].at
    assert [p.at for p in fewer] == sorted(p.at for p in fewer)
    assert seconds(fewer, at(second)) == seconds(phases, at(second))
    assert fewer[-1] == phases[-1]
