"""The look at the restore point before anything is claimed: few calls, pruned told from corrupt, unfenced runs read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider.core.errors import NoUsableCheckpoint, RecordUnreadable, StoreUnreachable
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import CheckpointEntry, RecordSegment, RestoredRecord
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.restore_scan import scan_restore_point
from tests.support.counting_store import CountingStore
from tests.support.experiment import NOW, claim
from tests.support.memory_store import MemoryStore
from tests.support.records import outcome

THIRD = AttemptRef(generation=1, attempt=3)


def manifest(*names: str, **metrics: dict[str, float]) -> bytes:
    entries = [{"version": 0, "checkpoint_dir_name": n, "metrics": metrics.get(n, {})} for n in names]
    return json.dumps({"checkpoint_results": entries, "latest_checkpoint_result": entries[-1]}).encode()


def name(attempt: int, number: int) -> str:
    return f"attempts/{attempt:06d}/checkpoint_{number:06d}"


class Bucket:
    """An experiment of two attempts to fill by hand."""

    def __init__(self) -> None:
        self.store = MemoryStore("memory://experiment")
        for number in (1, 2):
            record = claim(1, number)
            self.store.write(f"g000001/attempts/{number:06d}/claim.json", record.body())
        self.entries: dict[int, list[CheckpointEntry]] = {1: [], 2: []}

    def put(self, checkpoint: str, body: bytes = b"weights") -> None:
        self.store.write(f"g000001/{checkpoint}/state.pt", body)

    def record(self, attempt: int, *checkpoints: str, size: int = 7) -> None:
        for checkpoint in checkpoints:
            files = (CheckpointFile(key="state.pt", size=size),)
            self.entries[attempt].append(CheckpointEntry(checkpoint=checkpoint, files=files, reported_at=NOW))
        body = RecordSegment(checkpoints=tuple(self.entries[attempt]), written_at=NOW).body()
        self.store.write(f"g000001/attempts/{attempt:06d}/records/000001.json", body)

    def list_in(self, attempt: int, *checkpoints: str, **metrics: dict[str, float]) -> None:
        body = manifest(*checkpoints, **metrics)
        self.store.write(f"g000001/attempts/{attempt:06d}/checkpoint_manager_snapshot.json", body)

    def scan(self, **policy: Any) -> Any:
        return scan_restore_point(ExperimentRecords(self.store), ref=THIRD, policy=RestorePolicy(**policy))


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def test_the_newest_manifests_latest_is_taken(bucket: Bucket) -> None:
    bucket.put(name(1, 1))
    bucket.put(name(2, 2))
    bucket.record(2, name(2, 2))
    bucket.list_in(1, name(1, 1))
    bucket.list_in(2, name(1, 1), name(2, 2))
    point = bucket.scan()
    assert point.candidate.name == name(2, 2)
    assert point.skipped == ()


def test_a_truncated_latest_rolls_back_and_says_so(bucket: Bucket) -> None:
    """G3: the file list is compared before GPUs are taken."""
    bucket.put(name(1, 1))
    bucket.put(name(2, 2), b"cut")
    bucket.record(1, name(1, 1))
    bucket.record(2, name(2, 2))
    bucket.list_in(2, name(1, 1), name(2, 2))
    point = bucket.scan()
    assert point.candidate.name == name(1, 1)
    assert [s.checkpoint for s in point.skipped] == [name(2, 2)]
    assert "3 bytes instead of 7" in point.skipped[0].why


def test_what_a_loop_committed_that_began_again_is_passed_over_and_said(bucket: Bucket) -> None:
    """As the driver does: the plan and the claim must not name another checkpoint than the one that is restored."""
    good, again = name(1, 4), name(2, 0)
    for checkpoint in (good, again):
        bucket.put(checkpoint)
    bucket.list_in(2, good, again, **{good: {"epoch": 4}, again: {"epoch": 0}})
    assert bucket.scan().candidate.name == again, "nobody said that it began again"
    bucket.store.write("g000001/attempts/000002/outcome.json", outcome("failed", fallen_metric="epoch").body())
    point = bucket.scan()
    assert point.candidate.name == good
    assert [(s.checkpoint, s.why) for s in point.skipped] == [(again, "its loop began again: epoch fell from 4 to 0")]
    assert bucket.scan(mode="explicit", checkpoint=again).candidate.name == again, "a person may wish it"


def test_what_such_a_loop_replaced_in_its_manifest_is_found_all_the_same(bucket: Bucket) -> None:
    """With num_to_keep=1 its manifest lists nothing but the beginning: no reason to refuse the try that follows."""
    good, again = name(1, 4), name(2, 0)
    bucket.put(again)
    bucket.list_in(1, good, **{good: {"epoch": 4}})
    bucket.list_in(2, again, **{again: {"epoch": 0}})
    bucket.store.write("g000001/attempts/000002/outcome.json", outcome("failed", fallen_metric="epoch").body())
    restored = RestoredRecord(checkpoint=good, reason="a retry", metrics={"epoch": 4}, created_at=NOW)
    bucket.store.write("g000001/attempts/000002/restored.json", restored.body())
    with pytest.raises(NoUsableCheckpoint):
        bucket.scan()  # an attempt without the fence did delete it
    bucket.put(good)
    point = bucket.scan()
    assert (point.candidate.name, point.candidate.metrics) == (good, {"epoch": 4})
    assert [s.checkpoint for s in point.skipped] == [again]
    own = name(2, 5)
    bucket.put(own)
    bucket.record(2, own)
    assert bucket.scan().candidate.name == own, "committed before the workers were started again and began again"


def test_a_fall_that_nobody_told_is_found_by_what_was_restored(bucket: Bucket) -> None:
    """The driver died before its outcome; it judges so when it resolves, and the plan must say the same."""
    good, again = name(1, 4), name(2, 0)
    for checkpoint in (good, again):
        bucket.put(checkpoint)
    bucket.list_in(1, good, **{good: {"epoch": 4}})
    bucket.list_in(2, again, **{again: {"epoch": 0}})
    restored = RestoredRecord(checkpoint=good, reason="a retry", metrics={"epoch": 4}, created_at=NOW)
    for metric, chosen in ((None, again), ("loss", again), ("epoch", good)):
        record = restored.model_copy(update={"progress_metric": metric})
        bucket.store.write("g000001/attempts/000002/restored.json", record.body())
        assert bucket.scan().candidate.name == chosen
    bucket.record(2, name(2, 5))
    bucket.store.write("g000001/attempts/000002/outcome.json", outcome("failed").body())
    assert bucket.scan().candidate.name == again, "an outcome knows better"


def test_a_fall_that_has_caught_up_is_found_by_the_records_of_its_first_commits(bucket: Bucket) -> None:
    """num_to_keep=1: what is left of the new beginning stands where the ignored one stood."""
    good, caught_up = name(1, 4), name(2, 4)
    for checkpoint in (good, caught_up):
        bucket.put(checkpoint)
    bucket.list_in(2, caught_up, **{caught_up: {"epoch": 4}})
    for checkpoint, epoch, parent in ((name(2, 0), 0, good), (caught_up, 4, name(2, 0))):
        made = CheckpointEntry(checkpoint=checkpoint, metrics={"epoch": epoch}, parent=parent, reported_at=NOW)
        bucket.entries[2].append(made)
    bucket.record(2)
    restored = RestoredRecord(
        checkpoint=good, reason="a retry", metrics={"epoch": 4}, progress_metric="epoch", created_at=NOW
    )
    bucket.store.write("g000001/attempts/000002/restored.json", restored.body())
    assert bucket.scan().candidate.name == good


def test_a_retired_checkpoint_keeps_a_try_from_being_refused(bucket: Bucket) -> None:
    """Its deletion was held back when the controller died, and what replaced it is damaged: the driver goes on from it."""
    for checkpoint in (name(1, 1), name(1, 2)):
        bucket.put(checkpoint)
    bucket.record(1, name(1, 1))
    bucket.list_in(1, name(1, 2))
    bucket.list_in(2, name(2, 3))
    point = bucket.scan()
    assert point.candidate.name == name(1, 2)
    assert point.candidate.is_retired
    assert [s.checkpoint for s in point.skipped] == [name(2, 3)]
    assert bucket.scan(mode="explicit", checkpoint=name(1, 1)).candidate.name == name(1, 1)
    with pytest.raises(NoUsableCheckpoint):
        bucket.scan(on_corrupt="fail")


def test_records_of_an_attempt_whose_manifest_is_gone_are_no_start_from_scratch(bucket: Bucket) -> None:
    bucket.put(name(2, 3))
    bucket.record(2, name(2, 3))
    empty = json.dumps({"checkpoint_results": [], "latest_checkpoint_result": None}).encode()
    bucket.store.write("g000001/attempts/000001/checkpoint_manager_snapshot.json", empty)
    assert bucket.scan().candidate.name == name(2, 3)


def test_on_corrupt_fail_refuses_to_roll_back(bucket: Bucket) -> None:
    bucket.put(name(1, 1))
    bucket.list_in(2, name(1, 1), name(2, 2))
    with pytest.raises(NoUsableCheckpoint, match="on_corrupt='fail'"):
        bucket.scan(on_corrupt="fail")


def test_pruned_checkpoints_are_neither_corrupt_nor_listed_one_by_one(bucket: Bucket) -> None:
    """Retention deleted 500 of them; only folders are listed to know that."""
    pruned = [name(1, n) for n in range(500)]
    bucket.record(1, *pruned, name(1, 900))
    bucket.put(name(1, 900))
    bucket.list_in(1, name(1, 900))
    counting = CountingStore(bucket.store)
    point = scan_restore_point(ExperimentRecords(counting), ref=THIRD, policy=RestorePolicy())
    assert point is not None
    assert point.candidate is not None
    assert point.candidate.name == name(1, 900)
    assert point.skipped == ()
    assert counting.num_calls <= 8
    bucket.store.delete(f"g000001/{name(1, 900)}/state.pt")
    with pytest.raises(NoUsableCheckpoint) as caught:
        bucket.scan()
    assert name(1, 900) in str(caught.value)
    assert name(1, 0) not in str(caught.value)


def test_an_unfenced_attempt_is_read_from_the_generations_folder(bucket: Bucket) -> None:
    restored = RestoredRecord(checkpoint=None, reason="start", fenced=False, created_at=NOW)
    bucket.store.write("g000001/attempts/000002/restored.json", restored.body())
    bucket.store.write("g000001/checkpoint_manager_snapshot.json", manifest("checkpoint_a"))
    bucket.put("checkpoint_a")
    assert bucket.scan().candidate.name == "checkpoint_a"


def test_a_torn_manifest_is_not_an_empty_one(bucket: Bucket) -> None:
    bucket.store.write("g000001/attempts/000002/checkpoint_manager_snapshot.json", b"")
    with pytest.raises(RecordUnreadable):
        bucket.scan()


def test_a_store_that_is_away_is_not_an_empty_one(bucket: Bucket) -> None:
    bucket.list_in(2, name(1, 1))
    bucket.store.fail_call(bucket.store.num_calls + 1)
    with pytest.raises(StoreUnreachable):
        bucket.scan()
