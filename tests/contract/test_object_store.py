"""One contract for all object stores: memory (so that fast tests may trust it), a local folder, and a real S3 server."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider.core.errors import (
    InvalidConfig,
    WriteConflict,
)
from airflow_provider.storage.local import LocalObjectStore
from airflow_provider.storage.object_store import ObjectStore
from airflow_provider.storage.s3 import S3ObjectStore
from airflow_provider.testing.memory_store import MemoryBucket
from tests.stack.s3 import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WRITERS = 8


@dataclass
class Place:
    """A fresh root, and a back door to store what our own verbs refuse to write."""

    store: ObjectStore
    put_raw: Callable[[str, bytes], None]
    sibling: Callable[[str], ObjectStore]
    """The store at `<root><suffix>`, beside this one."""
    race_rounds: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server for this module."""
    with S3Server(tmp_path_factory.mktemp("s3"), buckets=["models"]) as running:
        yield running


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place of each kind."""
    if request.param == "memory":
        bucket = MemoryBucket()
        memory = bucket.at("s3://models/resnet")
        return Place(memory, memory.put_raw, lambda suffix: bucket.at(f"s3://models/resnet{suffix}"), 20)
    if request.param == "local":
        return _local(tmp_path)
    return _s3(request.getfixturevalue("server"))


def _local(tmp_path: Path) -> Place:
    root = tmp_path / "resnet"

    def put_raw(key: str, body: bytes) -> None:
        path = root / key
        (path if key.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not key.endswith("/"):
            path.write_bytes(body)

    def at(suffix: str) -> ObjectStore:
        return LocalObjectStore(f"{root}{suffix}", anchor=str(tmp_path))

    return Place(at(""), put_raw, at, 20)


def _s3(server: S3Server) -> Place:
    client = server.client()
    prefix = f"{uuid.uuid4().hex}/resnet"

    def put_raw(key: str, body: bytes) -> None:
        client.put_object(Bucket="models", Key=f"{prefix}/{key}", Body=body)

    def at(suffix: str) -> ObjectStore:
        return S3ObjectStore(f"s3://models/{prefix}{suffix}", client_factory=server.client)

    return Place(at(""), put_raw, at, 4)


def _create(store: ObjectStore, key: str, writer: int) -> bool:
    return store.create_if_absent(key, f"writer {writer}".encode())


def _at_once(work: Callable[[int], Any]) -> list[Any]:
    """Run `work(i)` in all writers at the same moment."""
    start = threading.Barrier(WRITERS)

    def run(number: int) -> Any:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(run, range(WRITERS)))


# --- reading and writing ---------------------------------------------------------------------------------------------


def test_store_fits_the_protocol(place: Place) -> None:
    """A renamed verb must fail here and not in a retry."""
    assert isinstance(place.store, ObjectStore)


def test_written_object_reads_back_with_its_etag_and_age(place: Place) -> None:
    """Claims and signs of life rest on body, etag and an age by the store's own clock."""
    etag = place.store.write("a/claim.json", b"one")
    found = place.store.read("a/claim.json")
    assert found is not None
    assert (found.key, found.body, found.etag) == ("a/claim.json", b"one", etag)
    assert 0 <= found.age_s < 30
    assert found.modified_at.tzinfo is not None
    assert '"' not in etag
    info = place.store.head("a/claim.json")
    assert info is not None
    assert (info.size, info.etag) == (3, etag)
    assert info.modified_at == found.modified_at
    assert place.store.write("a/claim.json", b"two") != etag
    assert place.store.write("empty", b"")
    empty = place.store.read("empty")
    assert empty is not None
    assert empty.body == b""


def test_missing_key_is_none_not_an_error(place: Place) -> None:
    """Only the store's own "not there" may read as nothing."""
    place.store.write("folder/x", b"1")
    assert place.store.read("nope") is None
    assert place.store.head("nope") is None
    assert place.store.read("folder") is None
    assert place.store.head("folder") is None
    assert place.store.read("folder/x/below-an-object") is None
    assert list(place.store.list("nope/")) == []
    assert place.store.list_folders("nope/") == ()


