"""What the S3 adapter makes of answers that a healthy server doesn't give. Real client, real socket, scripted server."""

from __future__ import annotations

import pickle
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from botocore.stub import Stubber

from airflow_provider.core.errors import (
    BucketNotFound,
    InvalidConfig,
    RayTrainError,
    StoreCredentialsExpired,
    StorePermissionDenied,
    StoreThrottled,
    StoreUnreachable,
    WriteConflict,
)
from airflow_provider.core.failure import FailureKind
from airflow_provider.storage.s3 import S3ObjectStore
from airflow_provider.storage.s3_errors import endpoint_shown
from tests.support.odd_s3_server import LOST_REPLY, NO_REPLY, Answer, OddS3Server, s3_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mypy_boto3_s3 import S3Client

EXPIRED = s3_error(400, "ExpiredToken", "The provided token has expired.")


@pytest.fixture
def server() -> Iterator[OddS3Server]:
    with OddS3Server() as running:
        yield running


def _store(server: OddS3Server, *, max_attempts: int = 1, timeout_s: float = 5) -> S3ObjectStore:
    return S3ObjectStore(
        "s3://bucket/exp",
        client_factory=lambda: server.client(max_attempts=max_attempts, timeout_s=timeout_s),
        sleep=lambda _: None,
    )


def _rotating(server: OddS3Server) -> Callable[[], S3Client]:
    """A factory whose n-th client has access key `KEY<n>`."""
    made: list[int] = []

    def make() -> S3Client:
        made.append(1)
        return server.client(access_key=f"KEY{len(made)}")

    return make


# --- credentials -------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("C97")
@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired", "InvalidToken", "InvalidAccessKeyId"])
def test_expired_credentials_are_renewed_at_use(server: OddS3Server, code: str) -> None:
    """A client made at submit is weeks old at the end of a long training (C97)."""
    server.objects["exp/x"] = b"1"
    store = S3ObjectStore("s3://bucket/exp", client_factory=_rotating(server))
    assert store.read("x") is not None
    server.answers.append(s3_error(403 if code == "InvalidAccessKeyId" else 400, code))
    found = store.read("x")
    assert found is not None
    assert found.body == b"1"
    assert server.keys_seen == ["KEY1", "KEY1", "KEY2"]
    assert store.read("x") is not None
    assert server.keys_seen[-1] == "KEY2"


def test_expired_twice_is_a_typed_retryable_error(server: OddS3Server) -> None:
    """Fresh ones that are refused as well end the call after two requests."""
    server.answers.extend([EXPIRED, EXPIRED])
    with pytest.raises(StoreCredentialsExpired) as caught:
        _store(server).create_if_absent("x", b"1")
    assert caught.value.kind is FailureKind.CREDENTIALS_EXPIRED
    assert caught.value.kind.is_retryable
    assert len(server.seen) == 2
    assert server.objects == {}


def test_head_with_expired_token_has_no_body_and_is_asked_as_get(server: OddS3Server) -> None:
    """S3 answers HEAD with a bare 400 then; only a GET says that the token expired."""
    server.objects["exp/x"] = b"1"
    server.expired = {"KEY1"}
    store = S3ObjectStore("s3://bucket/exp", client_factory=_rotating(server))
    info = store.head("x")
    assert info is not None
    assert info.size == 1
    assert server.keys_seen[-1] == "KEY2"
    server.expired = {f"KEY{number}" for number in range(9)}
    with pytest.raises(StoreCredentialsExpired):
        store.head("x")


