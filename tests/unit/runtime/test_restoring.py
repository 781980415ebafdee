"""The restore point from what lies in the bucket: committed, verified, rolled back, copied, or refused."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

import pyarrow.fs
import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import NoUsableCheckpoint, RecordUnreadable
from airflow_provider.core.manifest import Manifest, ManifestEntry
from airflow_provider.core.record_parts import AttemptRef, CheckpointFile
from airflow_provider.core.records import CheckpointEntry, RecordSegment
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.runtime.restoring import Resolved, read_attempts, resolve
from airflow_provider.runtime.storage import ExperimentStore

AT = datetime(2026, 11, 29, tzinfo=timezone.utc)
OWN = AttemptRef(generation=1, attempt=3)


@pytest.fixture
def store(tmp_path: Path) -> ExperimentStore:
    return ExperimentStore(pyarrow.fs.LocalFileSystem(), str(tmp_path))


def name(n: int, i: int) -> str:
    return f"attempts/{n:06d}/checkpoint_{i}"


def put(store: ExperimentStore, n: int, i: int, body: bytes = b"weights") -> None:
    store.write(f"g000001/{name(n, i)}/model.pt", body)


def entry(n: int, i: int) -> ManifestEntry:
    return ManifestEntry(name(n, i), {"epoch": i, "loss": 1.0 / (1 + i)})


def attempt(store: ExperimentStore, n: int, listed: Iterable[tuple[int, int]], *, recorded: Iterable[int] = ()) -> None:
    """An attempt's manifest over existing checkpoints, and records of its own ones."""
    entries = tuple(entry(*pair) for pair in listed)
    manifest = Manifest(entries, entries[-1] if entries else None, tuple(range(len(entries))))
    store.write(layout.manifest(1, n), manifest.body(ray_version="2.60.0"))
    files = (CheckpointFile(key="model.pt", size=7),)
    found = tuple(CheckpointEntry(checkpoint=name(n, i), files=files, reported_at=AT) for i in recorded)
    if found:
        store.write_record(layout.segment(1, n, "000001"), RecordSegment(checkpoints=found, written_at=AT))


def resolved(store: ExperimentStore, policy: RestorePolicy | None = None) -> Resolved:
    said: list[str] = []
    attempts = [a for a in read_attempts(store, OWN, say=said.append) if a.ref != OWN]
    return resolve(store, OWN, policy=policy or RestorePolicy(), attempts=attempts, say=said.append)


def test_nothing_there_starts_from_scratch_with_an_empty_manifest(store: ExperimentStore) -> None:
    found = resolved(store)
    assert found.checkpoint is None
    assert found.manifest == Manifest()
    assert found.point.reason == "from the start: there is no earlier attempt"


def test_newest_commit_over_attempts(store: ExperimentStore) -> None:
    for n, i in ((1, 0), (1, 1), (2, 2)):
        put(store, n, i)
    attempt(store, 1, [(1, 0), (1, 1)], recorded=[0, 1])
    attempt(store, 2, [(1, 0), (1, 1), (2, 2)], recorded=[2])
    found = resolved(store)
    assert found.checkpoint == name(2, 2)
    assert found.manifest.names == (name(1, 0), name(1, 1), name(2, 2))
    assert found.record(fit=1, fenced=True).from_attempt == 2


def test_damaged_checkpoint_is_rolled_back_over_and_quarantined(store: ExperimentStore) -> None:
    """G3: it can't stop the run, and Ray is not told of it: it refuses to start over a listed one that is gone."""
    put(store, 1, 0)
    put(store, 1, 1, b"short")
    attempt(store, 1, [(1, 0), (1, 1), (1, 2)], recorded=[0, 1, 2])
    found = resolved(store)
    assert found.checkpoint == name(1, 0)
    assert found.manifest.names == (name(1, 0),)
    assert [(s.checkpoint, s.why.split(" (")[0]) for s in found.point.skipped] == [
        (name(1, 2), "no file is left of it"),
        (name(1, 1), "model.pt has 5 bytes instead of 7"),
    ]
    for i in (1, 2):
        assert store.exists(layout.quarantine(1, name(1, i)))
    assert resolved(store).point.skipped == (), "a quarantined one is not looked at again"


def test_on_corrupt_fail_refuses(store: ExperimentStore) -> None:
    put(store, 1, 0)
    attempt(store, 1, [(1, 0), (1, 1)])
    with pytest.raises(NoUsableCheckpoint, match="on_corrupt='fail'"):
        resolved(store, RestorePolicy(on_corrupt="fail"))


@pytest.mark.parametrize(
    ("policy", "usable", "is_quarantined"),
    [
        (RestorePolicy(), True, True),
        (RestorePolicy(), False, False),
        (RestorePolicy(on_corrupt="fail"), True, False),
        (RestorePolicy(on_corrupt="fail"), False, False),
    ],
)
def test_quarantine_is_for_what_was_rolled_back_over_only(
    store: ExperimentStore, policy: RestorePolicy, usable: bool, is_quarantined: bool
) -> None:
    """Where the run is refused, a person repairs the objects: a quarantine would pass them over even then."""
    if usable:
        put(store, 1, 0)
    attempt(store, 1, [(1, 0), (1, 1)], recorded=[0, 1])
    if is_quarantined:
        assert resolved(store, policy).checkpoint == name(1, 0)
    else:
        with pytest.raises(NoUsableCheckpoint):
            resolved(store, policy)
    assert store.exists(layout.quarantine(1, name(1, 1))) is is_quarantined
    put(store, 1, 0)
    put(store, 1, 1)
    repaired = resolved(store, policy)
    assert repaired.checkpoint == name(1, 0 if is_quarantined else 1)