def test_delete_and_copy(place: Place) -> None:
    """Copy replaces its target and says when the source is gone; deleting twice is fine."""
    place.store.write("a b/+x", b"1")
    place.store.write("target", b"old")
    assert place.store.copy("a b/+x", "target") is True
    assert place.store.copy("a b/+x", "new/dir/t") is True
    assert [found.body for key in ("target", "new/dir/t") if (found := place.store.read(key))] == [b"1", b"1"]
    assert place.store.copy("nope", "target") is False
    place.store.delete("a b/+x")
    place.store.delete("a b/+x")
    assert place.store.read("a b/+x") is None


ODD_KEYS = [
    "exp a/run+1/m.pt",
    "manual__2026-11-29T00:00:00+00:00/m.pt",
    "naïve/チェック/m.pt",
    "e\u0301-decomposed/m.pt",
    "100%25/m.pt",
    "100%/m.pt",
    "exp%20a/m.pt",
    "q?x=1&y=2/m.pt",
    "h#x/m.pt",
    "quote'\"<>&/m.pt",
    "~.-_=,;@!$()*[]{}|^`/m.pt",
    "trailing /m.pt",
    "...three/m.pt",
    "emoji😀/m.pt",
]


@pytest.mark.scenario("C10")
def test_odd_keys_survive_byte_for_byte(place: Place) -> None:
    """A run id may hold all of these; one layer of encoding too many would start a second experiment (C10)."""
    for key in ODD_KEYS:
        assert place.store.create_if_absent(key, key.encode())
    assert {info.key for info in place.store.list("")} == set(ODD_KEYS)
    assert set(place.store.list_folders("")) == {key.rpartition("/m.pt")[0].split("/")[0] + "/" for key in ODD_KEYS}
    for key in ODD_KEYS:
        found = place.store.read(key)
        assert found is not None
        assert found.body == key.encode()
        assert [info.key for info in place.store.list(key[:-2])] == [key]
        assert place.store.copy(key, f"copies/{key}")
        assert not place.store.create_if_absent(key, b"other")
    assert {info.key for info in place.store.list("copies/")} == {f"copies/{key}" for key in ODD_KEYS}


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a/", "a//b", "..", "../b", "a/../b", "a/./b", "./a", "a\\b", "a\nb", "a\0b", "\ud800", "k" * 1025],
)
def test_keys_that_some_store_would_change_are_refused(place: Place, key: str) -> None:
    """SeaweedFS folds `//` and turns a backslash into a slash; a folder would be left by `..`."""
    with pytest.raises(InvalidConfig):
        place.store.write(key, b"1")
    with pytest.raises(InvalidConfig):
        place.store.read(key)
    with pytest.raises(InvalidConfig):
        place.store.create_if_absent(key, b"1")
    with pytest.raises(InvalidConfig):
        place.store.copy("fine", key)
    assert list(place.store.list("")) == []


# --- conditional writes ------------------------------------------------------------------------------------------------


def test_create_if_absent_keeps_the_first_body(place: Place) -> None:
    """The second writer must learn that it lost, and change nothing."""
    assert place.store.create_if_absent("owners/000001.json", b"first") is True
    assert place.store.create_if_absent("owners/000001.json", b"second") is False
    found = place.store.read("owners/000001.json")
    assert found is not None
    assert found.body == b"first"


def test_exactly_one_of_eight_racing_creators_wins(place: Place) -> None:
    """G1 rests on this: two winners would be two drivers that may commit."""
    for number in range(place.race_rounds):
        key = f"attempts/{number:06d}/claim.json"
        won = _at_once(partial(_create, place.store, key))
        found = place.store.read(key)
        assert won.count(True) == 1
        assert found is not None
        assert found.body == f"writer {won.index(True)}".encode()