def test_stubbed_expiry_in_the_middle_of_a_listing(server: OddS3Server) -> None:
    """A long listing outlives its credentials: it goes on from the same page."""
    clients = [server.client(), server.client()]
    stubs = [Stubber(client) for client in clients]
    first = {"IsTruncated": True, "NextContinuationToken": "t", "Contents": [_item("exp/a")]}
    asked = {"Bucket": "bucket", "Prefix": "exp/"}
    stubs[0].add_response("list_objects_v2", first, asked)
    stubs[0].add_client_error("list_objects_v2", "ExpiredToken", http_status_code=400)
    last = {"IsTruncated": False, "Contents": [_item("exp/b")]}
    stubs[1].add_response("list_objects_v2", last, {**asked, "ContinuationToken": "t"})
    for stub in stubs:
        stub.activate()
    turns = iter(clients)
    store = S3ObjectStore("s3://bucket/exp", client_factory=lambda: next(turns))
    assert [info.key for info in store.list("")] == ["a", "b"]
    for stub in stubs:
        stub.assert_no_pending_responses()


def _item(key: str) -> dict[str, object]:
    return {"Key": key, "Size": 1, "ETag": '"e"', "LastModified": datetime(2026, 11, 29, tzinfo=timezone.utc)}


@pytest.mark.parametrize("token", [{}, {"NextContinuationToken": "same"}])
def test_listing_without_a_next_page_is_an_error_not_the_end(server: OddS3Server, token: dict[str, str]) -> None:
    """A short listing would hide the newest checkpoint, and one that repeats its page would never end."""
    client = server.client()
    stub = Stubber(client)
    for _ in range(2):
        stub.add_response("list_objects_v2", {"IsTruncated": True, "Contents": [_item("exp/a")], **token})
    stub.activate()
    with pytest.raises(StoreUnreachable, match="broke a listing off"):
        list(S3ObjectStore("s3://bucket/exp", client_factory=lambda: client).list(""))


# --- what an answer means ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (s3_error(503, "SlowDown"), StoreThrottled),
        (Answer(503), StoreThrottled),
        (s3_error(429, "TooManyRequests"), StoreThrottled),
        (s3_error(500, "InternalError"), StoreUnreachable),
        (Answer(502, b"<html><body>Bad gateway</body></html>"), StoreUnreachable),
        (Answer(500, b"\x00\xff not xml"), StoreUnreachable),
        (Answer(500, b"<Error/>"), StoreUnreachable),
        (Answer(500, b"<Error>text</Error>"), StoreUnreachable),
        (Answer(500, b"<a><Error>text</Error></a>"), StoreUnreachable),
        (Answer(404, b"<html>no such page</html>"), StoreUnreachable),
        (Answer(404, b'{"detail": "Not Found"}'), StoreUnreachable),
        (Answer(404), StoreUnreachable),
        (s3_error(404, "NoSuchBucket"), BucketNotFound),
        (s3_error(403, "AccessDenied"), StorePermissionDenied),
        (Answer(403), StorePermissionDenied),
        (s3_error(403, "SignatureDoesNotMatch"), StorePermissionDenied),
        (s3_error(403, "RequestTimeTooSkewed"), StoreUnreachable),
        (s3_error(301, "PermanentRedirect"), InvalidConfig),
        (s3_error(400, "AuthorizationHeaderMalformed"), InvalidConfig),
        (s3_error(400, "InvalidRequest"), InvalidConfig),
        (NO_REPLY, StoreUnreachable),
        (Answer(200, b"short", {"Content-Length": "50"}), StoreUnreachable),
    ],
)
def test_answers_become_typed_errors(server: OddS3Server, answer: Answer, expected: type[RayTrainError]) -> None:
    """None of these may read as "not there", and none may surface as the SDK's own traceback."""
    server.answers.extend([answer] * 3)
    with pytest.raises(RayTrainError) as caught:
        _store(server, timeout_s=1).read("x")
    assert type(caught.value) is expected
    assert type(pickle.loads(pickle.dumps(caught.value))) is expected  # noqa: S301 our own


