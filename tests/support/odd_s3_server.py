"""A tiny S3 on a real socket that answers a request as told: with odd bytes, with nothing, or only after doing it.

The SDK's own parser and retries are what these tests are about, so the client is real. Not for races or durability.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import boto3

from airflow_provider.storage.s3 import s3_client_config

if TYPE_CHECKING:
    from email.message import Message
    from typing import Self

    from mypy_boto3_s3 import S3Client


@dataclass(frozen=True)
class Answer:
    """What one request gets instead of its own answer. `drop`: the connection is cut."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    after_effect: bool = False
    """Do what was asked first: the reply is lost or replaced, the write isn't."""


def s3_error(status: int, code: str, message: str = "no") -> Answer:
    """An error as S3 writes it."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return Answer(status, body.encode())


LOST_REPLY = Answer(drop=True, after_effect=True)
NO_REPLY = Answer(drop=True)


class OddS3Server:
    """Context manager. `answers` are used up request by request, None lets one through; then all are normal."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.answers: deque[Answer | None] = deque()
        self.seen: list[str] = []
        """`METHOD key` of each request."""
        self.keys_seen: list[str] = []
        """Access key of each request."""
        self.expired: set[str] = set()
        """Access keys that are refused as expired."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def client(self, *, access_key: str = "AKIDEXAMPLE", max_attempts: int = 1, timeout_s: float = 5) -> S3Client:
        """A real client of this server."""
        config = s3_client_config(timeout_s=timeout_s, max_attempts=max_attempts)
        return boto3.session.Session().client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self._server.server_port}",
            aws_access_key_id=access_key,
            aws_secret_access_key="TOPSECRET",
            region_name="us-east-1",
            config=config,
        )

    def do(self, method: str, key: str, body: bytes, *, headers: Message) -> Answer:
        """What a healthy S3 does."""
        present = self.objects.get(key)
        if method == "DELETE":
            self.objects.pop(key, None)
            return Answer(204)
        if method != "PUT":
            return s3_error(404, "NoSuchKey") if present is None else _found(present)
        wanted = headers.get("If-Match")
        if headers.get("If-None-Match") and present is not None:
            return s3_error(412, "PreconditionFailed")
        if wanted and (present is None or wanted != _etag(present)):
            return s3_error(412, "PreconditionFailed")
        self.objects[key] = body
        return Answer(200, headers={"ETag": _etag(body)})


def _handler(owner: OddS3Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base's name
            """Say nothing."""

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            key = unquote(urlsplit(self.path).path).partition("/")[2].partition("/")[2]
            owner.seen.append(f"{self.command} {key}")
            credential = self.headers.get("Authorization", "").partition("Credential=")[2]
            owner.keys_seen.append(credential.partition("/")[0])
            told = owner.answers.popleft() if owner.answers else None
            if owner.keys_seen[-1] in owner.expired:
                told = s3_error(400, "ExpiredToken", "The provided token has expired.")
            done = (
                owner.do(self.command, key, body, headers=self.headers) if told is None or told.after_effect else told
            )
            answer = told or done
            if answer.drop:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_HEAD = do_PUT = do_DELETE = handle_any  # noqa: N815 the base's names

    return Handler


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _found(body: bytes) -> Answer:
    moment = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    return Answer(200, body, {"ETag": _etag(body), "Last-Modified": moment})
