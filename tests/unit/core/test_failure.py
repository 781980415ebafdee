"""A failure is written whatever text a training ends with."""

from __future__ import annotations

import json

import pytest

from airflow_provider.core.failure import MAX_DETAIL, Failure, FailureKind
from airflow_provider.core.records import OutcomeRecord
from tests.support.records import outcome

ODD = ["a\0b", "a\ud800b", "a\udfffb", "\udcff\udc80", "\ud83d\ude00", "\0" * 3]


@pytest.mark.parametrize("text", ODD)
def test_nul_and_lone_surrogates_are_replaced_and_the_record_survives(text: str) -> None:
    """Ray reads a log as bytes; Postgres and UTF-8 take neither."""
    failure = Failure(kind=FailureKind.USER, reason=f"{text}!", detail=f"{text}?")
    for told in (failure.reason, failure.detail):
        told.encode()
        assert "\0" not in told
    assert failure.reason.endswith("!")
    record = outcome("failed", failure=failure)
    assert OutcomeRecord.parse(record.body(), key="k").failure == failure
    assert json.loads(failure.model_dump_json())["reason"] == failure.reason


def test_a_whole_pair_of_surrogates_is_the_letter_it_means() -> None:
    assert Failure(kind=FailureKind.USER, reason="\ud83d\ude00").reason == "\U0001f600"


@pytest.mark.parametrize("size", [MAX_DETAIL - 1, MAX_DETAIL, MAX_DETAIL + 1, 5_000_000])
def test_of_a_long_detail_the_end_is_kept(size: int) -> None:
    """An exception stands at the end. Longer ones were refused, and so the outcome was never written."""
    detail = "x" * (size - 3) + "END"
    failure = Failure(kind=FailureKind.USER, reason="r", detail=detail)
    assert failure.detail == detail[-MAX_DETAIL:]
    assert len(failure.detail) == min(size, 8_000)
    assert Failure.model_validate_json(failure.model_dump_json()) == failure
