"""The S3 adapter on a real server: what a dict or a folder can't show."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import BucketNotFound, StorePermissionDenied, StoreUnreachable
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.object_store import ObjectStore, open_object_store
from airflow_provider.storage.s3 import S3ObjectStore
from tests.stack.s3 import S3Server
from tests.support import experiment as make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WRITERS = 8
pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server for this module, which one test kills."""
    with S3Server(tmp_path_factory.mktemp("s3"), buckets=["models"]) as running:
        yield running


@pytest.mark.scenario("C08")
def test_s3_pages_and_root_forms(server: S3Server) -> None:
    """1,105 folders cost two calls; a slash at the root's end changes nothing (C08, C11)."""
    client = server.client()
    sent: list[str] = []
    client.meta.events.register("before-send.s3", lambda request, **_: sent.append(request.url))
    root = f"s3://models/{uuid.uuid4().hex}"
    store = open_object_store(f"{root}/", client_factory=lambda: client)
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda n: store.write(f"checkpoint_{n:06d}/m.pt", b"x"), range(1105)))
    sent.clear()
    assert len(store.list_folders("")) == 1105
    assert len(sent) <= 3
    sent.clear()
    assert len(list(store.list(""))) == 1105
    assert len(sent) <= 3
    assert open_object_store(root, client_factory=lambda: client).read("checkpoint_000000/m.pt") is not None
    name = root.rpartition("/")[2]
    whole = open_object_store("s3://models", client_factory=lambda: client)
    assert whole.read(f"{name}/checkpoint_000000/m.pt") is not None
    assert f"{name}/" in whole.list_folders("")


def test_s3_object_beside_folder_of_the_same_name(server: S3Server) -> None:
    """`checkpoint_000002` (0 bytes) next to `checkpoint_000002/m.pt` are two things (C12)."""
    store = S3ObjectStore(f"s3://models/{uuid.uuid4().hex}", client_factory=server.client)
    store.write("checkpoint_000002", b"")
    store.write("checkpoint_000002/m.pt", b"1")
    listing = store.list_folder("")
    assert [(info.key, info.size) for info in listing.objects] == [("checkpoint_000002", 0)]
    assert listing.folders == ("checkpoint_000002/",)


def test_s3_missing_bucket_is_said_by_every_verb(server: S3Server) -> None:
    """Above all by HEAD, whose bare 404 must not read as "no such key"."""
    store = S3ObjectStore("s3://no-such-bucket/exp", client_factory=server.client)
    for ask in _verbs(store):
        with pytest.raises(BucketNotFound, match="no-such-bucket"):
            ask()


def test_s3_wrong_keys_are_permission_denied_and_not_repeated(server: S3Server) -> None:
    """403 is final and never "nothing there" (C17); neither key may be in the message."""
    import boto3

    def wrong() -> Any:
        return boto3.session.Session().client(
            "s3",
            endpoint_url=server.endpoint_url,
            aws_access_key_id=server.access_key,
            aws_secret_access_key="wrongwrongwrong",
            region_name="us-east-1",
        )

    store = S3ObjectStore("s3://models/exp", client_factory=wrong)
    for ask in _verbs(store):
        with pytest.raises(StorePermissionDenied) as caught:
            ask()
        assert "s3:" in str(caught.value)
        assert "models/exp" in str(caught.value)
        assert server.access_key not in str(caught.value)
        assert "wrongwrong" not in str(caught.value)
        assert not caught.value.kind.is_retryable


def test_s3_server_away_is_unreachable_and_comes_back(server: S3Server) -> None:
    """An outage is never "nothing there", and the same store object works again after it (G5)."""
    store = S3ObjectStore(
        f"s3://models/{uuid.uuid4().hex}", client_factory=lambda: server.client(timeout_s=2, max_attempts=1)
    )
    store.write("x", b"1")
    server.kill()
    try:
        for ask in _verbs(store):
            with pytest.raises(StoreUnreachable):
                ask()
    finally:
        server.start()
    # The first reads after a restart may still fail: the server's parts find one another.
    found = None
    for _ in range(100):
        try:
            found = store.read("x")
            break
        except StoreUnreachable:
            threading.Event().wait(0.1)
    assert found is not None
    assert found.body == b"1"
    assert store.create_if_absent("y", b"2")


def _verbs(store: ObjectStore) -> list[Callable[[], object]]:
    return [
        lambda: store.head("x"),
        lambda: store.read("x"),
        lambda: list(store.list("")),
        lambda: store.list_folders(""),
        lambda: store.create_if_absent("x", b"1"),
        lambda: store.replace_if_match("x", b"1", etag="0" * 32),
        lambda: store.write("x", b"1"),
        lambda: store.copy("x", "y"),
        lambda: store.delete("x"),
    ]


def test_s3_requests_of_a_try_stay_few(server: S3Server) -> None:
    """The budget in real requests, with more checkpoints than a page in the newest attempt's folder (DESIGN 6)."""
    client = server.client()
    sent: list[str] = []
    client.meta.events.register("before-send.s3", lambda request, **_: sent.append(request.url))
    store = S3ObjectStore(f"s3://models/{uuid.uuid4().hex}/run 1+2:3", client_factory=lambda: client)
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda n: store.write(f"{layout.attempt(1, 1)}/checkpoint_{n:06d}/m.pt", b"x"), range(1205)))
    make.write_attempt(store, 1, 1)
    records = ExperimentRecords(store)
    records.create_stop(make.ref(1, 1), record=make.stop(1))
    sent.clear()
    mine = records.create_owner(make.owner)
    newest = records.newest_attempt()
    assert newest is not None
    assert newest.stops == (1,)
    assert newest.alive is not None
    assert newest.alive.age_s < 30
    assert records.owner_that_acted_on(newest.claim) == mine
    assert records.create_claim(make.claim(1, 2))
    assert records.owner_numbers() == (1,)
    assert len(sent) <= 16, sent
