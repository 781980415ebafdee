"""Whatever stands in the records, what goes to XCom is strict JSON within its limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.lineage import XCOM_LIMIT, ExperimentFacts, lineage_xcom, project, result_xcom
from airflow_provider.core.record_parts import CheckpointFile
from airflow_provider.core.records import RestoredRecord
from tests.support.records import NOW, attempt_records, claim, entry, outcome, owner

ASCII = "x" * 2_000
WIDE = "😀" * 2_000
"""12 bytes each in JSON."""


@pytest.mark.parametrize("text", [ASCII, WIDE, "\x01" * 2_000])
def test_names_and_ids_of_damaged_records_do_not_break_the_limit(text: str) -> None:
    metrics = {f"{text[:150]}{n}": text for n in range(500)} | {"loss": 0.5}
    failure = Failure(kind=FailureKind.USER, reason=text * 10)
    attempt = attempt_records(
        1,
        claim=claim(1, 1, submission_id=text, intent=text),
        restored=RestoredRecord(checkpoint=text, reason=text, created_at=NOW),
        recorded=(entry(text, metrics=metrics, parent=text, files=(CheckpointFile(key="a", size=2**62),) * 9),),
        outcome=outcome("failed", failure=failure, latest_checkpoint=text, best_checkpoint=text),
    )
    owners = (owner(1, run_id=text, submission_id=text),)
    lineage = project(ExperimentFacts(f"s3://bucket/{text}", owners, (attempt,)))
    sent: list[dict[str, Any]] = [lineage_xcom(lineage), result_xcom(lineage, [attempt], new_checkpoints=1)]
    for value in sent:
        assert len(json.dumps(value, allow_nan=False)) <= XCOM_LIMIT
        assert value.get("truncated", False) is (text is not ASCII)
    assert sent[0]["checkpoints"][0]["size_bytes"] < 2**63
    assert sent[1]["state"] == "failed"


def test_a_result_of_the_usual_size_is_left_as_it_is() -> None:
    attempt = attempt_records(1, outcome=outcome(latest_checkpoint="c"))
    lineage = project(ExperimentFacts("s3://b/e", (owner(1),), (attempt,)))
    assert "truncated" not in result_xcom(lineage, [attempt], new_checkpoints=0)
