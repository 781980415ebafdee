"""A place in a log holds where Ray's tail gave a line end that a later reading of the file doesn't have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.client import LogPart, LogReader
from airflow_provider.client.log_place import LogPlace, Skip, count_in_lines
from airflow_provider.client.log_tail import pieces

LINES = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=12)
CUTS = st.lists(st.tuples(st.integers(0, 80), st.sets(st.integers(0, 11)), st.integers(1, 9)), max_size=4)


def tailed(lines: list[str], doubled: set[int]) -> str:
    """A session's text: some lines end twice."""
    return "".join(f"{line}\n" + "\n" * (number in doubled) for number, line in enumerate(lines))


@given(LINES, CUTS)
def test_each_line_comes_once_however_often_its_end_came(
    lines: list[str], sessions: list[tuple[int, set[int], int]]
) -> None:
    reader, shown = LogReader(), list[str]()
    for end, doubled, size in sessions:
        reader.begin()
        text = tailed(lines, doubled)[:end]
        for start in range(0, len(text), size):
            shown += reader.feed(text[start : start + size])
    file = tailed(lines, set())
    rest = file[reader.safe_position :]
    for piece in pieces(LogPart(rest, len(file), count_in_lines(file))):
        shown += reader.finish(piece)
    assert [line for line in shown if line] == lines


@given(LINES, CUTS.filter(bool))
def test_a_part_read_meanwhile_repeats_nothing(lines: list[str], sessions: list[tuple[int, set[int], int]]) -> None:
    """The file is read from where we were; the tail goes on until it has arrived."""
    reader, shown = LogReader(), list[str]()
    (end, doubled, _), file = sessions[0], tailed(lines, set())
    text = tailed(lines, doubled)
    reader.begin()
    shown += reader.feed(text[:end])
    part = LogPart(file[reader.safe_position :], len(file), count_in_lines(file))
    shown += reader.feed(text[end : end + 10])
    shown += reader.finish(part)
    assert [line for line in shown if line] == lines


@given(st.text(alphabet="a\n", max_size=40), st.integers(0, 40), st.integers(1, 9))
def test_the_same_text_is_skipped_to_the_character(text: str, end: int, size: int) -> None:
    place, head = LogPlace(), text[:end]
    for start in range(0, len(head), size):
        place.advance(head[start : start + size])
    skip = Skip(place.num_in_lines, place.num_ends)
    rest = "".join(skip.behind(text[start : start + size]) for start in range(0, len(text), size))
    assert rest == text[end:]
