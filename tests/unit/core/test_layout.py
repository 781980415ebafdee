"""Keys and back: a key that is read as another record's breaks fencing or frees a quarantined checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider.core import layout

NUMBERS = st.integers(1, 999_999)
OTHER_DIGITS = 6 * "\N{DEVANAGARI DIGIT TWO}"
NAMES = st.lists(
    (st.text("a~%7E25.", min_size=1, max_size=8) | st.text(min_size=1, max_size=8).filter(lambda s: "/" not in s)),
    min_size=1,
    max_size=3,
).map("/".join)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_numbers_survive_the_way_through_a_key(g: int, n: int, k: int) -> None:
    assert layout.parse_owner(layout.owner(k)) == k
    for key in (
        layout.claim(g, n),
        layout.stop(g, n, k),
        layout.restored(g, n),
        layout.alive(g, n),
        layout.outcome(g, n),
        layout.collected(g, n),
        layout.segment(g, n, f"{k:06d}"),
        layout.manifest(g, n),
    ):
        assert layout.parse_attempt(key) == (g, n)
        assert layout.parse_generation(key) == g
        assert layout.parse_owner(key) is None
    assert layout.parse_stop(layout.stop(g, n, k)) == k
    assert layout.parse_attempt(layout.published_manifest(g)) is None
    assert layout.parse_generation(layout.published_manifest(g)) == g


@given(NUMBERS, NUMBERS)
def test_keys_sort_like_their_numbers(a: int, b: int) -> None:
    """Listings come sorted by text; the newest is the last."""
    assert (layout.owner(a) < layout.owner(b)) == (a < b)
    assert (layout.attempt(1, a) < layout.attempt(1, b)) == (a < b)


@pytest.mark.parametrize(
    "key",
    [
        "owners/1.json",
        "owners/0000001.json",
        "owners/000001.json.tmp",
        "x/owners/000001.json",
        "owners/stop-000001.json",
        f"owners/{OTHER_DIGITS}.json",
        "owners/000001.json\n",
    ],
)
def test_other_keys_are_no_owners(key: str) -> None:
    assert layout.parse_owner(key) is None


@pytest.mark.parametrize("key", ["g1/attempts/1/claim.json", "attempts/000001/claim.json", "g000001/attempts/000001"])
def test_other_keys_are_in_no_attempt(key: str) -> None:
    assert layout.parse_attempt(key) is None


@pytest.mark.parametrize("key", ["g000001/attempts/000001/stop-1.json", "g000001/attempts/000001/stop-000001.json.x"])
def test_other_keys_are_no_stops(key: str) -> None:
    assert layout.parse_stop(key) is None


@given(NUMBERS, NAMES)
@example(1, "attempts/000002/copy_of~attempts~000001~c1")
@example(1, "c%7E1")
def test_a_quarantined_name_survives_the_way_through_its_key(g: int, name: str) -> None:
    """A copy of a retired checkpoint has `~` in its name: it must not read as another checkpoint."""
    key = layout.quarantine(g, name)
    assert layout.quarantined_name(key) == name
    assert "/" not in key.removeprefix(f"{layout.generation(g)}/quarantine/")


def test_a_quarantine_key_is_legible() -> None:
    key = layout.quarantine(1, "attempts/000002/checkpoint_2026-11-20_10-00-00.000001")
    assert key == "g000001/quarantine/attempts~000002~checkpoint_2026-11-20_10-00-00.000001.json"
    assert layout.quarantined_name("g000001/attempts/000001/claim.json") is None


def test_the_layout_is_the_protocols() -> None:
    assert layout.owner(3) == "owners/000003.json"
    assert layout.claim(1, 2) == "g000001/attempts/000002/claim.json"
    assert layout.stop(1, 2, 3) == "g000001/attempts/000002/stop-000003.json"
    assert layout.segment(1, 2, "000001") == layout.segments(1, 2) + "000001.json"
    assert layout.manifest(1, 2) == "g000001/attempts/000002/checkpoint_manager_snapshot.json"
    assert layout.published_manifest(1) == "g000001/checkpoint_manager_snapshot.json"


def test_digits_of_another_script_number_nothing() -> None:
    """A foreign object with one would leave a gap in the numbers, and who looks for the next one would see no newer owner."""
    assert layout.parse_generation(f"g{OTHER_DIGITS}/") is None
    assert layout.parse_attempt(f"g000001/attempts/{OTHER_DIGITS}/") is None
    assert layout.parse_stop(f"g000001/attempts/000001/stop-{OTHER_DIGITS}.json") is None
