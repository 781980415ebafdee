"""What the fake Jobs API is made of: jobs, faults, what came in, and answers worded as Ray words them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSCloseCode, web

MAX_BODY = 100 * 1024 * 1024
_HTML = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"
_FIELDS = frozenset(
    {
        "entrypoint",
        "submission_id",
        "job_id",
        "runtime_env",
        "metadata",
        "entrypoint_num_cpus",
        "entrypoint_num_gpus",
        "entrypoint_memory",
        "entrypoint_resources",
        "entrypoint_label_selector",
    }
)
TERMINAL = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})


@dataclass
class Recorded:
    """One request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    port: int
    """The client's: requests on one connection share it."""


@dataclass
class Fault:
    """What to do instead of answering, for the next `times` requests that match."""

    kind: str
    """"drop" (act, then close without an answer), "refuse" (close, do nothing), "hang", or "answer"."""
    method: str = "*"
    path: str = ".*"
    times: int = 1_000_000
    after: int = 0
    """Matching requests that are served before the fault begins."""
    status: int = 502
    body: str | bytes = _HTML
    content_type: str = "text/html"
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 3600.0
    num_hit: int = 0
    """How often it was carried out: a test proves with it that the fault fired."""

    def takes(self, request: web.Request) -> bool:
        """Whether this request is hit; counts it."""
        if self.method not in {"*", request.method} or not re.fullmatch(self.path, request.path):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.times <= 0:
            return False
        self.times -= 1
        self.num_hit += 1
        return True


@dataclass
class TailSession:
    """One scripted log session: messages, then a close. `code` 0 = cut the connection."""

    messages: list[str]
    code: int = WSCloseCode.OK


@dataclass
class FakeJob:
    """One job. Its log is text as Ray's file reader gives it."""

    request: dict[str, Any]
    status: str = "PENDING"
    log: str = ""
    message: str | None = None
    error_type: str | None = None
    exit_code: int | None = None
    start_time: int = field(default_factory=lambda: int(time.time() * 1000))
    end_time: int | None = None
    process: asyncio.subprocess.Process | None = None
    tails: list[TailSession] = field(default_factory=list)
    num_tails: int = 0

    def details(self) -> dict[str, Any]:
        """As `GET /api/jobs/<id>` shows it."""
        return {
            "type": "SUBMISSION",
            "job_id": None,
            "submission_id": self.request["submission_id"],
            "driver_info": None,
            "status": self.status,
            "entrypoint": self.request["entrypoint"],
            "message": self.message or f"Job is {self.status.lower()}.",
            "error_type": self.error_type,
            "start_time": self.start_time,
            "end_time": self.end_time,
            "metadata": self.request.get("metadata") or {},
            "runtime_env": self.request.get("runtime_env") or {},
            "driver_agent_http_address": "http://127.0.0.1:52365",
            "driver_node_id": "f" * 56,
            "driver_exit_code": self.exit_code,
        }


def check_submit(body: object) -> None:
    """As Ray refuses a request that it can't build."""
    if not isinstance(body, dict) or "entrypoint" not in body:
        raise TypeError("JobSubmitRequest.__init__() missing 1 required positional argument: 'entrypoint'")
    unknown = set(body) - _FIELDS
    if unknown:
        raise TypeError(f"JobSubmitRequest.__init__() got an unexpected keyword argument '{min(unknown)}'")
    metadata = body.get("metadata") or {}
    for value in metadata.values():
        if not isinstance(value, str):
            raise TypeError(f"metadata values must be strings, got {type(value)}")


def messages(text: str) -> list[str]:
    """Cut new text as Ray does: up to 10 lines or 20,000 characters."""
    found: list[str] = []
    lines: list[str] = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        lines.append(line)
        if len(lines) >= 10 or sum(map(len, lines)) > 20_000:
            found.append("".join(lines))
            lines = []
    return [*found, "".join(lines)] if lines else found


async def read_body(request: web.Request) -> bytes | None:
    """The body, or None where it is too large."""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        return None


def too_large() -> web.Response:
    """As aiohttp refuses a body."""
    return web.Response(status=413, text=f"Maximum request body size {MAX_BODY} exceeded, actual body size more")


async def carry_out(fault: Fault, request: web.Request) -> web.StreamResponse:
    """Do what the fault says."""
    if fault.kind == "refuse":
        cut(request)
        return web.Response()
    if fault.kind == "hang":
        await asyncio.sleep(fault.seconds)
        return web.Response()
    body = fault.body.encode() if isinstance(fault.body, str) else fault.body
    headers = {"Content-Type": fault.content_type, **fault.headers}
    return web.Response(status=fault.status, body=body, headers=headers)


def cut(request: web.Request) -> None:
    """Close the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()


def kill(job: FakeJob) -> None:
    """End the job's process."""
    if job.process is not None and job.process.returncode is None:
        os.killpg(job.process.pid, signal.SIGKILL)