def test_replace_if_match_loses_no_update(place: Place) -> None:
    """A counter that eight writers raise by compare-and-swap counts every success."""
    place.store.write("counter", b"0 start")
    rounds = 3

    def raise_it(writer: int) -> int:
        conflicts = 0
        for turn in range(rounds):
            while True:
                found = place.store.read("counter")
                assert found is not None
                value = int(found.body.split()[0]) + 1
                body = f"{value} {writer}.{turn}.{conflicts}".encode()
                try:
                    place.store.replace_if_match("counter", body, etag=found.etag)
                except WriteConflict:
                    conflicts += 1
                else:
                    break
        return conflicts

    _at_once(raise_it)
    found = place.store.read("counter")
    assert found is not None
    assert int(found.body.split()[0]) == WRITERS * rounds


def test_replace_if_match_refuses_another_or_no_object(place: Place) -> None:
    """AWS answers 404 for a missing key and others 412; both are a lost race."""
    first = place.store.write("x", b"1")
    second = place.store.replace_if_match("x", b"2", etag=first)
    with pytest.raises(WriteConflict):
        place.store.replace_if_match("x", b"3", etag=first)
    assert place.store.replace_if_match("x", b"4", etag=second) not in {first, second}
    with pytest.raises(WriteConflict):
        place.store.replace_if_match("missing", b"1", etag=first)
    assert place.store.read("missing") is None


# --- listing -----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("C11")
def test_listing_never_reads_a_sibling(place: Place) -> None:
    """`resnet` must not see `resnet-2`, however the root was written (C11)."""
    place.store.write("checkpoint_000001/m.pt", b"1")
    place.sibling("-2").write("checkpoint_000009/m.pt", b"1")
    assert [info.key for info in place.store.list("")] == ["checkpoint_000001/m.pt"]
    assert place.store.list_folders("") == ("checkpoint_000001/",)
    assert place.store.list_folders("checkpoint_") == ("checkpoint_000001/",)
    assert place.store.list_folders("checkpoint_2") == ()


def test_1105_folders_are_all_found(place: Place) -> None:
    """A page holds 1,000; callers that stop there restore an old checkpoint (C08)."""
    keys = [f"checkpoint_{number:06d}/m.pt" for number in range(1105)]
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda key: place.put_raw(key, b"x"), keys))
    assert place.store.list_folders("") == tuple(key[:-4] for key in keys)
    assert sorted(info.key for info in place.store.list("")) == keys
    assert sum(info.size for info in place.store.list("checkpoint_0011")) == 5


def test_level_listing_can_start_behind_the_checkpoints(place: Place) -> None:
    """Which records an attempt has is one call, whatever number of checkpoints lies between them."""
    names = ["alive.json", "claim.json", "outcome.json", "restored.json", "stop-000002.json", "records/000001.json"]
    for name in [*names, "checkpoint_manager_snapshot.json", "checkpoint_x/m.pt", "checkpoint_y/m.pt"]:
        place.store.write(f"g1/{name}", b"x")
    listing = place.store.list_folder("g1/", start_after="checkpoint`")
    assert [info.key for info in listing.objects] == [
        "g1/claim.json",
        "g1/outcome.json",
        "g1/restored.json",
        "g1/stop-000002.json",
    ]
    assert listing.folders == ("g1/records/",)
    assert place.store.list_folder("g1/").folders == ("g1/checkpoint_x/", "g1/checkpoint_y/", "g1/records/")
    assert [info.key for info in place.store.list_folder("g1/stop-").objects] == ["g1/stop-000002.json"]
    assert place.store.list_folder("").objects == ()


@pytest.mark.scenario("C12")
def test_folder_markers_are_folders_and_not_objects(place: Place) -> None:
    """A 0-byte `name/` is what consoles create, or what is left of a deleted folder (C12)."""
    place.put_raw("checkpoint_000003/", b"")
    place.put_raw("checkpoint_000001/m.pt", b"1")
    assert [info.key for info in place.store.list("")] == ["checkpoint_000001/m.pt"]
    assert list(place.store.list("checkpoint_000003/")) == []
    assert place.store.list_folders("") == ("checkpoint_000001/", "checkpoint_000003/")
    assert place.store.list_folder("checkpoint_000003/").objects == ()


def test_prefix_with_empty_or_dot_part_is_refused(place: Place) -> None:
    """As for keys."""
    for prefix in ("/", "a//", "../", "a/./"):
        with pytest.raises(InvalidConfig):
            list(place.store.list(prefix))
