"""Whatever the records and the clocks say: every second of a training has one use, and the same records give the same value."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.goodput import Cause, goodput
from airflow_provider.core.lineage import AttemptRecords, ExperimentFacts
from airflow_provider.core.records import Phase
from benchmarks.fit import steepest
from tests.support.counted_work import num_calls
from tests.support.time_story import HEALTHY, a_try, alive, at, attempt, name, story

PHASES = st.sampled_from([phase.value for phase in Phase])
SECONDS = st.floats(-500, 2_000, allow_nan=False)
ANY_TIME = SECONDS | st.sampled_from([-1.7e9, 2e11])
"""Also the years 1973 and 8364: a damaged record may say any."""


@st.composite
def stories(draw: st.DrawFn, seconds: st.SearchStrategy[float]) -> ExperimentFacts:
    """Any tries and attempts, with clocks as they like and records missing at will."""
    count = draw(st.integers(1, 4))
    owners = [
        a_try(k, draw(seconds), final=draw(st.integers(0, 9)) == 0)
        for k in range(1, count + draw(st.integers(0, 2)) + 1)
    ]
    attempts = [draw(attempts_of(number, seconds)) for number in range(1, count + 1)]
    return story(*owners, *attempts)


@st.composite
def attempts_of(draw: st.DrawFn, number: int, seconds: st.SearchStrategy[float]) -> AttemptRecords:
    commits = {name(number, n): draw(seconds) for n in range(draw(st.integers(0, 4)))}
    phases = draw(st.lists(st.tuples(PHASES, seconds), max_size=8))
    made = attempt(
        number,
        claimed=draw(seconds),
        k=draw(st.integers(1, 5)),
        phases=phases,
        commits=commits,
        restored=draw(st.sampled_from([None, name(1, 0), name(number - 1, 1), "attempts/000009/x"]))
        if number > 1
        else None,
        ended=draw(st.none() | st.tuples(st.sampled_from(["success", "failed", "cancelled"]), seconds)),
        noticed=draw(st.none() | st.tuples(st.sampled_from(["success", "failed"]), seconds)),
        answers_clear=draw(st.sampled_from([None, True, False])),
    )
    if draw(st.booleans()):
        sign = alive(draw(PHASES), draw(seconds), written=draw(seconds))
        made = replace(made, alive=sign, alive_age_s=draw(st.none() | st.floats(0, 100)))
    return made


@given(stories(ANY_TIME), ANY_TIME)
def test_every_second_has_one_use(facts: ExperimentFacts, now: float) -> None:
    """Parts are never negative and add up to the whole: over causes, attempts and tries, whatever the clocks say."""
    found = goodput(facts, now=at(now))
    for spent in (found.total, *(one.spent for one in (*found.attempts, *found.tries))):
        values = [spent.productive_s, *spent.lost_s.values()]
        assert min(values) >= 0
        assert sum(values) == pytest.approx(spent.wall_s)
        assert set(spent.lost_s) == set(Cause)
        assert spent.fraction is None or 0 <= spent.fraction <= 1
    assert sum(one.spent.wall_s for one in found.attempts) == pytest.approx(found.total.wall_s)
    if found.tries:
        assert sum(one.spent.wall_s for one in found.tries) == pytest.approx(found.total.wall_s)
    for cause in Cause:
        assert sum(one.spent.lost_s[cause] for one in found.attempts) == pytest.approx(found.total.lost_s[cause])


@given(stories(SECONDS), st.floats(0, 500))
def test_it_is_the_same_value_for_the_same_records(facts: ExperimentFacts, later: float) -> None:
    """A look later adds time only where something still goes on."""
    first, second = goodput(facts, now=at(3_000)), goodput(facts, now=at(3_000 + later))
    assert first == goodput(facts, now=at(3_000))
    assert second.total.wall_s >= first.total.wall_s - 1e-6
    if facts.attempts[-1].final_outcome is not None:
        assert second == first


def committed(num: int) -> ExperimentFacts:
    commits = {name(1, n): 30 + n for n in range(num)}
    return story(a_try(1, 0), attempt(1, claimed=2, phases=HEALTHY, commits=commits, ended=("success", num + 100)))


def test_goodput_is_linear_in_the_checkpoints() -> None:
    work = []
    for num in (250, 1_000, 4_000):
        facts, now = committed(num), at(num + 1_000)
        work.append((num, num_calls(partial(goodput, facts, now=now))))
    assert steepest(work) < 1.1, work
    assert goodput(committed(10_000), now=at(11_000)).total.productive_s == 10_080