@pytest.mark.scenario("C17")
def test_list_denied_names_action_and_prefix(server: OddS3Server) -> None:
    """C17: the one missing permission is named, and GET says that 403 can mean "absent" without it."""
    server.answers.extend([s3_error(403, "AccessDenied")] * 2)
    with pytest.raises(StorePermissionDenied, match=r"refused s3:ListBucket on s3://bucket/exp/owners/") as caught:
        list(_store(server).list("owners/"))
    assert caught.value.facts["action"] == "s3:ListBucket"
    with pytest.raises(StorePermissionDenied, match=r"s3:GetObject .*without it S3 answers 403"):
        _store(server).read("x")


def test_bare_403_and_404_of_head_are_looked_into(server: OddS3Server) -> None:
    """HEAD carries no reason; a missing bucket must not read as a missing key."""
    store = _store(server)
    server.answers.extend([Answer(404), s3_error(404, "NoSuchBucket")])
    with pytest.raises(BucketNotFound):
        store.head("x")
    server.answers.extend([Answer(403), s3_error(403, "AccessDenied")])
    with pytest.raises(StorePermissionDenied, match="s3:GetObject"):
        store.head("x")
    assert store.read("x") is None
    server.seen.clear()
    assert store.head("x") is None
    assert server.seen == ["HEAD exp/x"], "once the bucket was seen, a bare 404 is enough"


def test_body_that_breaks_off_is_fetched_again(server: OddS3Server) -> None:
    """The SDK retries up to the headers only."""
    server.objects["exp/x"] = b"whole"
    moment = {"Last-Modified": "Sun, 29 Nov 2026 00:00:00 GMT", "ETag": '"e"'}
    server.answers.append(Answer(200, b"wh", {**moment, "Content-Length": "5", "Connection": "close"}))
    found = _store(server, timeout_s=1).read("x")
    assert found is not None
    assert found.body == b"whole"


def test_age_comes_from_the_servers_clock(server: OddS3Server) -> None:
    """A worker whose clock is hours off must not call a live driver dead."""
    headers = {"Last-Modified": "Thu, 01 Jan 2015 00:00:00 GMT", "ETag": '"e"'}
    server.objects["exp/x"] = b"1"
    client = server.client()

    def rewrite(parsed: dict[str, object], **_: object) -> None:
        meta = parsed["ResponseMetadata"]
        assert isinstance(meta, dict)
        meta["HTTPHeaders"]["date"] = "Thu, 01 Jan 2015 00:00:42 GMT"

    client.meta.events.register("after-call.s3.GetObject", rewrite)
    server.answers.append(Answer(200, b"1", headers))
    found = S3ObjectStore("s3://bucket/exp", client_factory=lambda: client).read("x")
    assert found is not None
    assert found.age_s == 42


# --- conditional writes whose reply is lost ------------------------------------------------------------------------------


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_create_whose_reply_is_lost_is_ours(server: OddS3Server, max_attempts: int) -> None:
    """The SDK's own retry turns our success into a 412; the body says whose it is."""
    server.answers.append(LOST_REPLY)
    assert _store(server, max_attempts=max_attempts).create_if_absent("x", b"ours") is True
    assert server.objects == {"exp/x": b"ours"}


def test_create_answered_500_after_the_effect_is_ours(server: OddS3Server) -> None:
    """A 5xx doesn't say that nothing happened."""
    server.answers.append(Answer(500, after_effect=True))
    assert _store(server).create_if_absent("x", b"ours") is True


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_create_lost_on_the_way_finds_anothers(server: OddS3Server, max_attempts: int) -> None:
    """Our request never arrived and another process created the object: lost, and untouched."""
    server.objects["exp/x"] = b"theirs"
    server.answers.append(NO_REPLY)
    assert _store(server, max_attempts=max_attempts).create_if_absent("x", b"ours") is False
    assert server.objects == {"exp/x": b"theirs"}


def test_create_that_never_arrived_is_sent_again(server: OddS3Server) -> None:
    """Reading back finds nothing, so the same conditional request is safe to repeat."""
    server.answers.extend([NO_REPLY, None, s3_error(503, "SlowDown")])
    assert _store(server).create_if_absent("x", b"ours") is True
    assert server.seen == ["PUT exp/x", "GET exp/x", "PUT exp/x", "GET exp/x", "PUT exp/x"]


