"""Logs: the streamed body of a whole log, and the frames of a live one."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.client.log_body import LogBody, NotALog
from airflow_provider.client.log_place import count_in_lines
from airflow_provider.client.log_reader import LogReader
from airflow_provider.client.log_tail import last_chunk
from airflow_provider.client.log_text import MAX_LINE
from airflow_provider.client.values import LogPart
from airflow_provider.core.final_exception import final_chains
from airflow_provider.core.redaction import redact
from tests.support.damage import damaged_bytes, examples

PARTS = st.sampled_from(
    [
        "line\n",
        "\r",
        "\x1b[31m",
        "\x1b]0;",
        "::group::x",
        "50%|###  | 1/2 [00:01]",
        "\ud800",
        "\udc00",
        "\0",
        "😀",
        '"',
        "\\",
    ]
)
TEXTS = st.lists(PARTS | st.text(max_size=8) | st.sampled_from(["y" * 70_000, "\n" * 99]), max_size=12).map("".join)
CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def pieces(data: Any, cuts: list[int]) -> list[Any]:
    found, start = [], 0
    for number in range(len(data)):
        size = cuts[number % len(cuts)] * (1 if len(data) < 2_000 else 500)
        found.append(data[start : start + size])
        start += size
        if start >= len(data):
            break
    return found


@given(TEXTS, st.booleans(), CUTS, st.integers(0, 200), st.integers(1, 300))
@examples(150)
def test_a_log_body_gives_the_same_text_however_it_is_cut(
    text: str, is_ascii: bool, cuts: list[int], position: int, limit: int
) -> None:
    raw = json.dumps({"logs": text}, ensure_ascii=is_ascii).encode("utf-8", "replace")
    whole = json.loads(raw)["logs"]
    body = LogBody(position=position, max_chars=limit)
    for piece in pieces(raw, cuts):
        body.feed(piece)
    part = body.finish()
    assert part.text == whole[position:][-limit:]
    assert (part.is_complete, part.num_dropped) == (True, max(0, len(whole[position:]) - limit))


@given(TEXTS.flatmap(lambda t: damaged_bytes(json.dumps({"logs": t}).encode())), CUTS)
@examples(150)
def test_a_damaged_log_body_is_text_or_no_log(raw: bytes, cuts: list[int]) -> None:
    body = LogBody(position=0, max_chars=1_000)
    with contextlib.suppress(NotALog):
        for piece in pieces(raw, cuts):
            body.feed(piece)
        assert len(body.finish().text) <= 1_000


@given(st.lists(TEXTS, max_size=6), st.integers(0, 50))
@examples(150)
def test_frames_of_any_kind_give_lines_that_a_task_log_takes(frames: list[str], position: int) -> None:
    reader = LogReader(position=position, max_partial=1_000)
    reader.begin()
    shown = [line for frame in frames for line in reader.feed(frame)]
    whole = "".join(frames)
    rest = LogPart(text=whole[reader.safe_position :], position=len(whole), num_in_lines=count_in_lines(whole))
    chunk = last_chunk(rest, reader=reader)
    for line in [*shown, *chunk.lines]:
        line.encode()
        assert len(line) <= MAX_LINE + 100
        assert not any(c in line for c in "\0\n\r\x1b")
        assert "::group::" not in line


@given(TEXTS)
@examples(80)
def test_any_log_can_be_searched_for_its_exception(text: str) -> None:
    final_chains(text + "\nValueError: x\n" + text)
    redact(text)