def test_all_gone_is_never_quietly_from_scratch(store: ExperimentStore) -> None:
    """G2."""
    attempt(store, 1, [(1, 0), (1, 1)])
    with pytest.raises(NoUsableCheckpoint, match="None of 2 committed"):
        resolved(store)


def test_pruned_checkpoints_are_not_corrupt(store: ExperimentStore) -> None:
    """Retention deletes what the newest manifest no longer lists."""
    put(store, 2, 5)
    attempt(store, 1, [(1, 0), (1, 1)], recorded=[0, 1])
    attempt(store, 2, [(2, 5)], recorded=[5])
    found = resolved(store, RestorePolicy(on_corrupt="fail"))
    assert found.checkpoint == name(2, 5)
    assert found.point.skipped == ()


@pytest.mark.scenario("C13")
def test_retired_checkpoint_is_copied_before_it_is_used(store: ExperimentStore) -> None:
    """PROTOCOL 5, story 10: a frozen driver may still delete it after its check."""
    put(store, 1, 0)
    put(store, 2, 5, b"")
    attempt(store, 1, [(1, 0)], recorded=[0])
    attempt(store, 2, [(2, 5)])
    found = resolved(store)
    assert found.checkpoint == "attempts/000003/restored-from-attempts~000001~checkpoint_0"
    assert store.read(f"g000001/{found.checkpoint}/model.pt") == b"weights"
    assert found.manifest.latest == ManifestEntry(found.checkpoint, entry(1, 0).metrics)
    assert "a copy of retired" in found.point.reason


def test_best_and_explicit(store: ExperimentStore) -> None:
    for i in range(3):
        put(store, 1, i)
    attempt(store, 1, [(1, 0), (1, 1), (1, 2)])
    assert resolved(store, RestorePolicy(mode="best", metric="loss", order="max")).checkpoint == name(1, 0)
    chosen = resolved(store, RestorePolicy(mode="explicit", checkpoint=name(1, 1)))
    assert chosen.checkpoint == name(1, 1)
    assert chosen.manifest.latest is not None
    assert chosen.manifest.latest.name == name(1, 1)
    with pytest.raises(NoUsableCheckpoint):
        resolved(store, RestorePolicy(mode="explicit", checkpoint=name(1, 9)))


@pytest.mark.scenario("C01")
def test_uncommitted_folder_is_named_and_never_chosen(store: ExperimentStore) -> None:
    put(store, 1, 0)
    put(store, 1, 1)
    attempt(store, 1, [(1, 0)], recorded=[0])
    found = resolved(store)
    assert (found.checkpoint, found.uncommitted) == (name(1, 0), (name(1, 1),))


def test_torn_manifest_refuses_and_torn_records_don_t(store: ExperimentStore) -> None:
    """The manifest is the log: guessing at it could lose a commit. Records only make the check closer."""
    put(store, 1, 0)
    attempt(store, 1, [(1, 0)])
    store.write(layout.segment(1, 1, "000001"), b"{")
    assert resolved(store).checkpoint == name(1, 0)
    store.write(layout.manifest(1, 1), b'{"checkpoint_results": [')
    with pytest.raises(RecordUnreadable, match="manifest"):
        resolved(store)


def test_torn_records_without_any_manifest_are_never_quietly_from_scratch(store: ExperimentStore) -> None:
    """A lifecycle rule took the manifest: then records are all that tells of a commit."""
    put(store, 1, 0)
    attempt(store, 1, [(1, 0)], recorded=[0])
    store.delete(layout.manifest(1, 1))
    assert resolved(store).checkpoint == name(1, 0)
    for key in store.names("g000001/attempts/000001/records"):
        store.write(f"g000001/attempts/000001/records/{key}", b"{")
    with pytest.raises(RecordUnreadable, match="segment"):
        resolved(store)


def test_names_nested_deeper_are_found(store: ExperimentStore) -> None:
    """`checkpoint_dir_name="epoch/3"`, and V1's run directories."""
    deep = "attempts/000001/run/trial/checkpoint_3"
    store.write(f"g000001/{deep}/model.pt", b"weights")
    one = ManifestEntry(deep, {})
    store.write(layout.manifest(1, 1), Manifest((one,), one, (0,)).body(ray_version="x"))
    found = resolved(store)
    assert (found.checkpoint, found.manifest.names, found.uncommitted) == (deep, (deep,), ())


def test_a_checkpoint_that_the_training_uploaded_into_the_generation_s_folder_stays_listed(
    store: ExperimentStore,
) -> None:
    """NO_UPLOAD: it is no attempt's own, and must not drop out of the next manifest as if retention had deleted it."""
    entries = (ManifestEntry("mine_1", {}), ManifestEntry("mine/2", {}), ManifestEntry("gone", {}), entry(1, 3))
    for checkpoint in ("mine_1", "mine/2", name(1, 3)):
        store.write(f"g000001/{checkpoint}/model.pt", b"weights")
    store.write(layout.manifest(1, 1), Manifest(entries, entries[-1], (0, 1, 2, 3)).body(ray_version="x"))
    found = resolved(store)
    assert found.checkpoint == name(1, 3)
    assert found.manifest.names == ("mine_1", "mine/2", name(1, 3))