def test_equal_body_on_a_plain_412_is_not_ours(server: OddS3Server) -> None:
    """Nothing was ambiguous: whoever wrote it was another process."""
    server.objects["exp/x"] = b"same"
    assert _store(server).create_if_absent("x", b"same") is False


def test_conflict_409_is_repeated(server: OddS3Server) -> None:
    """AWS answers it while another conditional write is in progress: neither has won yet."""
    server.answers.append(s3_error(409, "ConditionalRequestConflict"))
    assert _store(server).create_if_absent("x", b"ours") is True


def test_create_that_can_not_be_settled_says_so(server: OddS3Server) -> None:
    """The caller must know that the object may exist, and throttling stays throttling."""
    store = _store(server)
    server.answers.extend([NO_REPLY] * 3)
    with pytest.raises(StoreUnreachable) as caught:
        store.create_if_absent("x", b"ours")
    assert caught.value.facts["may_be_written"] is True
    server.answers.clear()
    server.answers.extend([s3_error(503, "SlowDown"), None] * 4)
    with pytest.raises(StoreThrottled) as throttled:
        store.create_if_absent("x", b"ours")
    assert throttled.value.facts["may_be_written"] is True
    assert server.objects == {}


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_replace_whose_reply_is_lost_is_ours(server: OddS3Server, max_attempts: int) -> None:
    """As for creating."""
    store = _store(server, max_attempts=max_attempts)
    etag = store.write("x", b"0")
    server.answers.append(LOST_REPLY)
    new = store.replace_if_match("x", b"1", etag=etag)
    found = store.read("x")
    assert found is not None
    assert (found.body, found.etag) == (b"1", new)


def test_replace_lost_on_the_way(server: OddS3Server) -> None:
    """Nobody else wrote: sent again. Somebody did: a conflict."""
    store = _store(server)
    etag = store.write("x", b"0")
    server.answers.append(NO_REPLY)
    etag = store.replace_if_match("x", b"1", etag=etag)
    server.objects["exp/x"] = b"theirs"
    server.answers.append(NO_REPLY)
    with pytest.raises(WriteConflict):
        store.replace_if_match("x", b"2", etag=etag)
    assert server.objects["exp/x"] == b"theirs"
    server.answers.append(s3_error(404, "NoSuchKey"))
    with pytest.raises(WriteConflict):
        store.replace_if_match("x", b"2", etag=etag)


# --- secrets -----------------------------------------------------------------------------------------------------------


def test_messages_hold_no_secret(server: OddS3Server) -> None:
    """A server, proxy or SDK message may hold a signed URL or keys."""
    leak = "see http://u:pw@h/b?X-Amz-Signature=deadbeef&amp;X-Amz-Credential=AKIAIOSFODNN7EXAMPLE token=abc123"
    server.answers.append(s3_error(400, "InvalidRequest", leak))
    with pytest.raises(InvalidConfig) as caught:
        _store(server).read("x")
    for secret in ("deadbeef", "AKIAIOSFODNN7EXAMPLE", "TOPSECRET", "AKIDEXAMPLE", "pw@", "abc123"):
        assert secret not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert endpoint_shown("https://user:pw@host:9000/path?q=1") == "https://host:9000"
    assert "TOPSECRET" not in repr(_store(server))


def test_no_credentials_is_permission(server: OddS3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retrying doesn't make keys appear."""
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    url = server.client().meta.endpoint_url
    client = boto3.session.Session().client("s3", endpoint_url=url, region_name="us-east-1")
    with pytest.raises(StorePermissionDenied, match="No S3 credentials"):
        S3ObjectStore("s3://bucket/exp", client_factory=lambda: client).read("x")
    assert server.seen == []
