"""A driver's silence counts while it could have been broken, and only then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.driver_silence import Sightings, counted_silence_s

LOOKS = st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=12)
"""Of one thing: seconds since the last look, and whether it was seen."""


def looked(looks: list[tuple[int, bool]]) -> tuple[Sightings, set[int]]:
    """What is kept, and the seconds of which nobody knows."""
    kept, now, last, unknown = Sightings(0.0), 0, 0, set[int]()
    for seconds, is_seen in looks:
        now += seconds
        if is_seen:
            unknown |= set(range(last, now)) if kept.is_away else set()
            kept, last = kept.seen(float(now)), now
        else:
            kept = kept.missed()
    return kept, unknown


@given(LOOKS, LOOKS, st.integers(0, 700), st.integers(0, 700))
def test_each_second_counts_in_which_all_could_be_seen(
    of_cluster: list[tuple[int, bool]], of_bucket: list[tuple[int, bool]], since: int, silence: int
) -> None:
    (cluster, unknown), (bucket, more) = looked(of_cluster), looked(of_bucket)
    now = since + silence
    expected = len(set(range(since, now)) - unknown - more)
    assert counted_silence_s(float(since), float(now), cluster, bucket) == expected
    kept = [one.since(float(since)) for one in (cluster, bucket)]
    assert counted_silence_s(float(since), float(now), *kept) == expected, "what is forgotten was over before"
    assert all(end > since for one in kept for _, end in one.outages)


def test_an_outage_lasts_from_the_last_look_that_succeeded_to_the_next() -> None:
    kept = Sightings(0.0).seen(10.0).missed().missed().seen(40.0).seen(50.0)
    assert kept == Sightings(50.0, outages=((10.0, 40.0),))
    assert counted_silence_s(5.0, 60.0, kept) == 25.0
    assert counted_silence_s(20.0, 60.0, kept) == 20.0
