"""A recovery's shares add up to its whole time, whatever the marks say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shares import AIRFLOW, AWAY, DECIDE, DETECT, RESTORE, SHARES, START, Cut, split


def test_each_share_gets_the_time_before_its_cut() -> None:
    cuts = [Cut(DETECT, 101.0), Cut(AIRFLOW, 103.5), Cut(DECIDE, 104.0), Cut(START, 116.0), Cut(RESTORE, 116.5)]
    shares = split(cuts, begin=100.0)
    assert shares == {DETECT: 1.0, AIRFLOW: 2.5, DECIDE: 0.5, START: 12.0, RESTORE: 0.5, AWAY: 0.0}


def test_a_share_may_come_twice() -> None:
    shares = split([Cut(AIRFLOW, 1.0), Cut(DECIDE, 3.0), Cut(AIRFLOW, 6.0)], begin=0.0)
    assert (shares[AIRFLOW], shares[DECIDE]) == (4.0, 2.0)


def test_an_unknown_moment_gives_its_time_to_the_next() -> None:
    assert split([Cut(DETECT, None), Cut(DECIDE, 2.0)], begin=0.0)[DECIDE] == 2.0


def test_time_that_nobody_told_is_never_airflows() -> None:
    shares = split([Cut(DETECT, None), Cut(AIRFLOW, 2.0), Cut(DECIDE, 3.0), Cut(AIRFLOW, 5.0)], begin=0.0)
    assert (shares[DETECT], shares[AIRFLOW], shares[DECIDE]) == (2.0, 2.0, 1.0)


def test_a_moment_out_of_order_takes_nothing_and_moves_nothing_back() -> None:
    shares = split([Cut(DETECT, 5.0), Cut(DECIDE, 4.0), Cut(START, 6.0)], begin=0.0)
    assert (shares[DETECT], shares[DECIDE], shares[START]) == (5.0, 0.0, 1.0)


@given(st.lists(st.tuples(st.sampled_from(SHARES), st.none() | st.floats(0, 1e6))), st.floats(0, 1e6))
def test_shares_are_never_negative_and_add_up(cuts: list[tuple[str, float | None]], begin: float) -> None:
    shares = split([Cut(*one) for one in cuts], begin=begin)
    last = max([begin, *(at for _, at in cuts if at is not None)])
    assert min(shares.values()) >= 0
    assert sum(shares.values()) == pytest.approx(last - begin)
