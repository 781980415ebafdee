"""What ends a driver, what doesn't, and with which word."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, StoreUnreachable
from airflow_provider.core.job import EXIT_CANCELLED, EXIT_SUPERSEDED, TrainingKind
from airflow_provider.core.job_spec import JobSpec, TrainingSpec
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.records import AliveRecord, ClaimRecord, OwnerRecord, Phase, Record, StopRecord
from airflow_provider.runtime.claim_watch import ClaimWatch
from airflow_provider.runtime.standing import Hit, HitKind, Standing
from airflow_provider.runtime.storage import ExperimentStore

NOW = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


@pytest.fixture
def store(tmp_path: Path) -> ExperimentStore:
    return ExperimentStore(pyarrow.fs.LocalFileSystem(), str(tmp_path))


def spec(**fields: Any) -> JobSpec:
    values: dict[str, Any] = {
        "experiment_uri": "/nowhere",
        "ref": AttemptRef(generation=1, attempt=2),
        "k": 5,
        "submission_id": "job-2",
        "training": TrainingSpec(kind=TrainingKind.TRAIN_LOOP, target="m:f"),
    }
    return JobSpec(**(values | fields))


def standing(store: ExperimentStore, **fields: Any) -> Standing:
    return Standing(store, spec(**fields), run_uid="me")


def owner(k: int, *, final: bool = False) -> OwnerRecord:
    return OwnerRecord(
        k=k,
        dag_id="d",
        run_id="r",
        task_id="t",
        dag_run_identity="i",
        try_number=k,
        max_tries=3,
        created_at=NOW,
        final=final,
    )


def alive(uid: str) -> AliveRecord:
    return AliveRecord(run_uid=uid, phase=Phase.TRAINING, phase_since=NOW, written_at=NOW)


def claim(submission_id: str = "job-2") -> ClaimRecord:
    return ClaimRecord(
        k=5,
        generation=1,
        attempt=2,
        submission_id=submission_id,
        address="http://ray",
        try_number=1,
        intent="start",
        spec_digest="s",
        code_digest="c",
        created_at=NOW,
    )


def test_nothing_new_is_no_hit(store: ExperimentStore) -> None:
    store.write_record(layout.claim(1, 2), claim())
    store.write_record(layout.alive(1, 2), alive("me"))
    for k in (4, 5, 6):
        store.write_record(layout.owner(k), owner(k))
    assert standing(store).look(now=NOW) is None


HITS: list[tuple[str, Record, HitKind]] = [
    (layout.claim(1, 3), claim(), HitKind.SUPERSEDED),
    (layout.claim(2, 1), claim(), HitKind.SUPERSEDED),
    (layout.owner(6), owner(6, final=True), HitKind.STOPPED),
    (layout.alive(1, 2), alive("another"), HitKind.SUPERSEDED),
]


@pytest.mark.parametrize(("key", "record", "kind"), HITS, ids=[key for key, _, _ in HITS])
def test_each_record_that_ends_a_driver(store: ExperimentStore, key: str, record: Record, kind: HitKind) -> None:
    """PROTOCOL 3.1 and 3.4."""
    store.write_record(key, record)
    hit = standing(store).look(now=NOW)
    assert hit is not None
    assert hit.kind is kind


@pytest.mark.parametrize("k", [5, 7])
def test_stop_record_of_the_claims_owner_or_a_newer_one(store: ExperimentStore, k: int) -> None:
    """An attached try stops under its own, newer number."""
    store.write_record(layout.owner(k), owner(k))
    store.write_record(layout.stop(1, 2, k), StopRecord(k=k, reason="deadline of the task", created_at=NOW))
    hit = standing(store).look(now=NOW)
    assert hit is not None
    assert (hit.kind, hit.exit_code) == (HitKind.STOPPED, EXIT_CANCELLED)
    assert "deadline of the task" in hit.reason


@pytest.mark.parametrize(
    ("why", "words"),
    [("the task was marked failed", "for good: the task was marked failed"), (None, "for good")],
    ids=["told", "by an older release"],
)
def test_a_final_owner_says_why(store: ExperimentStore, why: str | None, words: str) -> None:
    """The lineage page shows this sentence; the stop record, which tells it too, may come a moment later."""
    store.write_record(layout.owner(6), owner(6, final=True).model_copy(update={"final_because": why}))
    hit = standing(store).look(now=NOW)
    assert hit is not None
    assert hit.reason == f"owner 6 ended the task {words}"


def test_older_final_owner_is_no_hit(store: ExperimentStore) -> None:
    """It was written before our claim: somebody started the task again since."""
    store.write_record(layout.owner(4), owner(4, final=True))
    assert standing(store).look(now=NOW) is None


def test_deadline(store: ExperimentStore) -> None:
    assert standing(store, deadline=NOW + timedelta(seconds=1)).look(now=NOW) is None
    hit = standing(store, deadline=NOW).look(now=NOW)
    assert hit is not None
    assert hit.kind is HitKind.DEADLINE


def test_first_look_wants_the_own_claim(store: ExperimentStore) -> None:
    """No claim: the cluster looks at another store, which is an error to show. Another job's: no right to commit."""
    with pytest.raises(InvalidConfig, match="reads another store than Airflow"):
        standing(store).first_look(now=NOW)
    store.write_record(layout.claim(1, 2), claim("job-of-another"))
    foreign = standing(store).first_look(now=NOW)
    assert foreign is not None
    assert foreign.exit_code == EXIT_SUPERSEDED
    store.write_record(layout.claim(1, 2), claim())
    assert standing(store).first_look(now=NOW) is None


def test_job_posted_twice_is_noticed_by_its_manifest(store: ExperimentStore) -> None:
    """PROTOCOL 5, story 4: the first run may have been accepted by a cluster that was replaced."""
    store.write_record(layout.claim(1, 2), claim())
    store.write(layout.manifest(1, 2), b"{}")
    hit = standing(store).first_look(now=NOW)
    assert hit is not None
    assert "posted twice" in hit.reason


class _Away:
    def __call__(self, now: datetime) -> Hit | None:
        raise StoreUnreachable("The object store did not answer")


def watch(look: Any, obeyed: list[Hit], *, deadline: datetime | None = None) -> ClaimWatch:
    return ClaimWatch(look, obey=obeyed.append, now=lambda: NOW, deadline=deadline, period_s=0.01)


def test_store_errors_are_never_a_hit(capsys: pytest.CaptureFixture[str]) -> None:
    """G5: training goes on while the store is away; said once."""
    obeyed: list[Hit] = []
    watching = watch(_Away(), obeyed)
    watching.poll()
    watching.poll()
    assert obeyed == []
    assert capsys.readouterr().out.count("can't be checked") == 1


def test_hit_is_obeyed_and_a_stopped_watch_obeys_no_more() -> None:
    hit, obeyed = Hit(HitKind.STOPPED, "asked"), list[Hit]()
    watching = watch(lambda _now: hit, obeyed)
    watching.poll()
    watching.stop()
    watching.poll()
    assert obeyed == [hit]


def test_deadline_holds_while_the_look_hangs() -> None:
    """The store's silence must not keep a driver alive beyond its deadline."""
    obeyed: list[Hit] = []
    watching = watch(_Away(), obeyed, deadline=NOW)
    watching.await_deadline(NOW)
    assert [hit.kind for hit in obeyed] == [HitKind.DEADLINE]
