"""What is computed of a success before it is accepted: whatever readable records say, nothing of it may lose the training."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.goodput import goodput_sentence
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.lineage import XCOM_LIMIT, AttemptRecords, ExperimentFacts
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.publishing import MetricGate, judge, published_model
from airflow_provider.core.records import (
    CollectedRecord,
    OwnerRecord,
    Phase,
    PhaseEntry,
    RecordSegment,
    RestartEntry,
    RestoredRecord,
)
from airflow_provider.operators.collecting import Published, project_results
from tests.support.damage import JUNK, examples, is_utf8
from tests.support.records import NOW, alive, claim, collected, entry, outcome, owner, ref

UTC = timezone.utc
TIMES = st.one_of(
    st.sampled_from([datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 12, 31, tzinfo=UTC), NOW]),
    st.integers(-100_000, 100_000).map(lambda s: NOW + timedelta(seconds=s)),
    st.integers(86_400, 221_000_000_000).map(lambda s: datetime.fromtimestamp(s, UTC)),
)
NAMES = st.sampled_from(
    [
        "attempts/000001/checkpoint_0",
        "attempts/000001/checkpoint_1",
        "attempts/000002/checkpoint_0",
        "attempts/000002/restored-from-attempts~000001~checkpoint_0",
        "attempts/000002/restored-from-",
        "mine/g1/a1-k1/epoch_0",
        "x" * 4_000,
        "\u202e/a",
    ]
)
METRICS = st.dictionaries(st.sampled_from(["epoch", "loss", "NaN", ""]), JUNK, max_size=3)
GATE = MetricGate(metric="loss", mode="min", threshold=1.0, better_than_last=True)


@st.composite
def segments(draw: st.DrawFn) -> RecordSegment:
    entries = [
        entry(
            draw(NAMES),
            reported_at=draw(TIMES),
            parent=draw(st.none() | NAMES),
            late=draw(st.booleans()),
            metrics=draw(METRICS),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    lost = Failure(kind=FailureKind.INFRASTRUCTURE, reason="a node died")
    return RecordSegment(
        checkpoints=tuple(entries),
        restarts=tuple(
            RestartEntry(failure=lost, decision="retry", at=draw(TIMES)) for _ in range(draw(st.integers(0, 2)))
        ),
        phases=tuple(
            PhaseEntry(phase=draw(st.sampled_from(Phase)), at=draw(TIMES)) for _ in range(draw(st.integers(0, 5)))
        ),
        written_at=NOW,
    )


@st.composite
def attempts(draw: st.DrawFn, number: int) -> AttemptRecords:
    is_newest = number == 2
    names = draw(st.lists(NAMES, max_size=4))
    listed = Manifest(
        entries=tuple(ManifestEntry(name, draw(METRICS)) for name in names),
        report_indices=tuple(draw(st.lists(st.integers(-1, 9), max_size=4))),
    )
    restored = RestoredRecord(checkpoint=draw(st.none() | NAMES), reason="", created_at=draw(TIMES))
    ended: Any = outcome(
        "success" if is_newest else draw(st.sampled_from(["success", "failed", "cancelled", "superseded"])),
        latest_checkpoint=draw(st.none() | NAMES),
        best_checkpoint=draw(st.none() | NAMES),
        carried_from=draw(st.none() | st.just(ref(1, 1))),
    ).model_copy(update={"finished_at": draw(TIMES)})
    signs = alive().model_copy(
        update={
            "phase": draw(st.sampled_from(Phase)),
            "phase_since": draw(TIMES),
            "written_at": draw(TIMES),
            "last_checkpoint": draw(st.none() | NAMES),
            "last_commit_at": draw(st.none() | TIMES),
        }
    )
    concluded: CollectedRecord = collected(draw(st.sampled_from([None, True, False]))).model_copy(
        update={"written_at": draw(TIMES), "outcome": draw(st.sampled_from([None, ended]))}
    )
    return AttemptRecords(
        claim=claim(1, number, k=number, answers_clear=draw(st.sampled_from([None, True, False]))).model_copy(
            update={"created_at": draw(TIMES)}
        ),
        restored=draw(st.sampled_from([None, restored])),
        outcome=ended if is_newest else draw(st.sampled_from([None, ended])),
        collected=draw(st.sampled_from([None, concluded])),
        manifest=draw(st.sampled_from([None, listed])),
        segments=tuple(draw(st.lists(segments(), max_size=2))),
        uncommitted=tuple(draw(st.lists(NAMES, max_size=2))),
        alive=draw(st.sampled_from([None, signs])),
        alive_age_s=draw(st.sampled_from([None, 0.0, -5.0, 1e9])),
    )


@st.composite
def owners(draw: st.DrawFn) -> OwnerRecord:
    gave_up = Failure(kind=FailureKind.CONFIG, reason="x")
    changes = {"gave_up": draw(st.sampled_from([None, gave_up])), "final": draw(st.booleans())}
    return owner(draw(st.integers(1, 4)), **changes).model_copy(update={"created_at": draw(TIMES)})


def published(facts: ExperimentFacts, now: datetime) -> Published:
    found = project_results(facts, now=now)
    for value in (found.lineage_xcom, found.result):
        assert len(json.dumps(value, allow_nan=False)) <= XCOM_LIMIT
        assert is_utf8(value)
    assert found.warning is None or found.new_checkpoints == 0
    assert goodput_sentence(found.goodput.total)
    return found


@given(attempts(1), attempts(2), st.lists(owners(), max_size=4, unique_by=lambda one: one.k), TIMES)
@examples(60)
def test_nothing_that_is_published_can_be_lost_to_what_records_say(
    first: AttemptRecords, second: AttemptRecords, owned: list[OwnerRecord], now: datetime
) -> None:
    owned.sort(key=lambda one: one.k)
    facts = ExperimentFacts("s3://b/e", tuple(owned), (first, second), {1: frozenset({"attempts/000001/checkpoint_0"})})
    found = published(facts, now)
    model = published_model(
        found.lineage, found.result, ref=ref(1, 2), key=TaskInstanceKey("d", "r", "t"), progress_metric="epoch"
    )
    assert is_utf8(model.extra())
    assert judge(GATE, model, last=None).reason
    total = found.goodput.total
    assert min(total.wall_s, total.productive_s, *total.lost_s.values()) >= 0
    for k in range(5):
        assert found.goodput.collected_by(k).wall_s >= 0
