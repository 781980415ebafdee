"""What an S3 error means. Nothing here repeats an SDK's message unseen: those can hold signed URLs."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)

from airflow_provider.core.errors import (
    BucketNotFound,
    InvalidConfig,
    RayTrainError,
    StoreCredentialsExpired,
    StorePermissionDenied,
    StoreThrottled,
    StoreUnreachable,
)
from airflow_provider.core.redaction import redact_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken", "TokenRefreshRequired"}
)
_THROTTLED = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"})
_WRONG_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "NotSignedUp", "AccountProblem"})
_TRANSIENT = frozenset({"RequestTimeout", "BadDigest", "IncompleteBody", "InternalError"})
_WRONG_REGION = frozenset({"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "301", "307"})

_BARE = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
_REDIRECTS = frozenset({HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.TEMPORARY_REDIRECT})
_THROTTLES = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})

ACTIONS = {
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "ListObjectsV2": "s3:ListBucket",
    "CopyObject": "s3:GetObject and s3:PutObject",
}
"""The IAM action behind each operation we send."""


class Missing(Exception):
    """The store says that the key isn't there. This and the next three are answers: they never leave the adapter."""

    def __init__(self, *, retried: bool = False) -> None:
        """`retried`: the SDK had sent the request before."""
        super().__init__("no such key")
        self.retried = retried


class PreconditionFailed(Exception):
    """412. `retried` means that the SDK had sent the request before: the first one may have succeeded."""

    def __init__(self, *, retried: bool = False) -> None:
        """`retried`: the SDK had sent the request before."""
        super().__init__("precondition failed")
        self.retried = retried


class ConcurrentWrite(Exception):
    """409: another conditional write of the key is in progress; neither won yet."""


class Unexplained(Exception):
    """A HEAD answered 4xx; having no body it can't say why, a GET of the same key can."""

    def __init__(self, *, status: int) -> None:
        """`status` is the HTTP status."""
        super().__init__(f"HTTP {status}")
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Request:
    """What was asked, for messages."""

    operation: str
    bucket: str
    key: str
    """Full key or prefix."""
    endpoint: str
    """Scheme and host only."""

    @property
    def target(self) -> str:
        """The object or prefix as a URI."""
        return f"s3://{self.bucket}/{self.key}"


def endpoint_shown(url: str | None) -> str:
    """Scheme, host and port of an endpoint URL, without user, password, path or query."""
    parts = urlsplit(url or "")
    if not parts.hostname:
        return "the default endpoint"
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def translate(error: Exception, *, request: S3Request) -> Exception:
    """The typed error for whatever the SDK raised, or one of the answers above. Raise it `from None`."""
    if isinstance(error, RayTrainError | Missing):
        return error
    if isinstance(error, ClientError):
        return _from_answer(error, request)
    known = f"{request.operation} of {request.target} at {request.endpoint} ended with {type(error).__name__}"
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return StorePermissionDenied(
            "No S3 credentials were found",
            known=known,
            change="set login and password of the connection, or give the Airflow worker a role",
            action=ACTIONS.get(request.operation),
        )
    if isinstance(error, CredentialRetrievalError | UnauthorizedSSOTokenError | TokenRetrievalError | SSOError):
        return _expired(known)
    if isinstance(error, ParamValidationError):
        return InvalidConfig("S3 can't be asked for this key", known=f"{known}: {redact_answer(str(error))}")
    # Everything else, also what the SDK's parser raises on an answer that isn't S3's: no usable answer.
    return StoreUnreachable(
        "The object store gave no usable answer",
        known=known,
        change="nothing is lost; check the endpoint and the network if it lasts",
        cause=type(error).__name__,
    )


def _from_answer(error: ClientError, request: S3Request) -> Exception:
    details: Mapping[str, Any] = error.response.get("Error", {})
    meta: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    code, status = str(details.get("Code") or ""), int(meta.get("HTTPStatusCode") or 0)
    retried = int(meta.get("RetryAttempts") or 0) > 0
    if request.operation == "HeadObject" and code == str(status) and status in _BARE:
        return Unexplained(status=status)
    if code in {"NoSuchKey", "NoSuchVersion"}:
        return Missing(retried=retried)
    if status == HTTPStatus.PRECONDITION_FAILED or code == "PreconditionFailed":
        return PreconditionFailed(retried=retried)
    if code in {"ConditionalRequestConflict", "OperationAborted"}:
        return ConcurrentWrite("conflict")
    message = redact_answer(str(details.get("Message") or ""))
    known = f"{request.operation} of {request.target} at {request.endpoint} answered HTTP {status} {code}: {message}"
    return _from_code(code, status, known=known, request=request, meta=meta)


def _from_code(code: str, status: int, *, known: str, request: S3Request, meta: Mapping[str, Any]) -> RayTrainError:
    if code == "NoSuchBucket":
        return BucketNotFound(
            f"The bucket {request.bucket} does not exist",
            known=known,
            change="create it, or correct storage_path or the connection's endpoint",
            bucket=request.bucket,
        )
    if code in _EXPIRED:
        return _expired(known)
    if code in _WRONG_REGION or status in _REDIRECTS:
        region = meta.get("HTTPHeaders", {}).get("x-amz-bucket-region", "another region")
        change = "set region_name in the connection"
        return InvalidConfig(f"The bucket {request.bucket} is in {region}", known=known, change=change)
    unreachable = _unreachable(code, status, known=known)
    if unreachable is not None:
        return unreachable
    if code in _WRONG_KEYS or (status in _REFUSALS and code != "InvalidObjectState"):
        return _denied(code, known=known, request=request)
    return InvalidConfig("The object store refused the request", known=known, code=code)


def _unreachable(code: str, status: int, *, known: str) -> StoreUnreachable | None:
    later = "nothing; it is tried again later"
    if code in _THROTTLED or status in _THROTTLES:
        return StoreThrottled("The object store asks to slow down", known=known, change=later)
    if code == "RequestTimeTooSkewed":
        return StoreUnreachable(
            "The object store refused this machine's clock", known=known, change="set the clock", cause=code
        )
    if code in _TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == 0:
        return StoreUnreachable("The object store failed", known=known, change=later, cause=code)
    if status == HTTPStatus.NOT_FOUND:
        # A 404 without S3's own code is a proxy's or web server's: it says nothing about the key.
        return StoreUnreachable(
            "Something that is not S3 answered", known=known, change="correct the connection's endpoint", cause=code
        )
    return None


def _denied(code: str, *, known: str, request: S3Request) -> StorePermissionDenied:
    action = ACTIONS.get(request.operation, request.operation)
    if code in _WRONG_KEYS:
        change = "correct the connection's keys (a wrong endpoint can look like this too)"
    elif action == "s3:GetObject":
        change = (
            f"allow s3:GetObject on {request.target}, and s3:ListBucket on the bucket: without it S3 answers 403 for a key "
            "that isn't there"
        )
    else:
        change = f"allow {action} on {request.target}; a wrong endpoint or a KMS key can look like this too"
    return StorePermissionDenied(
        f"The object store refused {action} on {request.target}",
        known=known,
        change=change,
        action=action,
        bucket=request.bucket,
        code=code,
    )


def _expired(known: str) -> StoreCredentialsExpired:
    return StoreCredentialsExpired(
        "The S3 credentials have expired",
        known=f"{known}; fresh ones were asked for and were refused too, or could not be had",
        change="use credentials that renew themselves (a role) instead of a fixed session token",
    )
